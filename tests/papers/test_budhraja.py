"""Known numbers of Budhraja et al. 2020."""

from __future__ import annotations

import pytest

from headprune.lab.experiments.values import Observed


def test_the_spread_over_samplings_is_a_share_of_the_mean():
    """Budhraja et al. tell 0.668 % and 0.778 % of theirs."""
    assert Observed("x", None, (0.90, 0.91, 0.92), (1, 2, 3)).spread == pytest.approx(0.01 / 0.91)
    assert Observed("x", None, (0.90, 0.91), (1, 2)).spread is None
