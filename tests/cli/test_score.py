"""`headprune score`."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForSequenceClassification

from headprune.heads import HeadScores
from headprune.scoring.resumable import score_in_parts
from headprune.tasks import Source, find_task
from tests.command import call
from tests.tasks.toy import tokenizer


def test_scores_are_written_with_a_picture(trained):
    """Method, data and count on record."""
    scores = HeadScores.from_json((trained / "scores" / "scores.json").read_text())
    assert (scores.method, scores.data) == ("sensitivity", "sst2 train, 200 examples")
    assert scores.counts["encoder.0"] == 200.0
    assert (trained / "scores" / "scores.html").stat().st_size < 100_000
    assert (trained / "scores" / "plotly.min.js").exists()
    assert not (trained / "scores" / "unfinished").exists()


def test_an_interrupted_scoring_goes_on(trained, tmp_path, monkeypatch):
    """Nothing is scored twice, and the result is the same."""

    model = AutoModelForSequenceClassification.from_pretrained(trained / "tuned")
    rows = find_task("sst2").load(Source(trained / "data" / "sst2"), "train", tokenizer(), 64)
    batches = [{k: v for k, v in b.items() if k != "row"} for b in rows.batches(batch_size=10)]
    whole = score_in_parts(model, batches, tmp_path / "a")
    seen = []

    def stop_late(step):
        seen.append(step)
        if len(seen) == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_in_parts(model, batches, tmp_path / "b", progress=stop_late)
    assert (tmp_path / "b").exists()
    steps = []
    resumed = score_in_parts(model, batches, tmp_path / "b", progress=steps.append)
    assert resumed == whole
    assert steps.count("scoring") == 4
    assert not (tmp_path / "b").exists()


def test_the_folder_of_scores_stands_for_its_file(trained):
    """As `score --out` wrote it."""
    words = ("prune", trained / "tuned", "--prune", "50%", "--dry-run", "--json", "--scores")
    assert call(*words, trained / "scores") == call(*words, trained / "scores" / "scores.json")


def test_scores_without_data_are_computed_once(trained, tmp_path):
    """`magnitude` reads no data, whatever the number of batches."""
    call("score", trained / "tuned", "--method", "magnitude", "--data-dir", trained / "data", "--out", tmp_path)
    assert HeadScores.from_json((tmp_path / "scores.json").read_text()).counts == {"encoder.0": 1.0, "encoder.1": 1.0}


def test_scorers_are_compared(trained, tmp_path):
    """A score agrees with itself in full; with another as far as its ranks do."""
    where, first = ("--data-dir", trained / "data"), trained / "scores" / "scores.json"
    call("score", trained / "tuned", "--method", "ablation", *where, "--out", tmp_path / "ablation")
    second = tmp_path / "ablation" / "scores.json"
    told = call(
        "score", trained / "tuned", *where, "--against", first, "--against", second, "--out", tmp_path / "again"
    )
    same, other = json.loads((tmp_path / "again" / "agreement.json").read_text())
    assert same["spearman"] == pytest.approx(1.0)
    assert set(same["overlap"].values()) == {1.0}
    assert -1 <= other["spearman"] < 1
    assert other["with"] == "ablation on sst2 train, 200 examples"
    assert "Spearman 1.00" in told
