"""Every command on translation models of five families; masked equals pruned under beam search; training resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, FSMTConfig, FSMTForConditionalGeneration
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.load_model import load_model
from headprune.cli.app import app
from headprune.errors import DataError
from headprune.gates.trainer import choose_trainable_
from headprune.heads import HeadId, HeadMask, HeadScores
from headprune.hooks import recorded
from headprune.scoring.ablation_engine import ablate
from headprune.scoring.context import ScoringContext, model_inputs
from headprune.scoring.losses import ExampleLoss
from headprune.structure import find_heads
from headprune.tasks import Source, find_task
from headprune.tasks.finetune import finetune
from headprune.tasks.recipe import Recipe
from headprune.tasks.trainers import VALIDATION
from headprune.tasks.translation.beam_search import Search
from headprune.tasks.translation.pairs import Languages
from headprune.tasks.translation.presets import PRESETS, Shape, new_translator
from headprune.tasks.translation.subwords import train_subwords
from tests.families.tiny import tiny_model
from tests.tasks.parallel import pairs, write_pairs

PRUNED = ("marian", "m2m_100", "t5", "bart")
FAMILIES = (*PRUNED, "fsmt")
SMALL = Shape(layers=2, width=32, heads=4, feed_forward=48, positions=64, dropout=0.0)
QUICK = Recipe(epochs=3, learning_rate=3e-3, batch_tokens=300, warmup=5, label_smoothing=0.1, max_length=60)


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def tokenizer():
    return train_subwords([text for pair in pairs(300, 0) for text in pair], 320)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs"), train=60, dev=6, test=6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """A random model of each family, with a tokenizer that fits."""
    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        model = tiny_fsmt(len(tokenizer)) if family == "fsmt" else tiny_model(family, vocab_size=len(tokenizer))
        model.save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
    return root


def tiny_fsmt(size):
    torch.manual_seed(0)
    config = FSMTConfig(
        langs=["en", "de"], src_vocab_size=size, tgt_vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, pad_token_id=0,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    model = FSMTForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def task_for(tokenizer, model, **more):
    task = replace(find_task("translation"), languages=Languages("en", "de"), **more)
    return task.for_processor(tokenizer, model.config)


# Every family


@pytest.mark.parametrize("family", PRUNED)
def test_translations_masked_and_pruned_are_the_same(folders, data, tmp_path, family):
    """Through the commands: a mask file on the whole model, and the model without these heads, reloaded."""
    options = ("--task", "translation", "--data-dir", data, "--languages", "en-de", "--beams", 3)
    model = load_model(str(folders / family), "cpu")
    mask = HeadMask.random(find_heads(model), keep=0.5, seed=1)
    (tmp_path / "mask.json").write_text(mask.to_json())
    call("evaluate", folders / family, *options, "--out", tmp_path / "whole")
    told = call("evaluate", folders / family, *options, "--mask", tmp_path / "mask.json", "--out", tmp_path / "masked")
    call("prune", folders / family, "--mask", tmp_path / "mask.json", "--out", tmp_path / "small")
    call("evaluate", tmp_path / "small", *options, "--out", tmp_path / "pruned")
    whole, masked, pruned = ((tmp_path / n / "translations.txt").read_text() for n in ("whole", "masked", "pruned"))
    assert masked == pruned
    assert masked != whole
    assert "on 6 of test" in told
    results = [json.loads((tmp_path / n / "evaluation.json").read_text()) for n in ("masked", "pruned")]
    assert results[0]["score"] == results[1]["score"]
    assert results[0]["heads"] == results[1]["heads"] == 12
    assert set(results[0]["also"]) == {"bleu", "chrf"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_commands_work_on_every_family(folders, data, tmp_path, family):
    """score, ablate (by loss and by beam search), curve, gates and finetune, for the three components."""
    options = ("--task", "translation", "--data-dir", data, "--languages", "en-de", "--beams", 2)
    model, train = folders / family, ("--epochs", 1, "--lr", 1e-3, "--batch-tokens", 400, "--label-smoothing", 0.1)
    call("score", model, *options, "--out", tmp_path / "scores")
    scores = HeadScores.from_json((tmp_path / "scores" / "scores.json").read_text())
    assert [site.split(".")[0] for site in scores.sums] == ["encoder"] * 2 + ["decoder"] * 2 + ["cross"] * 2
    for metric, by in (("perplexity", "teacher forcing"), ("bleu", "beam search")):
        call("ablate", model, *options, "--metric", metric, "--examples", 2, "--out", tmp_path / metric)
        found = json.loads((tmp_path / metric / "ablation.json").read_text())
        assert found["by"].startswith(by)
        assert list(found["components"]) == ["encoder", "decoder", "cross"]
        assert found["encoder_passes_saved" if metric == "bleu" else "share_reused"] > 0.2
    order = ("--scores", tmp_path / "scores" / "scores.json", "--random", 0, "--components", "each", "--steps", 2)
    call("curve", model, *options, "--metric", "perplexity", *order, "--out", tmp_path / "curve")
    curves = json.loads((tmp_path / "curve" / "curve.json").read_text())["curves"]
    assert list(curves) == [f"{part}, sensitivity" for part in ("encoder", "decoder", "cross")]
    assert all(run[0]["points"][-1]["pruned"] == 8 for run in curves.values())
    call("finetune", model, *options, *train, "--test", "test", "--out", tmp_path / "tuned")
    assert json.loads((tmp_path / "tuned" / "finetune.json").read_text())["test"]["metric"] == "bleu"
    call("gates", model, *options, *train, "--keep", "50%", "--out", tmp_path / "gates")
    (gates,) = json.loads((tmp_path / "gates" / "gates.json").read_text())
    assert gates["heads"] == [24, 12]
    mask = HeadMask.from_json((tmp_path / "gates" / "keep-0.5" / "mask.json").read_text())
    assert mask.to_dict() == gates["kept"]


# The ablation engine under beam search


def test_the_encoder_is_reused_for_decoder_and_cross_sites(tokenizer, data):
    """The same outcomes as running everything, with one encoder pass for all sites after it."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    task = task_for(tokenizer, model, search=Search(beams=2))
    batch = next(task.load(Source(data), "dev", tokenizer, 60).batches(4))
    heads = find_heads(model)
    full = HeadMask.full(heads)
    found = {}
    for reuse in (True, False):
        job = ScoringContext(
            model=model, heads=heads, batches=[batch], loss=ExampleLoss(), run=task.answer, searches=True
        )
        passes = []
        handle = model.model.encoder.register_forward_hook(lambda *_, seen=passes: seen.append(1))
        found[reuse] = ablate(job, lambda s, h: full.without(HeadId(s.id, h)), task.outcome, reuse=reuse)
        handle.remove()
        # Once for the whole model, once for each of 8 encoder heads; a check of the first and last site needs 3 more.
        assert len(passes) == (1 + 8 + 3 if reuse else 1 + 24)
    for head in found[True].changed:
        assert torch.equal(found[True].outcomes(head), found[False].outcomes(head))
    assert found[True].share_reused == pytest.approx(16 / 24)


