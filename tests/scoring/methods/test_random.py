"""`random`."""

from __future__ import annotations

import headprune as hp
from tests.families.tiny import tiny_model


def test_random_scores_need_no_data_and_repeat():
    """The seed is on record."""
    model = tiny_model("bert")
    a, b, c = (hp.score(model, method="random", seed=s) for s in (1, 1, 2))
    assert a == b != c
    assert a.options == {"seed": 1}
