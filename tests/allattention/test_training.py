"""Training over a memory: the loss, resuming, accumulation, processes, LAMB; gates and their export."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.cli.training import TrainingOptions
from headprune.equality import difference
from headprune.files import noted_steps
from headprune.gates import Objective
from headprune.tasks import evaluate, finetune
from headprune.tasks.finetune import Gating
from headprune.tasks.optimizers import optimizer_of
from headprune.tasks.recipe import Recipe
from headprune.tasks.sources import Source
from headprune.tasks.text import StreamTask
from headprune.tasks.text.presets import PRESETS, Shape, new_language_model
from headprune.tasks.text.streams import Segments, StreamBatches, StreamRows
from headprune.tasks.text.symbols import make_symbols
from headprune.tasks.trainers import VALIDATION

SHAPE = Shape(layers=2, width=16, heads=4, persistent=6, memory=5, dropout=0.0, attention_dropout=0.0)
RECIPE = Recipe(updates=12, epochs=100, learning_rate=5e-3, batch_size=4, max_length=5, warmup=2, schedule="cosine",
                floor=0.1, weight_decay=0.0, seed=3)  # fmt: skip


def babble(length: int = 900, seed: int = 0) -> str:
    """Letters with a pattern to learn: a vowel after every consonant, mostly the same one."""
    generator = np.random.default_rng(seed)
    pairs = [
        f"{c}{'aeiou'[(ord(c) + (generator.random() < 0.1)) % 5]}" for c in generator.choice(list("bdfgk"), length)
    ]
    return " ".join("".join(pairs[i : i + 3]) for i in range(0, length, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    for part, length in (("train", 1500), ("dev", 200), ("test", 200)):
        (path / f"{part}.txt").write_text(babble(length, seed=length))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return make_symbols((folder / "train.txt").read_text(), "characters")


@pytest.fixture(scope="module")
def examples(folder, tokenizer):
    return StreamTask().load(Source(folder=folder), "train", tokenizer, 5)


def fresh(tokenizer, **more):
    return new_language_model(replace(SHAPE, **more), tokenizer, seed=1)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_evaluation_over_a_memory_equals_one_long_segment(folder, tokenizer):
    """The summed loss of every token but the first; and bits are the loss to the base of 2."""
    model = fresh(tokenizer).eval()
    task = StreamTask().for_processor(tokenizer, model.config)
    dev = task.load(Source(folder=folder), "dev", tokenizer, 7)
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


def test_a_damaged_memory_is_told(tokenizer, examples, tmp_path):
    """With what to do."""
    recipe = replace(RECIPE, updates=2)
    finetune.finetune(fresh(tokenizer), tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True)
    (tmp_path / "checkpoint-2" / "memory-0.safetensors").write_bytes(b"nothing")
    with pytest.raises(hp.HeadpruneError, match="Remove this checkpoint"):
        finetune.finetune(fresh(tokenizer), tokenizer, StreamTask(), examples, tmp_path, recipe, quiet=True)


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


def test_a_step_of_lamb_equals_one_by_hand():
    """No bias correction, the norm of a weight counted up to 10, a ratio of 1 for a weight of zeros."""
    start = [torch.full((4,), 9.0), torch.tensor([0.3, -0.4]), torch.zeros(3)]
    gradients = [
        [torch.tensor([0.1, -0.2, 0.3, 0.4]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0, -0.5])],
        [torch.tensor([0.3, 0.1, -0.1, 0.2]), torch.tensor([-1.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])],
    ]
    recipe = Recipe(optimizer="lamb", learning_rate=0.01, epsilon=1e-8, weight_decay=0.0)
    made = optimizer_of(recipe)
    assert made is not None
    parameters = [torch.nn.Parameter(weight.clone()) for weight in start]
    optimizer = made[0](parameters, **made[1])
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for place, weight in enumerate(start):
        weight, m, v = weight.double(), 0.0, 0.0
        for step in gradients:
            g = step[place].double()
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            update = m / (v.sqrt() + 1e-8)
            w, u = min(10.0, float(weight.norm())), float(update.norm())
            ratio = w / (u + 1e-8) if w and u else 1.0
            weight = weight - 0.01 * ratio * update
        torch.testing.assert_close(parameters[place].detach().double(), weight, rtol=1e-5, atol=1e-7)


def gated(tokenizer, **options):
    """A model whose gates are partly closed."""
    model = fresh(tokenizer)
    gates = hp.attach_gates(model, hp.BinaryConcrete, **options)
    with torch.no_grad():
        gates.gate("decoder.0").log_alpha.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
        gates.gate("decoder.1").log_alpha.copy_(torch.tensor([-3.0, 3.0, 3.0, 3.0]))
    return model.eval(), gates


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


def test_presets_are_the_papers(tokenizer):
    """Shim et al., section 4.1: shapes, segments, batches, learning rates."""
    for name, layers, batch, length in (("wikitext-103", 16, 96, 192), ("text8", 12, 64, 512)):
        shape, recipe = PRESETS[name].shape, PRESETS[name].recipe
        assert (shape.layers, shape.width, shape.heads, shape.persistent) == (layers, 512, 8, 2048)
        assert (recipe.batch_size, recipe.max_length, shape.memory) == (batch, length, length)
        assert (recipe.learning_rate, recipe.learning_rate * recipe.floor) == (1e-2, pytest.approx(1e-4))
        assert (recipe.updates, recipe.warmup, recipe.optimizer, recipe.clip) == (160_000, 4000, "lamb", 0.5)


# The commands


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "model"
    call(
        "train-lm", "--data-dir", folder, "--preset", "tiny", "--updates", 60, "--test", "test", "--out", out, "--json"
    )
    return out


TASK = ("--task", "stream-lm", "--batch-size", 4, "--max-length", 16)


def test_train_lm_writes_a_model_that_learned(trained):
    """Below the 3.6 bits of guessing among its symbols; with a validation for every checkpoint."""
    result = json.loads((trained / "train-lm.json").read_text())
    assert result["metric"] == "bits-per-character"
    assert result["test"]["score"] < 2.5
    assert result["steps"] == 60
    assert len(result["validation"]) == 20
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForCausalLM.from_pretrained(trained)
    written = tokenizer.decode(
        model.generate(**tokenizer("ba", return_tensors="pt"), max_new_tokens=30, pad_token_id=0)[0]
    )
    assert written.startswith("ba")
    assert len(written) == 32


def test_everything_works_on_such_a_model(trained, folder, tmp_path):
    """Evaluate, score, ablate, curve, prune, finetune, gates: the same commands as for any family."""
    data = (*TASK, "--data-dir", folder)
    whole = json.loads(call("evaluate", trained, *data, "--split", "test", "--out", tmp_path / "e", "--json"))
    known = json.loads((trained / "train-lm.json").read_text())
    assert whole["score"] == pytest.approx(known["test"]["score"], rel=0.02)  # other streams, other first tokens
    call("score", trained, "--task", "causal-lm", "--data-dir", folder, "--max-length", 16, "--out", tmp_path / "s")
    call("score", trained, *data, "--out", tmp_path / "s2")
    call("ablate", trained, *data, "--split", "dev", "--examples", 12, "--out", tmp_path / "a")
    ablation = json.loads((tmp_path / "a" / "ablation.json").read_text())
    assert len(ablation["heads"]) == 8
    call("curve", trained, *data, "--scores", tmp_path / "s" / "scores.json", "--steps", 2, "--random", 0,
         "--examples", 12, "--out", tmp_path / "c")  # fmt: skip
    call("prune", trained, "--scores", tmp_path / "s" / "scores.json", "--prune", "50%", "--out", tmp_path / "p")
    call(
        "finetune", tmp_path / "p", *data, "--updates", 5, "--optimizer", "lamb", "--lr", 1e-3, "--out", tmp_path / "f"
    )
    result = json.loads(call("gates", trained, *data, "--gate", "binary-concrete", "--lambda", 0.5, "--no-scaling",
                             "--updates", 12, "--lr", 1e-3, "--gate-lr", 1.0, "--freeze-after", 0.5, "--test", "test",
                             "--out", tmp_path / "g", "--json"))[0]  # fmt: skip
    assert result["dev"]["metric"] == "bits-per-character"
    assert result["heads"][1] < 8
    assert result["dev"]["score"] == pytest.approx(result["gated"]["score"], abs=1e-4)
    loaded = AutoModelForCausalLM.from_pretrained(result["out"])
    assert len(hp.find_heads(loaded)) == result["heads"][1]


def test_ablation_with_memory_is_a_whole_pass_without_the_head(trained, folder, tmp_path):
    """What the layers remember was made without it too; and an interruption loses nothing."""
    data = (*TASK, "--data-dir", folder, "--split", "dev", "--examples", 12)
    call("ablate", trained, *data, "--out", tmp_path)
    rows = json.loads((tmp_path / "ablation.json").read_text())["heads"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(trained).eval(), AutoTokenizer.from_pretrained(trained)
    heads = hp.find_heads(model)
    task = StreamTask().for_processor(tokenizer, model.config)
    batches = list(task.load(Source(folder=folder), "dev", tokenizer, 16).sample(12, 0).batches(4))
    expected = evaluate(model, batches, task, mask=hp.HeadMask.full(heads).without("decoder.1:2")).score
    found = rows["decoder.1:2"] if isinstance(rows, dict) else next(r for r in rows if r["head"] == "decoder.1:2")
    assert found["score"] == pytest.approx(expected, rel=1e-6)


def test_train_lm_runs_on_two_processes(folder, tmp_path):
    """`accelerate launch`: each has streams and a memory of its own, one writes the result; a run that was stopped in
    its second epoch reads on where it was."""
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]  # fmt: skip
    small = tmp_path / "text"
    small.mkdir()
    for part in ("train", "dev"):
        (small / f"{part}.txt").write_text((folder / f"{part}.txt").read_text()[:520])  # 3 steps make an epoch
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def train(name):
        words = ["-m", "headprune", "train-lm", "--data-dir", small, "--preset", "tiny", "--updates", "5",
                 "--batch-size", "4", "--validate-examples", "0", "--keep-checkpoints", "--out",
                 tmp_path / name]  # fmt: skip
        command = list(map(str, [sys.executable, *launch, *words]))
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        return tmp_path / name / "checkpoints"

    whole = train("whole")
    last = whole / "checkpoint-5"
    assert sorted(path.name for path in last.glob("memory-*")) == ["memory-0.safetensors", "memory-1.safetensors"]
    first = load_file(last / "model.safetensors")
    shutil.rmtree(last)
    assert (whole / "checkpoint-4").is_dir()
    again = load_file(train("whole") / "checkpoint-5" / "model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_budget_is_met_on_one_half_of_the_text_and_told_on_the_other(trained, folder, tmp_path):
    """Halves that follow one another, with memory."""
    data = (*TASK, "--data-dir", folder)
    call("score", trained, *data, "--out", tmp_path / "s")
    found = json.loads(call("prune", trained, *data, "--scores", tmp_path / "s" / "scores.json", "--max-drop", 50,
                            "--out", tmp_path / "p", "--json"))  # fmt: skip
    assert found["budget"]["validation"]["full"]["metric"] == "bits-per-character"


def test_a_metric_that_was_chosen_stays(trained, folder, tmp_path):
    """Perplexity of characters, if somebody wants it; the schedule without its preset's floor."""
    ways = (*TASK, "--data-dir", folder, "--split", "test", "--json", "--out", tmp_path)
    bits, perplexity = (
        json.loads(call("evaluate", trained, *ways, *more)) for more in ((), ("--metric", "perplexity"))
    )
    assert (bits["metric"], perplexity["metric"]) == ("bits-per-character", "perplexity")
    assert perplexity["score"] == pytest.approx(2 ** bits["score"])
    recipe = TrainingOptions(schedule="linear").recipe(PRESETS["tiny"].recipe)
    assert (recipe.schedule, recipe.floor) == ("linear", 0.0)


