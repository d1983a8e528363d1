"""A stored result is understood, or what is wrong with it is on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headprune.lab.experiments.store import Store
from headprune.lab.report import gather, html_page, markdown_page
from headprune.lab.report.results import Problem
from tests.lab.experiments.toy import preset, ran
from tests.lab.report.toy import trained


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kept": {"encoder.0": "all"}}, ("kept.encoder.0", "'all'", "a list")),
        ({"dev": 0.9}, ("dev", "0.9", "a table")),
        ({"original": {"encoder.0": 0}}, ("original", "0 heads", "those that the model had")),
    ],
)
def test_a_result_of_another_shape_is_told_on_the_page(tmp_path, change, problem):
    """Trial, field, found and expected; the others are shown as ever."""
    store = Store(tmp_path)
    records = [trained("cut", {"prune": f"{kept}"}, 1, kept, kept / 12) for kept in (12, 6, 1)]
    for record in records[:2]:
        store.put(record)
    third = replace(records[2].trial, label="the third")
    store.put(replace(records[2], result={**records[2].result, **change}, trial=third))
    report = gather([tmp_path])
    assert report.problems == (Problem("the third", *problem),)
    assert [len(line.points) for chart in report.charts for line in chart.lines] == [2]
    for page in (html_page(report), markdown_page(report)):
        assert "Stored, and not shown" in page
        assert "the third" in page
        assert problem[2] in page


def test_a_preset_that_cannot_be_read_any_more_is_told(tmp_path):
    """Not left out without a word."""
    store = Store(tmp_path)
    ran(store, preset())
    notes = tmp_path / "run.json"
    notes.write_text(notes.read_text().replace("is = ", "iss = "))
    (problem,) = gather([tmp_path]).problems
    assert problem.trial == "mine"
    assert "unknown field 'iss'" in problem.found


def test_results_of_two_versions_are_not_mixed(tmp_path):
    """Each has lines and a chart of its own, and the sentence about heads is of today's."""
    store = Store(tmp_path)
    for kept in (12, 6):
        record = trained("cut", {"prune": f"{kept}"}, 1, kept, kept / 12)
        store.put(record)
        store.put(replace(record, trial=replace(record.trial, version="0.1.0")))
    report = gather([tmp_path])
    assert sorted((chart.made_by, len(chart.lines)) for chart in report.charts) == [("", 1), ("0.1.0", 1)]
    assert all(len(point.by_seed[1]) == 1 for chart in report.charts for line in chart.lines for point in line.points)
    assert "made by 0.1.0" not in report.summary()[1]
    assert "made by 0.1.0" in html_page(report)
