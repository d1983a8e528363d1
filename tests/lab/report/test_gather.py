"""The report tells what the store holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import headprune as hp
from headprune.heads import HeadId
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.trial import Trial
from headprune.lab.report import gather, html_page
from headprune.lab.report.subjects import left_by_site
from tests.lab.report.toy import data_of


def test_a_page_has_the_numbers_of_the_store(runs):
    """Values, heads, scores and curves are those that trials stored."""
    report = gather([runs])
    records = {record.trial.label: record.result for record in Store(runs)}
    (told,) = report.told
    bits = [records[f"model, seed {seed}"]["test"]["score"] for seed in (1, 2, 3)]
    assert told.values[0].found == tuple(bits)
    page = html_page(report)
    assert f"{sum(bits) / 3:.4g}" in page
    first = data_of(page, "subjects")[0]
    assert first["name"] == "model, seed 1"
    raw = records["scores, seed 1"]
    scores = hp.HeadScores.from_dict(raw).normalized("site")
    shown = dict(zip((site["id"] for site in first["sites"]), first["rankings"][0]["values"], strict=True))
    for site, row in scores.items():
        assert shown[site] == pytest.approx(row, rel=1e-3)
    curve = records["curve, seed 1"]["curves"]["sensitivity"][0]["points"]
    drawn = first["rankings"][0]["curve"]
    assert [pair[1] for pair in drawn] == pytest.approx([point["score"] for point in curve], rel=1e-3)
    ablated = records["ablation, seed 1"]["heads"]
    change = first["effects"][0]["change"]
    for head, row in ablated.items():
        place = HeadId.parse(head)
        site = [site["id"] for site in first["sites"]].index(place.site)
        assert change[site][place.index] == pytest.approx(row["change"], rel=1e-3)


def test_the_slider_follows_what_would_really_go(runs):
    """Its order is that of `select`, and the heads left at a curve's point are those of the curve."""
    (subject, *_) = gather([runs]).subjects
    records = {record.trial.label: record.result for record in Store(runs)}
    curve = records["curve, seed 1"]["curves"]["sensitivity"][0]
    ranking = next(ranking for ranking in subject.rankings if ranking.name.startswith("sensitivity"))
    for point in curve["points"]:
        left = left_by_site(subject, ranking.order, point["share"])
        assert left == {site: len(heads) for site, heads in point["kept"].items()}
    oracle = next(ranking for ranking in subject.rankings if ranking.name.startswith("metric-ablation"))
    assert subject.curve_of(ranking).points[2][1] == pytest.approx(curve["points"][2]["score"])
    assert subject.curve_of(oracle).points != subject.curve_of(ranking).points
    for point in records["curve, seed 1"]["curves"]["metric-ablation"][0]["points"]:
        gone = oracle.order[: 8 - sum(len(heads) for heads in point["kept"].values())]
        assert all(head.index not in point["kept"][head.site] for head in gone)


def test_failures_and_what_was_not_run_are_told(runs, tmp_path):
    """A half-done folder has a page, too."""
    import shutil

    half = tmp_path / "half"
    shutil.copytree(runs, half, ignore=shutil.ignore_patterns("work"))
    store = Store(half)
    tuned = [record for record in store if record.trial.step == "tuned"]
    for record in tuned[:2]:
        store.path(record.trial.key()).unlink()
    store.put(replace(tuned[2], status="failed", result={}, error="DataError: no <data> there"))
    report = gather([half])
    assert "(1 failed, 2 not run yet)" in report.summary()[0]
    assert "no &lt;data&gt; there" in html_page(report)


def test_a_model_that_lost_everything_does_not_spoil_the_page(runs, tmp_path):
    """Infinite perplexity is no point of a curve."""
    store = Store(tmp_path / "inf")
    for record in Store(runs):
        result = json.loads(json.dumps(record.result))
        for found in result.get("curves", {}).values():
            for run in found:
                run["points"][-1]["score"] = "inf"
        store.put(replace(record, result=result))
    report = gather([store.folder])
    curves = [chart for chart in report.charts if chart.title.startswith("curve")]
    assert all(point.share < 1.0 for chart in curves for one in chart.lines for point in one.points)
    assert "Infinity" not in html_page(report)


def test_folders_with_other_seeds_of_the_same_work_are_one_run(runs, tmp_path):
    """Trials of both, done rather than failed."""
    import shutil

    for name in ("one", "two"):
        shutil.copytree(runs, tmp_path / name, ignore=shutil.ignore_patterns("work"))
    first, second = Store(tmp_path / "one"), Store(tmp_path / "two")
    for record in list(first):
        if record.trial.seed == 2:
            first.path(record.trial.key()).unlink()
        if record.trial.seed == 3:
            first.put(replace(record, status="failed", result={}, error="DataError: x"))
    report = gather([first.folder, second.folder])
    (told,) = report.told
    assert told.values[0].seeds == (1, 2, 3)
    assert report.failed == []
    assert len(report.records) == 30


def test_names_that_are_no_sites_spoil_no_page(tmp_path):
    """A result that somebody made up."""
    params = {"command": "prune", "arguments": ["x"], "options": {}, "values": {}}
    result = {"original": {"nowhere": 3}, "kept": {"nowhere": [0]}}
    store = Store(tmp_path)
    store.put(Record(trial=Trial(work="command", params=params), status="done", result=result))
    assert gather([tmp_path]).subjects == ()
    assert "nowhere" not in html_page(gather([tmp_path]))
