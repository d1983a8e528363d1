"""Training over a memory: the loss, resuming, accumulation; gates and their export."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.files import noted_steps
from headprune.gates import Objective
from headprune.structure.run import difference
from headprune.tasks import evaluate, finetune
from headprune.tasks.finetune import Gating
from headprune.tasks.recipe import Recipe
from headprune.tasks.tables import Source
from headprune.tasks.text import StreamTask
from headprune.tasks.text.streams import Segments, StreamBatches, StreamRows
from headprune.tasks.text.symbols import make_symbols
from headprune.tasks.trainers import VALIDATION
from tests.tasks.text.toy import fresh, gated

RECIPE = Recipe(updates=12, epochs=100, learning_rate=5e-3, batch_size=4, max_length=5, warmup=2, schedule="cosine",
                floor=0.1, weight_decay=0.0, seed=3)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(text_folder):
    return make_symbols((text_folder / "train.txt").read_text(), "characters")


@pytest.fixture(scope="module")
def examples(text_folder, tokenizer):
    return StreamTask().load(Source(folder=text_folder), "train", tokenizer, 5)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_evaluation_over_a_memory_equals_one_long_segment(text_folder, tokenizer):
    """The summed loss of every token but the first; and bits are the loss to the base of 2."""
    model = fresh(tokenizer).eval()
    task = StreamTask().for_processor(tokenizer, model.config)
    dev = task.load(Source(folder=text_folder), "dev", tokenizer, 7)
    found = evaluate(model, dev.batches(1), task)
    tokens = torch.tensor(dev.segments.tokens[None].astype(np.int64))
    with torch.no_grad():
        loss = float(model(tokens, labels=tokens).loss)
    assert task.metric.name == "bits-per-character"
    assert found.rows[:, 1].sum() == tokens.shape[1] - 1
    assert found.score == pytest.approx(loss / math.log(2), rel=1e-5)


def test_training_sees_the_memory_of_the_step_before(tokenizer, examples, tmp_path):
    """With a learning rate of 0, the logged losses are those of reading the same streams with their memory."""
    model = fresh(tokenizer)
    recipe = replace(RECIPE, learning_rate=0.0, updates=6)
    finetune.finetune(model, tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True)
    sampler = StreamBatches(examples.segments, 4, seed=3)
    rows, memory, expected = StreamRows(examples.segments.tokens, sampler), None, []
    with torch.no_grad():
        for names, _ in zip(sampler, range(6), strict=False):
            window = torch.tensor(np.stack([rows[name]["input_ids"] for name in names]))
            output = model(window[:, :-1], shift_labels=window[:, 1:], past_key_values=memory)
            memory = output.past_key_values
            expected.append(float(output.loss))
    state = json.loads(next(tmp_path.glob("checkpoint-6/trainer_state.json")).read_text())
    logged = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert logged == pytest.approx(expected, abs=2e-4)


def test_every_epoch_begins_elsewhere_and_without_memory(tokenizer, examples, tmp_path):
    """The Trainer reads what the sampler names, epoch after epoch."""
    short = type(examples)(Segments(examples.segments.tokens[:200], 5), examples.collate)
    model, seen = fresh(tokenizer), []
    forward = model.forward

    def watched(**inputs):
        if model.training:
            past = inputs["past_key_values"]
            seen.append((int(inputs["input_ids"][0, 0]), 0 if past is None else past.seen))
        return forward(**inputs)

    model.forward = watched
    finetune.finetune(model, tokenizer, StreamTask(), short, tmp_path, replace(RECIPE, updates=22), quiet=True)
    sampler, expected = StreamBatches(short.segments, 4, seed=3), []
    rows = StreamRows(short.segments.tokens, sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += [(int(rows[names[0]]["input_ids"][0]), 5 * step) for step, names in enumerate(sampler)]
    assert len(sampler) == 9
    assert seen == expected[:22]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_an_interrupted_training_goes_on_to_the_same_weights(tokenizer, examples, tmp_path, optimizer):
    """In the middle of an epoch, with dropout: memory, optimizer and noise are those of the uninterrupted run."""
    recipe = replace(RECIPE, optimizer=optimizer)

    def train(folder, validate=None):
        model = fresh(tokenizer, dropout=0.2)
        finetune.finetune(model, tokenizer, StreamTask(), examples, folder, recipe, quiet=True, validate=validate)
        return weights(model)

    def stop(model):
        if len(list((tmp_path / "broken").glob("checkpoint-7/trainer_state.json"))):
            raise KeyboardInterrupt
        return {}

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", stop)
    assert (tmp_path / "broken" / "checkpoint-7" / "memory-0.safetensors").is_file()
    for found, expected in zip(train(tmp_path / "broken"), whole, strict=True):
        assert torch.equal(found, expected)


def test_a_training_killed_after_its_last_checkpoint_takes_no_step_more(tokenizer, examples, tmp_path):
    """In the middle of an epoch: weights and checkpoint are those of the run, and the last look is in its notes."""

    def train():
        model = fresh(tokenizer, dropout=0.2)
        finetune.finetune(model, tokenizer, StreamTask(), examples, tmp_path, RECIPE, quiet=True, validate=lambda _: {})
        return weights(model)

    whole = train()
    written = {path: path.read_bytes() for path in (tmp_path / "checkpoint-12").rglob("*") if path.is_file()}
    for found, expected in zip(train(), whole, strict=True):
        assert torch.equal(found, expected)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-12"]
    assert {path: path.read_bytes() for path in written} == written
    assert [note["step"] for note in noted_steps(tmp_path / VALIDATION)] == list(range(1, 13))


def test_a_look_is_noted_before_its_checkpoint_is_written(tokenizer, examples, tmp_path):
    """A run that is killed between the two and goes on from the checkpoint would not look again."""
    seen = []

    def look(model):
        seen.append(sorted(path.parent.name for path in tmp_path.glob("checkpoint-*/trainer_state.json")))
        return {}

    recipe = replace(RECIPE, updates=3)
    finetune.finetune(fresh(tokenizer), tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True, validate=look)
    assert seen == [[], ["checkpoint-1"], ["checkpoint-2"]]


def test_a_damaged_memory_is_told(tokenizer, examples, tmp_path, caplog):
    """And its checkpoint passed over: training goes on from the one before it, and ends where it did."""
    recipe = replace(RECIPE, updates=2)
    model = fresh(tokenizer)
    finetune.finetune(model, tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True)
    (tmp_path / "checkpoint-2" / "memory-0.safetensors").write_bytes(b"nothing")
    again = fresh(tokenizer)
    finetune.finetune(again, tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True)
    assert "memory-0.safetensors cannot be read" in caplog.text
    for one, other in zip(weights(model), weights(again), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_accumulated_batches_equal_one_large_batch(tokenizer, examples, tmp_path):
    """Two groups of streams with memories of their own learn what one batch of all streams learns."""
    found = []
    for place, (batch, accumulate) in enumerate(((8, 1), (4, 2))):
        model = fresh(tokenizer)
        recipe = replace(RECIPE, batch_size=batch, accumulate=accumulate, epsilon=1e-4)
        finetune.finetune(model, tokenizer, StreamTask(), examples, tmp_path / str(place), recipe, quiet=True)
        found.append(weights(model))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)


@pytest.mark.parametrize("scaling", [True, False])
def test_a_gated_model_equals_its_export_with_memory(tokenizer, tmp_path, scaling):
    """Rows, slices of u and v, persistent vectors and columns are gone, and the scale is in the output projection."""
    model, gates = gated(tokenizer, scaling=scaling)
    ids = torch.randint(0, len(tokenizer), (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = model(ids[:, :10])
        second = model(ids[:, 10:], past_key_values=first.past_key_values)
    before = model.model.layers[0].attention.o_proj.weight.detach().clone()
    gates.remove_()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for pruned in (model, loaded):
        attention = pruned.model.layers[0].attention
        shapes = {name: tuple(tensor.shape) for name, tensor in attention.named_parameters()}
        assert shapes == {
            "u": (2, 4), "v": (2, 4), "persistent_keys": (2, 6, 4), "persistent_values": (2, 6, 4),
            "q_proj.weight": (8, 16), "k_proj.weight": (8, 16), "v_proj.weight": (8, 16), "r_proj.weight": (8, 16),
            "o_proj.weight": (16, 8), "o_proj.bias": (16,),
        }  # fmt: skip
        factor = 2.0 if scaling else 1.0  # 4 heads, 2 open
        torch.testing.assert_close(attention.o_proj.weight[:, :4], factor * before[:, :4])
        with torch.no_grad():
            one = pruned(ids[:, :10])
            two = pruned(ids[:, 10:], past_key_values=one.past_key_values)
        assert difference(one.logits, first.logits).is_small
        assert difference(two.logits, second.logits).is_small


def test_gates_train_over_a_memory_and_freeze(tokenizer, examples, tmp_path):
    """A weight of the penalty that rises, gates that are frozen in time, and a model that equals its export."""
    model = fresh(tokenizer)
    gates = hp.attach_gates(model, hp.BinaryConcrete)
    objective = Objective(weight=6.0, warmup=4, freeze_after=9)
    recipe = replace(RECIPE, optimizer="lamb")
    finetune.finetune(model, tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True,
                      gating=Gating(objective=objective, gate_lr=4.0))  # fmt: skip
    assert gates.frozen
    assert objective.weight_at(0) == 1.5
    assert sum(gates.open_heads().values()) < 8
    exported = copy.deepcopy(model)
    hp.gates_of(exported).remove_()
    batch = torch.tensor(examples.segments.tokens[None, :50].astype(np.int64))
    with torch.no_grad():
        assert difference(exported.eval()(batch).logits, model.eval()(batch).logits).is_small
