"""`headprune curve`."""

from __future__ import annotations

import itertools
import json

import pytest
from typer.testing import CliRunner

from headprune.cli.app import app
from headprune.errors import DataError, HeadpruneError
from headprune.heads import HeadScores
from tests.command import call
from tests.tasks.toy import write_data, write_model


def test_a_curve_starts_whole_and_ends_empty(trained, tmp_path):
    """In the order of the scores, at random with a band, and re-scored."""
    result = json.loads(call(
        "curve", trained / "tuned", "--data-dir", trained / "data", "--scores", trained / "scores" / "scores.json",
        "--random", 2, "--rescore", "--steps", 4, "--out", tmp_path, "--json",
    ))  # fmt: skip
    assert {name: len(runs) for name, runs in result["curves"].items()} == {
        "sensitivity": 1,
        "random": 2,
        "sensitivity, re-scored": 1,
    }
    for runs in result["curves"].values():
        for run in runs:
            assert [point["pruned"] for point in run["points"]] == [0, 2, 4, 6, 8]
            kept = [{(s, h) for s, hs in p["kept"].items() for h in hs} for p in run["points"]]
            assert all(later <= earlier for earlier, later in itertools.pairwise(kept))
            assert run["points"][0]["score"] > 0.9
            assert 0.3 < run["points"][-1]["score"] < 0.7
    assert (tmp_path / "curve.html").exists()


def test_curves_over_training(trained, tmp_path):
    """One curve per checkpoint, in the order of training (Michel et al., Figure 5)."""
    data = ("--data-dir", trained / "data")
    call("finetune", trained / "model", *data, "--epochs", 3, "--lr", 3e-3, "--batch-size", 20, "--keep-checkpoints",
         "--out", tmp_path / "run", "--json")  # fmt: skip
    folder = tmp_path / "run" / "checkpoints"
    assert len(list(folder.glob("checkpoint-*"))) == 3
    words = ("curve", tmp_path / "run", *data, "--checkpoints", folder, "--steps", 2, "--out", tmp_path / "curves")
    result = json.loads(call(*words, "--json"))
    assert list(result["curves"]) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    assert all(len(run[0]["points"]) == 3 for run in result["curves"].values())
    assert not (tmp_path / "curves" / "unfinished").exists()
    with pytest.raises(DataError, match="no checkpoints"):
        call("curve", tmp_path / "run", *data, "--checkpoints", tmp_path / "curves", "--out", tmp_path / "c")


def test_a_curve_of_really_removed_heads_is_that_of_masked_ones(trained, tmp_path):
    """Removal equals masking, point by point; pictures as files for papers."""
    words = ("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 2, "--steps", 4, "--json")
    masked = json.loads(call(*words, "--out", tmp_path / "a", "--picture", "png"))
    removed = json.loads(call(*words, "--out", tmp_path / "b", "--picture", "svg", "--removed"))
    assert removed["removed"]
    assert masked["curves"] == removed["curves"]
    assert (tmp_path / "a" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "b" / "curve.svg").read_text()
    with pytest.raises(HeadpruneError, match="No component called 'decodr'"):
        call(*words, "--out", tmp_path / "c", "--components", "decodr")
    with pytest.raises(DataError, match="no heads in decoder"):
        call(*words, "--out", tmp_path / "c", "--components", "decoder")
    assert CliRunner().invoke(app, ["curve", "m", "--out", str(tmp_path), "--picture", "gif"]).exit_code == 2


def test_curve_and_prune_cut_the_same_heads(tmp_path):
    """One view of a score; two files of one method are two lines."""
    data, model = write_data(tmp_path / "data", 30, 20), write_model(tmp_path / "model")
    where = ("--data-dir", data)
    for name, seed in (("a", 0), ("b", 1)):
        call("score", model, *where, "--method", "ablation", "--examples", 12, "--seed", seed, "--out", tmp_path / name)
    files = [tmp_path / name / "scores.json" for name in ("a", "b")]
    told = call("curve", model, *where, "--scores", files[0], "--scores", files[1], "--random", 0, "--steps", 2,
                "--out", tmp_path / "curve", "--json")  # fmt: skip
    curves = json.loads(told)["curves"]
    assert len(curves) == 2
    kept = next(run for name, (run,) in curves.items() if str(files[0]) in name)["points"][1]["kept"]
    cut = json.loads(call("prune", model, "--scores", files[0], "--prune", "50%", "--dry-run", "--json"))
    gone = {f"{site}:{head}" for site, heads in cut["removed"].items() for head in heads}
    assert gone == {f"{site}:{head}" for site in kept for head in range(4) if head not in kept[site]}
    assert HeadScores.from_json(files[0].read_text()).view == "none"