# Sensitivity


def test_token_sensitivity_counts_source_and_target_tokens(tokenizer, data):
    """Padding counts on neither side: encoder sites divide by source tokens, the others by target tokens."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    task = task_for(tokenizer, model)
    rows = task.load(Source(data), "dev", tokenizer, 60)
    batches = [model_inputs(batch) for batch in rows.batches(3)]
    scores = hp.score(model, batches, reduction="token", loss="sum")
    sources = sum(int(batch["attention_mask"].sum()) for batch in batches)
    targets = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    assert sources != targets
    for site, count in scores.counts.items():
        assert count == (sources if site.startswith("encoder") else targets), site


def test_example_sensitivity_is_the_same_one_by_one(tokenizer, data):
    """Padded batches give every sentence's own gradient."""
    model = new_translator(SMALL, tokenizer, seed=1).eval()
    rows = task_for(tokenizer, model).load(Source(data), "dev", tokenizer, 60)
    together, alone = (
        hp.score(model, [model_inputs(batch) for batch in rows.batches(size)]).to_dict()["scores"] for size in (6, 1)
    )
    for site, row in together.items():
        assert row == pytest.approx(alone[site], rel=1e-4, abs=1e-7)


# Gates


def test_the_frozen_decoder_keeps_what_it_shares_with_the_encoder(tokenizer):
    """One table of vectors for source, target and output: with the encoder alone, it does not train."""
    model = new_translator(SMALL, tokenizer, seed=1)
    hp.attach_gates(model, "hard-concrete", components=["encoder"])
    choose_trainable_(model, "encoder")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("encoder.layers" in name for name in trained)
    assert not [name for name in trained if "decoder" in name or "shared" in name or "lm_head" in name]


