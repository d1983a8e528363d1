"""`headprune demo`."""

from __future__ import annotations

import json
import shutil

import pytest

from headprune.lab.playground.content import Content
from tests.command import call
from tests.conftest import FEW_REVIEWS


@pytest.mark.long
def test_the_demo_ends_with_a_page_and_an_equal_model(demonstrated):
    """On the real MiniLM and real reviews, only fewer of them."""
    out, told = demonstrated / "demo-out", (demonstrated / "told.txt").read_text()
    result = json.loads((out / "demo.json").read_text())
    assert result["heads"][0] == 72
    assert result["heads"][1] < 72
    assert len(result["accuracy"]) == 2
    assert result["largest_difference_from_masked"] < 1e-4
    assert result["macs"][1] <= 0.33 * result["macs"][0]
    assert (out / "index.html").stat().st_size < 3_000_000
    shown = Content.from_json((out / "index.json").read_text())
    assert [len(way.points) for way in shown.ways] == [9, 3]
    assert shown.labels == ("negative", "positive")
    last = shown.ways[1].points[-1]
    assert (last.heads, last.neurons, last.macs) == (result["heads"][1], result["neurons"][1], result["macs"][1])
    assert all(f"{step} of 5" in told for step in range(1, 6))
    assert "╭──" in told
    assert (out / "data" / "train.csv").read_text().count("\n") >= 33
    assert "$ headprune finetune" in told
    assert "$ headprune shrink" in told


@pytest.mark.long
def test_the_demo_run_again_does_not_train_again(demonstrated, tmp_path, monkeypatch):
    """What it tells programs is what it stored."""
    shown = []
    monkeypatch.setattr("headprune.cli.options._Shown.tell", lambda self, text: shown.append(text))
    shutil.copytree(demonstrated / "demo-out", tmp_path / "demo-out")
    result = json.loads(call(*FEW_REVIEWS, "--out", tmp_path / "demo-out", "--json"))
    assert json.loads((tmp_path / "demo-out" / "demo.json").read_text()) == result
    assert "$ headprune finetune" not in "\n".join(shown)
    assert "$ headprune shrink" in "\n".join(shown)
