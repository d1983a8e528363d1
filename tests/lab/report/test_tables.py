"""Tables that compare."""

from __future__ import annotations

import pytest

from headprune.lab.report import tables
from headprune.lab.report.lines import Chart, Line, Point
from headprune.stats import holm, paired_t_test
from tests.lab.report.toy import line


def test_methods_are_compared_at_equal_heads():
    """By seed, with an interval, corrected for their number; with fewer than three seeds in common there is none."""
    lines = (line("random", 0.5, 0.6, 0.7), line("best", 0.6, 0.7, 0.81), line("other", 0.51, 0.59, 0.72))
    found = Chart("x", "accuracy", lines).compared()
    assert [(one.name, one.other, one.share, one.seeds) for one in found] == [
        ("best", "random", 0.5, 3), ("other", "random", 0.5, 3)
    ]  # fmt: skip
    raw = [paired_t_test([0.5, 0.6, 0.7], scores).p_value for scores in ([0.6, 0.7, 0.81], [0.51, 0.59, 0.72])]
    assert [one.p for one in found] == pytest.approx(holm(raw))
    assert found[0].gap == pytest.approx((0.1 + 0.1 + 0.11) / 3)
    few = Chart("x", "accuracy", (line("random", 0.5), line("best", 0.6, 0.7))).compared()[0]
    assert (few.interval, few.p) == (None, None)


def test_components_are_compared_with_their_own_random_order():
    """And lines without any random one with each other."""
    lines = tuple(line(name, 0.5, 0.6, 0.7) for name in ("cross, random", "cross, sensitivity", "encoder, sensitivity"))
    assert [(one.name, one.other) for one in Chart("x", "accuracy", lines).compared()] == [
        ("cross, sensitivity", "cross, random")
    ]
    pair = Chart("x", "accuracy", (line("top", 0.5, 0.6, 0.7), line("bottom", 0.6, 0.7, 0.8))).compared()
    assert [(one.name, one.other) for one in pair] == [("top", "bottom")]


def test_how_much_can_go_is_read_by_the_metric():
    """Within one point, with no worse point before: 0.01 of accuracy, and smaller is better where it is."""

    def chart(metric, *scores, **more):
        points = tuple(Point(4 - i, i / 4, {1: (s,)}) for i, s in enumerate(scores))
        return Chart("x", metric, (Line("a", points),), **more)

    assert chart("accuracy", 0.9, 0.895, 0.8, 0.7).most_within(1.0).point.share == 0.25
    assert chart("accuracy", 0.9, 0.85, 0.8, 0.9).most_within(1.0) is None
    assert chart("perplexity", 20.0, 19.0, 30.0).most_within(1.0).point.share == 0.25
    assert chart("accuracy", 0.9, 0.9, of_component=True).most_within(1.0) is None


def test_components_of_unequal_size_have_rows_of_their_own():
    """Six heads left are a quarter of one component and half of another: no number stands in the other's row."""
    small = Line("cross, x", (Point(6, 0.5, {1: (0.5,)}),))
    large = Line("encoder, x", (Point(6, 0.25, {1: (0.7,)}),))
    table = tables.chart_table(Chart("x", "accuracy", (small, large), of_component=True))
    assert table.rows == (("25.0%", "6", "–", "0.7"), ("50.0%", "6", "0.5", "–"))
