"""`headprune train-lm`, and every command on what it trained."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import headprune as hp
from headprune.jobs.options.training import TrainingOptions
from headprune.tasks import evaluate
from headprune.tasks.tables import Source
from headprune.tasks.text import StreamTask
from headprune.tasks.text.presets import PRESETS
from headprune.tasks.text.symbols import make_symbols
from tests.command import call

TASK = ("--task", "stream-lm", "--batch-size", 4, "--max-length", 16)


@pytest.fixture(scope="module")
def tokenizer(text_folder):
    return make_symbols((text_folder / "train.txt").read_text(), "characters")


@pytest.fixture(scope="module")
def trained(text_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "model"
    call(
        "train-lm",
        "--data-dir",
        text_folder,
        "--preset",
        "tiny",
        "--updates",
        60,
        "--test",
        "test",
        "--out",
        out,
        "--json",
    )
    return out


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


def test_everything_works_on_such_a_model(trained, text_folder, tmp_path):
    """Evaluate, score, ablate, curve, prune, finetune, gates: the same commands as for any family."""
    data = (*TASK, "--data-dir", text_folder)
    whole = json.loads(call("evaluate", trained, *data, "--split", "test", "--out", tmp_path / "e", "--json"))
    known = json.loads((trained / "train-lm.json").read_text())
    assert whole["score"] == pytest.approx(known["test"]["score"], rel=0.02)  # other streams, other first tokens
    call(
        "score", trained, "--task", "causal-lm", "--data-dir", text_folder, "--max-length", 16, "--out", tmp_path / "s"
    )
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


def test_ablation_with_memory_is_a_whole_pass_without_the_head(trained, text_folder, tmp_path):
    """What the layers remember was made without it too; and an interruption loses nothing."""
    data = (*TASK, "--data-dir", text_folder, "--split", "dev", "--examples", 12)
    call("ablate", trained, *data, "--out", tmp_path)
    rows = json.loads((tmp_path / "ablation.json").read_text())["heads"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(trained).eval(), AutoTokenizer.from_pretrained(trained)
    heads = hp.find_heads(model)
    task = StreamTask().for_processor(tokenizer, model.config)
    batches = list(task.load(Source(folder=text_folder), "dev", tokenizer, 16).sample(12, 0).batches(4))
    expected = evaluate(model, batches, task, mask=hp.HeadMask.full(heads).without("decoder.1:2")).score
    found = rows["decoder.1:2"] if isinstance(rows, dict) else next(r for r in rows if r["head"] == "decoder.1:2")
    assert found["score"] == pytest.approx(expected, rel=1e-6)


def test_train_lm_runs_on_two_processes(text_folder, tmp_path, programs):
    """`accelerate launch`: each has streams and a memory of its own, one writes the result; a run that was stopped in
    its second epoch reads on where it was."""
    launch = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1,
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", 0)  # fmt: skip
    small = tmp_path / "text"
    small.mkdir()
    for part in ("train", "dev"):
        (small / f"{part}.txt").write_text((text_folder / f"{part}.txt").read_text()[:520])  # 3 steps make an epoch

    def train(name):
        words = ["-m", "headprune", "train-lm", "--data-dir", small, "--preset", "tiny", "--updates", "5",
                 "--batch-size", "4", "--validate-examples", "0", "--keep-checkpoints", "--out",
                 tmp_path / name]  # fmt: skip
        done = programs.launch(*launch, *words)
        assert done.returncode == 0, done.stderr[-2000:]
        return tmp_path / name / "checkpoints"

    whole = train("whole")
    last = whole / "checkpoint-5"
    assert sorted(path.name for path in last.glob("memory-*")) == ["memory-0.safetensors", "memory-1.safetensors"]
    first = load_file(last / "model.safetensors")
    shutil.rmtree(last)
    assert (whole / "checkpoint-4").is_dir()
    for name in ("config.json", "model.safetensors"):  # or the finished model would be told and kept
        (whole.parent / name).unlink()
    again = load_file(train("whole") / "checkpoint-5" / "model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_budget_is_met_on_one_half_of_the_text_and_told_on_the_other(trained, text_folder, tmp_path):
    """Halves that follow one another, with memory."""
    data = (*TASK, "--data-dir", text_folder)
    call("score", trained, *data, "--out", tmp_path / "s")
    found = json.loads(call("prune", trained, *data, "--scores", tmp_path / "s" / "scores.json", "--max-drop", 50,
                            "--out", tmp_path / "p", "--json"))  # fmt: skip
    assert found["budget"]["validation"]["full"]["metric"] == "bits-per-character"


def test_a_metric_that_was_chosen_stays(trained, text_folder, tmp_path):
    """Perplexity of characters, if somebody wants it; the schedule without its preset's floor."""
    ways = (*TASK, "--data-dir", text_folder, "--split", "test", "--json", "--out", tmp_path)
    bits, perplexity = (
        json.loads(call("evaluate", trained, *ways, *more)) for more in ((), ("--metric", "perplexity"))
    )
    assert (bits["metric"], perplexity["metric"]) == ("bits-per-character", "perplexity")
    assert perplexity["score"] == pytest.approx(2 ** bits["score"])
    recipe = PRESETS["tiny"].recipe.with_options(TrainingOptions(schedule="linear"))
    assert (recipe.schedule, recipe.floor) == ("linear", 0.0)


def test_impossible_wishes_are_refused(text_folder, trained, tmp_path):
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
            call("train-lm", "--data-dir", text_folder, *words, "--out", tmp_path / "m")
    with pytest.raises(hp.HeadpruneError, match="for binary-concrete gates"):
        call(
            "gates", trained, *TASK, "--data-dir", text_folder, "--lambda", 0.1, "--no-scaling", "--out", tmp_path / "g"
        )
    with pytest.raises(hp.HeadpruneError, match="does not exist"):
        call("train-lm", "--data-dir", tmp_path / "nowhere", "--out", tmp_path / "m")