def test_presets_fit_smaller_vocabularies():
    """Cutoffs beyond the vocabulary are left out, and rows of distances follow a longer memory."""
    small = make_symbols(" ".join(f"w{n}" for n in range(30)), "words")
    shape = Shape(layers=1, width=16, heads=2, persistent=2, memory=600, cutoffs=(10, 20_000), position_rows=512)
    config = new_language_model(shape, small, 0).config
    assert (config.cutoffs, config.table_rows) == ([10], 601)


def test_impossible_wishes_are_refused(folder, trained, tmp_path):
    """With near misses and what to do."""
    for words, told in (
        (("--preset", "smal"), "Did you mean 'small'"),
        (("--by", "syllables"), "expected words, characters, letters, bytes"),
        (("--kind", "lstm"), "expected all-attention or transformer-xl"),
        (("--preset", "tiny", "--heads", 5), "does not divide among 5 heads"),
        (("--preset", "tiny", "--max-length", 9999), "tokens: shorter than one segment|too few"),
        (("--preset", "tiny", "--optimizer", "sgd"), "expected adamw, lamb"),
        (("--preset", "tiny", "--schedule", "linear", "--floor", 0.1), "with --schedule cosine"),
        (("--preset", "tiny", "--updates", -3), "updates is -3"),
        (("--preset", "tiny", "--batch-tokens", 100), "without --teacher and --batch-tokens"),
    ):
        with pytest.raises(hp.HeadpruneError, match=told):
            call("train-lm", "--data-dir", folder, *words, "--out", tmp_path / "m")
    with pytest.raises(hp.HeadpruneError, match="for binary-concrete gates"):
        call("gates", trained, *TASK, "--data-dir", folder, "--lambda", 0.1, "--no-scaling", "--out", tmp_path / "g")
    with pytest.raises(hp.HeadpruneError, match="does not exist"):
        call("train-lm", "--data-dir", tmp_path / "nowhere", "--out", tmp_path / "m")


