"""What the page says in sentences is what its own tables show."""

from __future__ import annotations

import random
import re

import pytest

from headprune.lab.report import tables
from headprune.lab.report.gather import Report
from headprune.lab.report.lines import Chart, Line, Point, charts_of
from headprune.lab.report.results import read_results
from headprune.tasks.metrics import metric_called
from tests.lab.report.toy import trained

HEADS = 20


def report_of(*charts):
    return Report(
        title="", records=(), told=(), subjects=(), charts=tuple(charts), sizes=(), speeds=(), waiting=0
    )  # fmt: skip


def random_chart(seed, metric):
    """Lines with and without a point for all heads, with scores that four digits tell exactly."""
    chosen = random.Random(seed)
    lines = []
    for name in ("random", "best", "cut")[: chosen.randint(1, 3)]:
        pruned = [p for p in range(0, HEADS, 2) if chosen.random() < (0.5 if p else 0.7)]
        points = [Point(HEADS - p, p / HEADS, {1: (0.8 - chosen.randint(-2, 2) * 0.008,)}) for p in pruned]
        lines.append(Line(name, tuple(points), name))
    of_component = chosen.random() < 0.2
    return Chart(f"chart {seed}", metric, tuple(line for line in lines if line.points), of_component)


def read_off(chart):
    """How far each column of the table goes within a point of what it has without pruning, by the text of its cells."""
    metric = metric_called(chart.metric)
    rows = tables.chart_table(chart).rows
    whole = [float(cell) for row in rows if row[0] == "0.0%" for cell in row[2:] if cell != "–"]
    if chart.of_component or not whole or len(rows) < 2:
        return None
    furthest = 0.0
    for column in range(2, len(rows[0])):
        cells = [(float(row[0].rstrip("%")), float(row[column])) for row in rows if row[column] != "–"]
        own = cells[0][1] if cells[0][0] == 0 else max(whole) if metric.larger_is_better else min(whole)
        for share, score in cells:
            if metric.gain(own, score) < -metric.point - 1e-9:
                break
            furthest = max(furthest, share)
    return furthest


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_how_far_it_goes_is_read_off_the_tables(metric):
    """Over 300 pages of one or two charts, the sentence is the one that a reader of the tables would write."""
    told = set()
    for seed in range(300):
        charts = [random_chart(seed, metric), *([random_chart(-seed, metric)] if seed % 3 == 0 else [])]
        charts = [chart for chart in charts if chart.lines]
        seen = [found for chart in charts if (found := read_off(chart)) is not None]
        sentence = report_of(*charts).summary()[1]
        if not seen:
            assert sentence == "Nothing here tells what it costs to prune heads."
        elif not max(seen):
            assert sentence.startswith("No way of choosing heads stayed within one point"), (seed, sentence)
        else:
            assert float(re.search(r"up to ([\d.]+)% of heads", sentence)[1]) == max(seen), (seed, sentence)
        told.add(sentence.split()[0])
    assert told == {"Nothing", "No", "The"}


def test_a_line_goes_by_the_whole_model_of_another():
    """Models trained with fewer heads have no point of their own for all heads; the step of the whole model has."""
    records = [trained("whole", {}, 1, 12, 0.9), trained("cut", {"share": "50%"}, 1, 6, 0.895)]
    sentence = report_of(*charts_of(read_results(records))).summary()[1]
    assert "up to 50.0% of heads pruned (0.9 with all, 0.895 without them; cut, " in sentence