# Training


def learn(folder, tokenizer, data, **more):
    model = new_translator(SMALL, tokenizer, seed=1)
    task = task_for(tokenizer, model)
    examples = task.load(Source(data), "train", tokenizer, 60)
    options = {"recipe": QUICK, "validate": lambda _: {"bleu": 0.0}, "quiet": True, **more}
    recipe = options.pop("recipe")
    return finetune(model, tokenizer, task, examples, folder, recipe, **options)


def test_a_checkpoint_that_was_being_written_is_passed_over(tokenizer, data, tmp_path):
    """Killed while saving: the half checkpoint has no state, and the one before it is taken."""
    whole = learn(tmp_path / "whole", tokenizer, data, keep_checkpoints=True)
    last = max((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (last / "trainer_state.json").unlink()
    again = learn(tmp_path / "whole", tokenizer, data, keep_checkpoints=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_an_interrupted_training_goes_on_to_the_same_weights(tokenizer, data, tmp_path):
    """Stopped in the second epoch, resumed from the first one's checkpoint."""
    whole = learn(tmp_path / "whole", tokenizer, data)
    seen = []

    def stop(_):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return {"bleu": 1.0}

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "parts", tokenizer, data, validate=stop)
    resumed = learn(tmp_path / "parts", tokenizer, data)
    for (name, a), (_, b) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    notes = [json.loads(line) for line in (tmp_path / "parts" / VALIDATION).read_text().splitlines()]
    assert [note["epoch"] for note in notes] == [1.0, 2.0, 3.0]


def first_step(folder):
    """What the Trainer logged about the first step: loss and norm of the gradient."""
    (state,) = folder.glob("checkpoint-*/trainer_state.json")
    return {name: json.loads(state.read_text())["log_history"][0][name] for name in ("loss", "grad_norm")}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_batches_make_the_step_of_a_large_one(tokenizer, data, tmp_path, smoothing):
    """The loss is divided by the tokens of all batches of a step, however these are cut: same loss, same gradient."""
    base = replace(QUICK, batch_tokens=None, updates=1, label_smoothing=smoothing)
    learn(tmp_path / "a", tokenizer, data, recipe=replace(base, batch_size=60))
    learn(tmp_path / "b", tokenizer, data, recipe=replace(base, batch_size=12, accumulate=5))
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


def test_after_mixed_precision_the_model_is_as_before(tokenizer, data, tmp_path):
    """Scores after training in bf16 are scores in float32, with the attention that the model had."""
    model = learn(tmp_path, tokenizer, data, recipe=replace(QUICK, epochs=1, bf16=True))
    assert model.config._attn_implementation == "sdpa"
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    with torch.no_grad(), recorded(model) as recording:
        model(**batch)
    kinds = {call.output.dtype for call in recording.calls if isinstance(call.output, torch.Tensor)}
    assert kinds == {torch.float32}
    assert not {"forward", "_original_forward"} & set(vars(model))
    assert model.config.use_cache


def test_a_teacher_and_smoothed_labels_do_not_mix(tokenizer, data, tmp_path):
    """Both soften the target; one of them is meant."""
    with pytest.raises(DataError, match="soft already"):
        learn(tmp_path, tokenizer, data, teacher=new_translator(SMALL, tokenizer, seed=2))


def test_train_mt_runs_on_two_processes(data, tmp_path):
    """`accelerate launch`: each takes its share of the batches, one writes the result."""
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]  # fmt: skip
    words = ["-m", "headprune", "train-mt", "--data-dir", data, "--languages", "en-de", "--preset", "tiny", "--epochs",
             "2", "--out", tmp_path / "model", "--json"]  # fmt: skip
    command = [sys.executable, *launch, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "model" / "train-mt.json").read_text())
    alone = PRESETS["tiny"].recipe.token_batches
    task = task_for(AutoTokenizer.from_pretrained(tmp_path / "model"), SimpleNamespace(config=_Config()))
    rows = task.load(Source(data), "train", task.processor, 60)
    assert result["validation"][-1]["step"] == len(alone(rows, processes=2)) // 2 * 2
    assert result["dev"]["metric"] == "bleu"


