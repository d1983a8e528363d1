"""Small things that stop people: what is told where something else was meant."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import DataError, MaskError, UnsupportedModelError
from tests.command import call, invoked
from tests.tasks.toy import sentences, tokenizer, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def model(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).eval()


def test_text_labels_on_an_untuned_model_are_told_as_what_they_are(folder, tmp_path):
    """And that it must be fine-tuned first."""
    rows = "\n".join(f"{text}\t{'good' if label else 'bad'}" for text, label in sentences(20, 0))
    (tmp_path / "own.tsv").write_text(f"text\tlabel\n{rows}\n")
    own = ("--task", "own", "--text", "text", "--label", "label", "--train-file", tmp_path / "own.tsv")
    with pytest.raises(DataError, match=r"labels are text.*headprune finetune"):
        invoked("score", folder, *own, "--out", tmp_path / "out")


def test_two_amounts_are_told_as_two(folder):
    """By their names."""
    with pytest.raises(MaskError, match=r"two amounts, --prune and --macs"):
        invoked("prune", folder, "--prune", "50%", "--macs", "50%", "--dry-run")


@pytest.mark.parametrize("method", ["magnitude", "random"])
def test_methods_that_look_at_no_data_need_none(folder, tmp_path, method):
    """Neither to score nor to prune."""
    assert "on no data" in call("score", folder, "--method", method, "--out", tmp_path / "scores")
    assert "would remove 4 of 8 heads" in call("prune", folder, "--method", method, "--prune", "50%", "--dry-run")


def test_a_refused_plain_names_standalone(folder, tmp_path):
    """Which takes any pruned model."""
    call("prune", folder, "--prune", "50%", "--out", tmp_path / "half")
    with pytest.raises(UnsupportedModelError, match="standalone"):
        invoked("export", tmp_path / "half", "--format", "plain", "--out", tmp_path / "plain")


def test_a_label_that_the_model_does_not_have_is_told(model):
    """Not as `Target 8 is out of bounds` alone."""
    batch = {**tokenizer()(["the film"], return_tensors="pt"), "labels": torch.tensor([8])}
    with pytest.raises(DataError, match="2 classes"):
        hp.score(model, [batch])


def test_no_data_is_told(model):
    """Not as an error of Python."""
    with pytest.raises(DataError, match=r"no data \(None\)"):
        hp.search(model, None, prune=0.5)


def test_a_dataset_is_taken_as_it_comes(model):
    """Ragged, with its text: the same scores as by padded batches."""
    rows = sentences(12, 0)
    plain = Dataset.from_dict({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    encoded = plain.map(lambda row: tokenizer()(row["text"]), batched=True)
    padded = tokenizer()([text for text, _ in rows], padding=True, return_tensors="pt")
    batches = [{**padded, "labels": torch.tensor([label for _, label in rows])}]
    found, expected = hp.score(model, encoded, batch_size=4), hp.score(model, batches)
    assert found.scores["encoder.1"] == pytest.approx(expected.scores["encoder.1"], rel=1e-4)
    with pytest.raises(DataError, match="Tokenize it first"):
        hp.score(model, plain)


def test_a_seed_below_zero_is_refused(folder):
    """By the option's name."""
    done = invoked("prune", folder, "--prune", "50%", "--seed", "-1", "--dry-run")
    assert done.exit_code == 2
    assert "--seed" in done.output


def test_chance_is_told_before_and_after(folder):
    """Also where nothing is done yet; and a map shows what stays."""
    told = call("prune", folder, "--prune", "50%", "--dry-run")
    assert "chosen at random (seed 0" in told
    assert told.count("■") == 4
    assert told.count("·") == 4
    assert "% fewer MACs" in told


def test_all_heads_are_told_as_all(folder):
    """`--prune 100%` is understood as it is written."""
    assert "would remove all 8 heads" in call("prune", folder, "--prune", "100%", "--dry-run")


def test_inspect_shows_heads_and_neurons(folder):
    """As squares and bars of at most 80 columns."""
    told = call("inspect", folder)
    assert "■ ■ ■ ■" in told
    assert "48 of 48" in told
    assert max(len(line) for line in told.splitlines() if "■" in line) <= 80


def test_a_pipe_gets_no_colour(folder, programs, tmp_path):
    """Nor the words of other libraries."""
    done = programs.run("-m", "headprune", "inspect", folder, cwd=tmp_path)
    assert "\x1b" not in done.stdout + done.stderr
    assert "Failed to load" not in done.stderr
    assert "W1" not in done.stderr


def test_other_libraries_are_quiet_unless_somebody_debugs(folder):
    """By their loggers."""
    call("inspect", folder)
    assert not logging.getLogger("torchao").isEnabledFor(logging.WARNING)
    assert sys.modules["headprune.quiet"].NOISY
