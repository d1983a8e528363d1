"""The page: complete, alone, and never markup from files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from dataclasses import replace

from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial
from headprune.lab.report import gather, html_page, markdown_page, tables
from tests.lab.report.toy import data_of


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


def test_the_policy_knows_every_script_by_its_hash(runs):
    """No inline script is allowed but the page's own; no handler stands in an attribute."""
    page = html_page(gather([runs]))
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    (allowed,) = re.findall(r"script-src (.*?);", policy)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert allowed.split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(digests) == 2
    assert not re.search(r"<[^>]+\son\w+=", re.sub(r"<script.*?</script>", "", page, flags=re.S))


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