ROOT = Path(__file__).parents[2]


def test_the_study_runs_from_raw_text_and_resumes(folder, tmp_path):
    """docs/results/allattention.sh at its smallest, then its page; started again, nothing is done twice."""
    small = {
        "PRESET": "tiny", "SEGMENT": "16", "STREAMS": "8", "BASE": "20", "PRUNE": "10", "WIDTHS": "32:32 16:16",
        "LAMBDAS": "0.01 0.02", "BY": "letters", "GATE_LR": "0.5", "PRECISION": "--no-bf16",
    }  # fmt: skip
    environment = {**os.environ, **small, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "docs" / "results" / "allattention.sh"), str(folder), "runs/books-1"]

    def run():
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (tmp_path / "runs" / "books-1" / "seconds.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    steps = run()
    assert len(steps) == len(set(steps)) == 1 + 3 + 5 + 2
    (tmp_path / "runs" / "books-1" / "none" / "gates.json").unlink()
    assert run()[len(steps) :] == ["none/gates.json"]
    page = page_of(tmp_path / "runs" / "books-1")
    for title in ("Tables 1 and 2", "Table 3", "never frozen", "Figure 3", "Figure 1", "What appears at this scale"):
        assert title in page
    assert "no claim" in page


def page_of(run):
    """What the page says about one run."""
    sys.path.insert(0, str(ROOT / "docs" / "results"))
    try:
        from allattention_page import allattention_page
        from collect import gathered_allattention

        return allattention_page({1: gathered_allattention(run)}, "script")
    finally:
        sys.path.pop(0)