class _Config:
    model_type, is_encoder_decoder = "m2m_100", True
    pad_token_id, eos_token_id, decoder_start_token_id, vocab_size = 0, 2, 1, 300


# The command line


def test_options_of_translation_are_for_translation(data, tmp_path):
    """And train-mt is for translation."""
    for words in (("--beams", 3), ("--languages", "en-de"), ("--prefix", "x")):
        with pytest.raises(DataError, match="for translation, not for sst2"):
            call("score", "nowhere", "--task", "sst2", "--data-dir", data, *words, "--out", tmp_path)
    with pytest.raises(DataError, match="trains translation models"):
        call("train-mt", "--task", "sst2", "--data-dir", data, "--out", tmp_path)
    with pytest.raises(DataError, match="Which languages"):
        call("train-mt", "--data-dir", data, "--out", tmp_path)
    with pytest.raises(DataError, match=r"No preset called 'bases'\. Did you mean 'base'"):
        call("train-mt", "--data-dir", data, "--languages", "en-de", "--preset", "bases", "--out", tmp_path)
    with pytest.raises(DataError, match=r"No search called 'voit'\. Did you mean 'voita'"):
        call("train-mt", "--data-dir", data, "--languages", "en-de", "--search", "voit", "--out", tmp_path)


ROOT = Path(__file__).parents[2]


def test_the_study_runs_from_raw_files_and_resumes(tmp_path):
    """docs/results/translation.sh on a toy language; started again, nothing is done twice."""
    write_pairs(tmp_path / "data", train=200, dev=20, test=20)
    rows = pairs(10, 9)
    for side, ending in enumerate(("en", "de")):
        (tmp_path / "data" / f"help.{ending}").write_text("".join(row[side] + "\n" for row in rows))
    small = {
        "PRESET": "tiny", "TEST": "test", "EPOCHS": "1 10", "SHARES": "50%", "SEEDS": "1", "RANDOM_CUTS": "4/4/4",
        "LAYER_CUTS": "ES=31,ED=13,DS=31", "COMPONENT_CUTS": "ES=2,ED=5,DS=5", "SOME": "10", "STEPS": "2",
        "TUNE_EPOCHS": "1", "GATE_EPOCHS": "1", "LR": "1e-3", "BATCH_TOKENS": "400", "PRECISION": "--no-bf16",
    }  # fmt: skip
    environment = {**os.environ, **small, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "docs" / "results" / "translation.sh"), "data", "out"]

    def run():
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    run()
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "seconds.jsonl").read_text().splitlines()]
    for step in steps:
        assert (tmp_path / "out" / step).is_file(), step
    assert len(steps) == len(set(steps)) == 17
    assert json.loads((tmp_path / "out" / "ablation" / "ablation.json").read_text())["against"]["split"] == "help"
    (tmp_path / "out" / "triples" / "ES=2,ED=5,DS=5" / "finetune.json").unlink()
    run()
    again = [json.loads(line)["step"] for line in (tmp_path / "out" / "seconds.jsonl").read_text().splitlines()]
    assert again[len(steps) :] == ["triples/ES=2,ED=5,DS=5/finetune.json"]
