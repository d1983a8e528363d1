"""`headprune demo`."""

from __future__ import annotations

import json

from tests.command import call


def test_the_demo_ends_with_a_page_and_an_equal_model(tmp_path):
    """On the real MiniLM and real reviews, only fewer of them; run again, it does not train again."""
    words = ("demo", "--train", 64, "--dev", 48, "--epochs", 1, "--out", tmp_path)
    result = json.loads(call(*words, "--json"))
    assert result["heads"][0] == 72
    assert result["heads"][1] <= 72
    assert result["largest_difference_from_masked"] < 1e-4
    assert json.loads((tmp_path / "demo.json").read_text()) == result
    page = (tmp_path / "index.html").read_text()
    assert page.count("plotly-graph-div") == 3
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000
    assert (tmp_path / "data" / "train.csv").read_text().count("\n") >= 65
    told = call(*words)
    assert "$ headprune finetune" not in told
    assert "$ headprune prune" in told
