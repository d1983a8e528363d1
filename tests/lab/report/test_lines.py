"""Lines over the number of heads."""

from __future__ import annotations

import pytest

from headprune.lab.report.lines import Point, charts_of
from headprune.lab.report.results import read_results
from headprune.stats import mean_interval
from tests.lab.report.toy import trained


def test_lines_are_told_apart_by_what_the_number_of_heads_does_not_tell():
    """Shares are points of one line; patterns with the same number of heads are lines of their own."""
    shares = [trained("cut", {"prune": p}, 1, k, k / 12) for p, k in (("0%", 12), ("50%", 6), ("90%", 1))]
    (chart,) = charts_of(read_results(shares))
    assert [(line.name, len(line.points)) for line in chart.lines] == [("cut", 3)]
    patterns = [trained("cut", {"pattern": p}, 1, 6, s) for p, s in (("top:3", 0.6), ("bottom:3", 0.8))]
    (chart,) = charts_of(read_results([*patterns, trained("whole", {}, 1, 12, 0.9)]))
    assert [line.name for line in chart.lines] == ["cut [pattern top:3]", "cut [pattern bottom:3]", "whole"]
    assert [line.points[0].mean for line in chart.lines] == [0.6, 0.8, 0.9]


def test_bands_are_over_seeds_not_over_orders():
    """Three random orders of one model are one seed."""
    one = Point(6, 0.5, {1: (0.5, 0.6, 0.7)})
    assert one.band == (0.5, 0.7)
    assert one.mean == pytest.approx(0.6)
    three = Point(6, 0.5, {seed: (0.5 + seed / 100, 0.7 + seed / 100) for seed in (1, 2, 3)})
    means = [0.61, 0.62, 0.63]
    expected = mean_interval(means)
    assert three.band == pytest.approx((expected.low, expected.high))
