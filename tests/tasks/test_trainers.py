"""The Trainer: resuming, accumulating, precision."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import DataError
from headprune.gates.trainer import choose_trainable_
from headprune.hooks import recorded
from headprune.tasks import Source, find_task
from headprune.tasks.finetune import finetune
from headprune.tasks.recipe import Recipe
from headprune.tasks.trainers import VALIDATION
from headprune.tasks.translation.presets import new_translator
from tests.tasks.parallel import QUICK, SMALL, task_for


@pytest.fixture
def tokenizer(pair_tokenizer):
    return pair_tokenizer


def learn(folder, tokenizer, pair_folder, **more):
    model = new_translator(SMALL, tokenizer, seed=1)
    task = task_for(tokenizer, model)
    examples = task.load(Source(pair_folder), "train", tokenizer, 60)
    options = {"recipe": QUICK, "validate": lambda _: {"bleu": 0.0}, "quiet": True, **more}
    recipe = options.pop("recipe")
    return finetune(model, tokenizer, task, examples, folder, recipe, **options)


def first_step(folder):
    """What the Trainer logged about the first step: loss and norm of the gradient."""
    (state,) = folder.glob("checkpoint-*/trainer_state.json")
    return {name: json.loads(state.read_text())["log_history"][0][name] for name in ("loss", "grad_norm")}


def test_the_frozen_decoder_keeps_what_it_shares_with_the_encoder(tokenizer):
    """One table of vectors for source, target and output: with the encoder alone, it does not train."""
    model = new_translator(SMALL, tokenizer, seed=1)
    hp.attach_gates(model, "hard-concrete", components=["encoder"])
    choose_trainable_(model, "encoder")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("encoder.layers" in name for name in trained)
    assert not [name for name in trained if "decoder" in name or "shared" in name or "lm_head" in name]


def test_a_checkpoint_that_was_being_written_is_passed_over(tokenizer, pair_folder, tmp_path):
    """Killed while saving: the half checkpoint has no state, and the one before it is taken."""
    whole = learn(tmp_path / "whole", tokenizer, pair_folder, keep_checkpoints=True)
    last = max((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (last / "trainer_state.json").unlink()
    again = learn(tmp_path / "whole", tokenizer, pair_folder, keep_checkpoints=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_an_interrupted_training_goes_on_to_the_same_weights(tokenizer, pair_folder, tmp_path):
    """Stopped in the second epoch, resumed from the first one's checkpoint."""
    whole = learn(tmp_path / "whole", tokenizer, pair_folder)
    seen = []

    def stop(_):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return {"bleu": 1.0}

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "parts", tokenizer, pair_folder, validate=stop)
    resumed = learn(tmp_path / "parts", tokenizer, pair_folder)
    for (name, a), (_, b) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    notes = [json.loads(line) for line in (tmp_path / "parts" / VALIDATION).read_text().splitlines()]
    assert [note["epoch"] for note in notes] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_batches_make_the_step_of_a_large_one(tokenizer, pair_folder, tmp_path, smoothing):
    """The loss is divided by the tokens of all batches of a step, however these are cut: same loss, same gradient."""
    base = replace(QUICK, batch_tokens=None, updates=1, label_smoothing=smoothing)
    learn(tmp_path / "a", tokenizer, pair_folder, recipe=replace(base, batch_size=60))
    learn(tmp_path / "b", tokenizer, pair_folder, recipe=replace(base, batch_size=12, accumulate=5))
    assert first_step(tmp_path / "b") == pytest.approx(first_step(tmp_path / "a"), rel=1e-3)


def test_accumulation_is_right_where_the_model_has_its_own_loss(tmp_path):
    """A classifier's loss is the mean of a batch: four batches of four are one of sixteen."""
    from tests.tasks.toy import tokenizer as words
    from tests.tasks.toy import write_data, write_model

    model, task = write_model(tmp_path / "model"), find_task("sst2")
    rows = task.load(Source(write_data(tmp_path / "data", train=16) / "sst2"), "train", words(), 32)
    base = Recipe(updates=1, learning_rate=1e-3, warmup=0)
    for name, recipe in (("a", replace(base, batch_size=16)), ("b", replace(base, batch_size=4, accumulate=4))):
        learner = AutoModelForSequenceClassification.from_pretrained(model)
        learner.config.hidden_dropout_prob = learner.config.attention_probs_dropout_prob = 0.0
        for module in learner.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        finetune(learner, words(), task, rows, tmp_path / name, recipe, quiet=True)
    assert first_step(tmp_path / "b") == pytest.approx(first_step(tmp_path / "a"), rel=1e-3)


def test_after_mixed_precision_the_model_is_as_before(tokenizer, pair_folder, tmp_path):
    """Scores after training in bf16 are scores in float32, with the attention that the model had."""
    model = learn(tmp_path, tokenizer, pair_folder, recipe=replace(QUICK, epochs=1, bf16=True))
    assert model.config._attn_implementation == "sdpa"
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    with torch.no_grad(), recorded(model) as recording:
        model(**batch)
    kinds = {call.output.dtype for call in recording.calls if isinstance(call.output, torch.Tensor)}
    assert kinds == {torch.float32}
    assert not {"forward", "_original_forward"} & set(vars(model))
    assert model.config.use_cache


def test_a_teacher_and_smoothed_labels_do_not_mix(tokenizer, pair_folder, tmp_path):
    """Both soften the target; one of them is meant."""
    with pytest.raises(DataError, match="soft already"):
        learn(tmp_path, tokenizer, pair_folder, teacher=new_translator(SMALL, tokenizer, seed=2))
