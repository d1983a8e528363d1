"""Odd values get errors of ours."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.errors import HeadpruneError, MaskError, UnknownNameError
from tests.families.tiny import tiny_model


def test_odd_values_get_our_errors():
    """Wherever a person can put one."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    with pytest.raises(UnknownNameError):
        hp.HeadMask.full(heads).without(3)
    with pytest.raises(HeadpruneError):
        hp.HeadMask.from_json(None)
    with pytest.raises(HeadpruneError):
        hp.find_heads("bert-base")
    with pytest.raises(HeadpruneError):
        hp.find_heads(model, example=[1, 2])
    for numbers in (0.5, "abcd"):
        with pytest.raises(MaskError), hp.masked(model, {"encoder.0": numbers}):
            pass
    with pytest.raises(MaskError, match="empty_site"):
        hp.prune_(model, hp.HeadMask.empty(heads), empty_site="bogus", verify=False)
