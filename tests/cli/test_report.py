"""`headprune report`."""

from __future__ import annotations

import json

import pytest

import headprune as hp
from tests.command import invoked


@pytest.mark.long
def test_the_command_writes_pages_and_says_what_they_say(runs, tmp_path):
    """HTML and Markdown in one call; JSON for programs; wrong input is told."""
    done = invoked("report", runs, "-o", tmp_path / "a.html", "-o", tmp_path / "a.md", "--title", "Mine")
    assert "30 trials of toy (small) with seeds 1, 2 and 3" in done.stdout
    assert "<title>Mine</title>" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.md").read_text().startswith("# Mine\n")
    told = json.loads(invoked("report", runs, "-o", tmp_path / "a.md", "--json").stdout)
    assert (told["trials"], told["failed"]) == (30, 0)
    assert [(one["preset"], one["scale"], len(one["claims"])) for one in told["presets"]] == [("toy", "small", 1)]
    for words, match in (
        ((runs, "-o", tmp_path / "a.pdf"), "expected .html or .md"),
        ((tmp_path / "nowhere", "-o", tmp_path / "a.md"), "holds no results"),
        ((runs, "-o", tmp_path / "a.md", "--preset", "tay"), "Did you mean 'toy'"),
    ):
        with pytest.raises(hp.HeadpruneError, match=match):
            invoked("report", *words)
