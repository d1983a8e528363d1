"""The report tells what the store holds, and nothing that comes from a file becomes markup."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.experiments.store import Store
from headprune.experiments.sweep import Inline, run_sweep
from headprune.experiments.trial import Trial
from headprune.heads import HeadId
from headprune.report import gather, html_page, markdown_page, tables
from headprune.report.lines import Chart, Line, Point
from headprune.report.subjects import left_by_site


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def data_of(page, name):
    return json.loads(re.search(rf'id="{name}-data">(.*?)</script>', page, re.S)[1])


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
    ranking = next(ranking for ranking in subject.rankings if ranking.method == "sensitivity")
    for point in curve["points"]:
        left = left_by_site(subject, ranking.order, point["share"])
        assert left == {site: len(heads) for site, heads in point["kept"].items()}
    oracle = next(ranking for ranking in subject.rankings if ranking.method == "metric-ablation")
    for point in records["curve, seed 1"]["curves"]["metric-ablation"][0]["points"]:
        gone = oracle.order[: 8 - sum(len(heads) for heads in point["kept"].values())]
        assert all(head.index not in point["kept"][head.site] for head in gone)


def test_every_section_is_there(runs):
    """On the page and in the Markdown, each picture with its table."""
    report = gather([runs])
    page, text = html_page(report), markdown_page(report)
    for section in ("heads", "curves", "breakdown", "size", "papers", "repeat"):
        assert f'id="{section}"' in page
    assert page.count('class="chart"') == len(report.charts) == len(data_of(page, "figures")) == 2
    for table in (
        tables.values_table(report.told[0]), tables.claims_table(report.told[0]), tables.sizes_table(report),
        tables.speeds_table(report), tables.chart_table(report.charts[0]), tables.comparison_table(report.charts[1]),
        tables.versions_table(report), tables.components_table(report.subjects[0]),
    ):  # fmt: skip
        assert table
        assert table.caption.replace("&", "&amp;").replace("<", "&lt;") in page
        assert f"**{table.caption}**" in text
    assert "headprune run toy --seeds 1,2,3 --input text=TEXT" in page
    assert len(report.summary()) == 3
    assert all(sentence.endswith(".") for sentence in report.summary())


def test_the_page_needs_nothing_else(runs):
    """No address outside, and a rule that forbids any."""
    page = html_page(gather([runs]))
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", ours)


def test_text_from_files_is_never_markup(runs, tmp_path):
    """A label with a script in it is shown as it is."""
    store = Store(tmp_path / "bad")
    bad = "</script><script>alert(1)</script>|<b>"
    run_sweep([Trial(work="echo", step=bad, label=bad)], store, Inline())
    for record in Store(runs):
        store.put(replace(record, trial=replace(record.trial, label=f"{record.trial.label}{bad}")))
    page, text = html_page(gather([store.folder], bad)), markdown_page(gather([store.folder], bad))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert len(data_of(page, "subjects")) == 3


def test_the_command_writes_pages_and_says_what_they_say(runs, tmp_path):
    """HTML and Markdown in one call; JSON for programs; wrong input is told."""
    done = call("report", runs, "-o", tmp_path / "a.html", "-o", tmp_path / "a.md", "--title", "Mine")
    assert "30 trials of toy (small) with seeds 1, 2 and 3" in done.stdout
    assert "<title>Mine</title>" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.md").read_text().startswith("# Mine\n")
    told = json.loads(call("report", runs, "-o", tmp_path / "a.md", "--json").stdout)
    assert (told["trials"], told["failed"], len(told["claims"])) == (30, 0, 1)
    for words, match in (
        ((runs, "-o", tmp_path / "a.pdf"), "expected .html or .md"),
        ((tmp_path / "nowhere", "-o", tmp_path / "a.md"), "holds no results"),
    ):
        with pytest.raises(hp.HeadpruneError, match=match):
            call("report", *words)


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


def test_a_large_folder_becomes_a_page_in_time(runs, tmp_path):
    """1,000 trials in under 20 s and 8 MB: a hundred models with all that is known of them."""
    store = Store(tmp_path / "large")
    records = list(Store(runs))
    keys = {record.trial.key() for record in records}
    for copy in range(34):
        for record in records:
            trial = record.trial

            def other(key, copy=copy):
                return f"{copy:04d}{key[4:]}" if key in keys else key

            needs = {name: other(key) for name, key in trial.needs.items()}
            params = {**trial.params, "copy": copy}
            store.put(replace(record, trial=replace(trial, params=params, needs=needs)))
    assert len(store) == 1020
    begun = time.perf_counter()
    page = html_page(gather([store.folder]))
    assert time.perf_counter() - begun < 20
    assert len(page.encode()) < 8e6


def test_methods_are_compared_at_equal_heads():
    """By seed, with an interval; with fewer than three seeds in common there is none."""

    def line(name, *scores):
        return Line(name, (Point(0.0, {1: (0.9,)}), Point(0.5, {seed: (s,) for seed, s in enumerate(scores)})))

    chart = Chart("x", "accuracy", (line("random", 0.5, 0.6, 0.7), line("best", 0.6, 0.7, 0.81)))
    (found,) = chart.compared()
    assert (found.name, found.reference, found.share, found.seeds) == ("best", "random", 0.5, 3)
    assert found.gap == pytest.approx((0.1 + 0.1 + 0.11) / 3)
    assert found.is_significant
    few = Chart("x", "accuracy", (line("random", 0.5), line("best", 0.6, 0.7))).compared()[0]
    assert few.interval is None
    assert not few.is_significant


def test_how_much_can_go_is_read_by_the_metric():
    """Within one point: 0.01 of accuracy, and smaller is better where it is."""

    def chart(metric, *scores):
        return Chart("x", metric, (Line("a", tuple(Point(i / 4, {1: (s,)}) for i, s in enumerate(scores))),))

    assert chart("accuracy", 0.9, 0.895, 0.8, 0.7).largest_share_within(1.0)[2].share == 0.25
    assert chart("accuracy", 0.9, 0.85, 0.8, 0.7).largest_share_within(1.0) is None
    assert chart("perplexity", 20.0, 19.0, 30.0).largest_share_within(1.0)[2].share == 0.25
