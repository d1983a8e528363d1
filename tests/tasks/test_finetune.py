"""Fine-tuning: learning, resuming, a teacher."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import DataError
from headprune.files import note_step, noted_steps
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.finetune import Recipe, finetune
from tests.tasks.toy import SST2, examples, sentences, tokenizer, write_data, write_model


def test_fine_tuning_learns_resumes_and_keeps_heads_removed(tmp_path):
    """A pruned model stays pruned: that is the fixed mask."""
    write_data(tmp_path / "data")
    source = Source(tmp_path / "data" / "sst2")
    train, dev = (SST2.load(source, split, tokenizer(), 64) for split in ("train", "dev"))
    write_model(tmp_path / "model")

    def pruned():
        start = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
        return hp.prune_(start, hp.HeadMask.full(hp.find_heads(start)).without("encoder.0:1", "encoder.1:0"))

    model = pruned()
    batches = list(dev.batches())
    recipe = Recipe(epochs=6, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, tokenizer(), SST2, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(model, batches, SST2).score > 0.9
    assert len(hp.find_heads(model)) == 6
    checkpoints = [path.name for path in (tmp_path / "out").glob("checkpoint-*")]
    assert checkpoints == ["checkpoint-60"]
    again = finetune(pruned(), tokenizer(), SST2, train, tmp_path / "out", recipe, quiet=True)
    assert evaluate(again, batches, SST2).score > 0.9


def test_a_run_of_updates_that_was_killed_at_its_end_takes_no_step_more(tmp_path):
    """Seven updates end in the middle of an epoch; a run that goes on from the last of them has nothing left to do."""
    data, folder = examples(tmp_path, sentences(120, 0)), write_model(tmp_path / "model")
    recipe = Recipe(epochs=9, updates=7, learning_rate=3e-3, batch_size=20, seed=0)

    def weights():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        finetune(model, tokenizer(), SST2, data, tmp_path / "out", recipe, quiet=True)
        return model.state_dict()

    whole, again = weights(), weights()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-7"]


def test_a_note_after_half_a_line_is_not_lost(tmp_path):
    """A run may be killed while it writes one."""
    notes = tmp_path / "notes.jsonl"
    note_step(notes, {"step": 1})
    notes.write_text(notes.read_text() + '{"step": 2, "lo')
    note_step(notes, {"step": 2, "loss": 0.5})
    assert noted_steps(notes) == [{"step": 1}, {"step": 2, "loss": 0.5}]


def test_a_teacher_is_followed(tmp_path):
    """With all weight on the teacher, the pupil learns the teacher's answers, not the labels."""
    data = examples(tmp_path, sentences(120, 0))
    folder = write_model(tmp_path / "model")
    teacher = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        teacher.classifier.bias.copy_(torch.tensor([-4.0, 4.0]))  # always says 1
    pupil = AutoModelForSequenceClassification.from_pretrained(folder)
    recipe = Recipe(epochs=4, learning_rate=3e-3, batch_size=20, teacher_weight=1.0, seed=0)
    finetune(pupil, tokenizer(), SST2, data, tmp_path / "out", recipe, teacher=teacher, quiet=True)
    assert evaluate(pupil, list(data.batches()), SST2).predictions.mean() == 1.0


def test_too_little_to_learn_from_is_refused(tmp_path):
    """One example, or one class."""
    model = AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "m"))
    for rows, told in (
        ([("a", 1)], "at least 2"),
        ([("a", 1), ("b", 1)], "one class"),
    ):
        with pytest.raises(DataError, match=told):
            finetune(model, tokenizer(), SST2, examples(tmp_path, rows), tmp_path / "o", Recipe(), quiet=True)
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tneutral\nc\td\tentailment\n")
    mnli = find_task("mnli")
    with pytest.raises(DataError, match="No training example has the class contradiction"):
        mnli.check_training(mnli.load(Source(tmp_path), "train", tokenizer(), 64))
