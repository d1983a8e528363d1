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
from headprune.heads import HeadId
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.report import gather, html_page, markdown_page, tables
from headprune.lab.report.lines import Chart, Line, Point, charts_of
from headprune.lab.report.subjects import left_by_site
from headprune.stats import holm, mean_interval, paired_t_test


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
    assert "headprune run toy.toml --input text=TEXT --out RUNS" in page  # a file of one's own, with its own seeds
    assert page.count('<th scope="row">decoder.1:3</th>') == 3  # every head is in a table, too, of each model
    assert len(report.summary()) == 3
    assert all(sentence.endswith(".") for sentence in report.summary())


def test_the_page_needs_nothing_else(runs):
    """No address outside, and a rule that forbids any."""
    page = html_page(gather([runs]))
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", ours)


def test_text_from_files_is_never_markup(runs, tmp_path):
    """A script or a link in a label, a step, an order, a metric or a title is shown as it is."""
    bad = "</script><script>alert(1)</script>|<a href='https://evil.example'>%{x}</a>\r\r# heading"
    store = Store(tmp_path / "bad")
    run_sweep([Trial(work="echo", step=bad, label=bad)], store, Inline())
    for record in Store(runs):
        result = dict(record.result)
        if "curves" in result:
            lines = {f"{order}{bad}": found for order, found in result["curves"].items()}
            for runs_ in lines.values():
                for run in runs_:
                    run["metric"] = bad
            result["curves"] = lines
        trial = replace(record.trial, label=f"{record.trial.label}{bad}", step=f"{record.trial.step}{bad}")
        store.put(replace(record, trial=trial, result=result))
    page, text = html_page(gather([store.folder], bad)), markdown_page(gather([store.folder], bad))
    assert "alert(1)" in page
    for mark in ("<script>alert", "<a href='https://evil"):
        assert mark not in page
        assert mark not in text.replace("\\<", "")
    assert "\r" not in text
    figures = json.dumps(data_of(page, "figures"))
    assert "evil.example" in figures
    assert "<a" not in figures
    assert not re.search(r"^# heading", text, re.M)
    assert len(data_of(page, "subjects")) == 3


def test_the_command_writes_pages_and_says_what_they_say(runs, tmp_path):
    """HTML and Markdown in one call; JSON for programs; wrong input is told."""
    done = call("report", runs, "-o", tmp_path / "a.html", "-o", tmp_path / "a.md", "--title", "Mine")
    assert "30 trials of toy (small) with seeds 1, 2 and 3" in done.stdout
    assert "<title>Mine</title>" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.md").read_text().startswith("# Mine\n")
    told = json.loads(call("report", runs, "-o", tmp_path / "a.md", "--json").stdout)
    assert (told["trials"], told["failed"]) == (30, 0)
    assert [(one["preset"], one["scale"], len(one["claims"])) for one in told["presets"]] == [("toy", "small", 1)]
    for words, match in (
        ((runs, "-o", tmp_path / "a.pdf"), "expected .html or .md"),
        ((tmp_path / "nowhere", "-o", tmp_path / "a.md"), "holds no results"),
        ((runs, "-o", tmp_path / "a.md", "--preset", "tay"), "Did you mean 'toy'"),
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


def trained(step, values, seed, kept, score, every=12):
    """A record of a model that was trained with so many heads."""
    params = {"command": "finetune", "arguments": ["{cut}"], "options": {}, "values": values}
    result = {"task": "sst2", "kept": {"encoder.0": list(range(kept))}, "original": {"encoder.0": every},
              "dev": {"metric": "accuracy", "score": score}}  # fmt: skip
    return Record(trial=Trial(work="command", params=params, seed=seed, step=step), status="done", result=result)


def test_lines_are_told_apart_by_what_the_number_of_heads_does_not_tell():
    """Shares are points of one line; patterns with the same number of heads are lines of their own."""
    shares = [trained("cut", {"prune": p}, 1, k, k / 12) for p, k in (("0%", 12), ("50%", 6), ("90%", 1))]
    (chart,) = charts_of(shares)
    assert [(line.name, len(line.points)) for line in chart.lines] == [("cut", 3)]
    patterns = [trained("cut", {"pattern": p}, 1, 6, s) for p, s in (("top:3", 0.6), ("bottom:3", 0.8))]
    (chart,) = charts_of([*patterns, trained("whole", {}, 1, 12, 0.9)])
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


def line(name, *scores, share=0.5):
    whole = Point(12, 0.0, dict.fromkeys(range(len(scores)), (0.9,)))
    points = (whole, Point(6, share, {seed: (score,) for seed, score in enumerate(scores)}))
    component, _, order = name.rpartition(", ")
    return Line(name, points, order, (component, ""))


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

    assert chart("accuracy", 0.9, 0.895, 0.8, 0.7).most_within(1.0)[1].share == 0.25
    assert chart("accuracy", 0.9, 0.85, 0.8, 0.9).most_within(1.0) is None
    assert chart("perplexity", 20.0, 19.0, 30.0).most_within(1.0)[1].share == 0.25
    assert chart("accuracy", 0.9, 0.9, of_component=True).most_within(1.0) is None


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


def test_components_of_unequal_size_have_rows_of_their_own():
    """Six heads left are a quarter of one component and half of another: no number stands in the other's row."""
    small = Line("cross, x", (Point(6, 0.5, {1: (0.5,)}),))
    large = Line("encoder, x", (Point(6, 0.25, {1: (0.7,)}),))
    table = tables.chart_table(Chart("x", "accuracy", (small, large), of_component=True))
    assert table.rows == (("25.0%", "6", "–", "0.7"), ("50.0%", "6", "0.5", "–"))


def test_names_that_are_no_sites_spoil_no_page(tmp_path):
    """A result that somebody made up."""
    params = {"command": "prune", "arguments": ["x"], "options": {}, "values": {}}
    result = {"original": {"nowhere": 3}, "kept": {"nowhere": [0]}}
    store = Store(tmp_path)
    store.put(Record(trial=Trial(work="command", params=params), status="done", result=result))
    assert gather([tmp_path]).subjects == ()
    assert "nowhere" not in html_page(gather([tmp_path]))
