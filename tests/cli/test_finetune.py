"""`headprune finetune`."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import CheckpointError, DataError
from tests.command import call
from tests.tasks.toy import sentences, tokenizer, write_data, write_model, write_rows


def test_finetuning_under_a_mask_starts_from_the_pruned_model(trained, tmp_path):
    """Budhraja: mask first, then train; and a teacher."""
    heads = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(trained / "model"))
    (tmp_path / "mask.json").write_text(hp.HeadMask.from_dict(heads, {"encoder.0": [0]}).to_json())
    call("finetune", trained / "model", "--data-dir", trained / "data", "--mask", tmp_path / "mask.json", "--epochs", 1,
         "--teacher", trained / "tuned", "--out", tmp_path / "masked", "--json")  # fmt: skip
    assert "encoder.0  ■ · · ·" in call("inspect", tmp_path / "masked")


def test_checkpoints_of_another_run_are_not_resumed(tmp_path):
    """Other settings in the same folder are refused; the same ones go on, and what they finished is kept."""
    data, model = write_data(tmp_path / "data", 40, 20), write_model(tmp_path / "model")
    words = ("finetune", model, "--data-dir", data, "--epochs", 1, "--out", tmp_path / "out", "--json")
    first, weights = json.loads(call(*words, "--lr", 1e-3)), tmp_path / "out" / "model.safetensors"
    before = weights.stat()
    assert json.loads(call(*words, "--lr", 1e-3)) == first
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert "by this very command and is kept" in call(*words[:-1], "--lr", 1e-3)
    with pytest.raises(CheckpointError, match="`headprune finetune` made of other inputs or settings"):
        call(*words, "--lr", 1e-5)
    weights.unlink()
    (tmp_path / "out" / "config.json").unlink()  # as if it had been stopped before it was saved
    with pytest.raises(DataError, match="another model, other data or other settings"):
        call(*words, "--lr", 1e-5)
    assert json.loads(call(*words, "--lr", 1e-3)) == first
    assert json.loads(call(*words, "--lr", 1e-5, "--force")) != first


def test_a_head_that_is_trained_further_keeps_its_order(tmp_path):
    """A model with its own names for the classes does not have them swapped."""
    rows = [{"text": text, "mood": "pos" if label else "neg"} for text, label in sentences(200, 0)]
    for split in ("train", "dev"):
        write_rows(tmp_path / "data", split, rows)
    words = ("--task", "mood", "--text", "text", "--label", "mood", "--data-dir", tmp_path / "data", "--batch-size", 20,
             "--json")  # fmt: skip
    call("finetune", write_model(tmp_path / "m"), *words, "--epochs", 6, "--lr", 3e-3, "--out", tmp_path / "first")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "first")
    assert model.config.id2label == {0: "neg", 1: "pos"}
    with torch.no_grad():  # the same model with its classes the other way round
        model.classifier.weight.copy_(model.classifier.weight.flip(0))
        model.classifier.bias.copy_(model.classifier.bias.flip(0))
    model.config.id2label, model.config.label2id = {0: "pos", 1: "neg"}, {"pos": 0, "neg": 1}
    model.save_pretrained(tmp_path / "turned")
    tokenizer().save_pretrained(tmp_path / "turned")
    told = call("finetune", tmp_path / "turned", *words, "--epochs", 0.1, "--lr", 1e-9, "--out", tmp_path / "second")
    assert json.loads(told[told.index("{") :])["dev"]["score"] > 0.9
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second")
    assert again.config.id2label == {0: "pos", 1: "neg"}
    with pytest.raises(CheckpointError, match="teacher's classes"):
        call("finetune", tmp_path / "first", *words, "--teacher", tmp_path / "turned", "--out", tmp_path / "third")
