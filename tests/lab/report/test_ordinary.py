"""A report of what single commands wrote: score, curve, ablate, shrink, prune, evaluate."""

from __future__ import annotations

import json

import pytest

from headprune.lab.report.ordinary import ordinary_content
from tests.command import answered, call, invoked


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """Each command into a folder of its own below one, as people do it."""
    out, data = tmp_path_factory.mktemp("work"), ("--data-dir", trained / "data")
    tuned, scores = trained / "tuned", trained / "scores" / "scores.json"
    call("score", tuned, *data, "--out", out / "scores")
    call("curve", tuned, *data, "--scores", scores, "--random", 1, "--steps", 4, "--out", out / "curve")
    call("ablate", tuned, *data, "--out", out / "ablation")
    call("shrink", tuned, "--task", "sst2", *data, "--macs", "60%", "--length", 16, "--out", out / "small")
    call("evaluate", out / "small", "--against", tuned, "--split", "dev", *data, "--out", out / "evaluation")
    call("prune", tuned, "--scores", scores, "--prune", "50%", "--out", out / "pruned")
    return out


def test_every_file_is_told(folder):
    """By its name, with what it says."""
    found = dict(ordinary_content([folder]).facts)
    assert set(found) == {
        "scores/scores.json", "curve/curve.json", "ablation/ablation.json", "ablation/scores.json", "small/shrink.json",
        "evaluation/evaluation.json", "pruned/prune.json",
    }  # fmt: skip
    assert not any("cannot be read" in told for told in found.values()), found


def test_what_was_stored_is_on_the_page(folder):
    """Scores on the map, the curve on one slider, the smaller model on another."""
    content = ordinary_content([folder])
    stored = json.loads((folder / "curve" / "curve.json").read_text())["curves"]["sensitivity"][0]["points"]
    assert [point.score for point in content.ways[0].points] == [point["score"] for point in stored]
    shrunk = json.loads((folder / "small" / "shrink.json").read_text())
    last = content.ways[-1].points[-1]
    assert (last.macs, last.heads, last.neurons) == tuple(
        shrunk["after"][name] for name in ("macs", "heads", "neurons")
    )
    assert {site.id: site.heads for site in content.sites if site.is_neurons} == {"neurons.0": 48, "neurons.1": 48}
    change = json.loads((folder / "ablation" / "ablation.json").read_text())["heads"]["encoder.1:2"]["change"]
    assert content.worth.changes["encoder.1"][2] == change


def test_the_command_makes_pages(folder, tmp_path):
    """HTML to play with, Markdown for a card."""
    told = answered("report", folder, "--out", tmp_path / "page.html", "--out", tmp_path / "card.md")
    assert len(told["facts"]) == 7
    assert "p-content" in (tmp_path / "page.html").read_text()
    assert "curve/curve.json" in (tmp_path / "card.md").read_text()


def test_a_damaged_file_is_told_and_the_others_shown(folder, tmp_path):
    """Its name, and what is wrong with it."""
    import shutil

    shutil.copytree(folder, tmp_path / "work")
    (tmp_path / "work" / "curve" / "curve.json").write_text('{"curves": 3}')
    found = dict(ordinary_content([tmp_path / "work"]).facts)
    assert "cannot be read" in found["curve/curve.json"]
    assert "sensitivity" in found["scores/scores.json"]


def test_an_empty_folder_is_told(tmp_path):
    """With what is expected there."""
    from headprune.errors import StoreError

    with pytest.raises(StoreError, match=r"scores\.json"):
        invoked("report", tmp_path, "--out", tmp_path / "page.html")
