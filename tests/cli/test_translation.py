"""Every command on translation models of five families; masked equals pruned under beam search."""

from __future__ import annotations

import json

import pytest

from headprune.checkpoint.load_model import load_model
from headprune.heads import HeadMask, HeadScores
from headprune.structure.find import find_heads
from tests.command import call
from tests.families.tiny import tiny_model
from tests.tasks.parallel import tiny_fsmt

PRUNED = ("marian", "m2m_100", "t5", "bart")
FAMILIES = (*PRUNED, "fsmt")


@pytest.fixture(scope="module")
def tokenizer(pair_tokenizer):
    return pair_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """A random model of each family, with a tokenizer that fits."""
    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        model = tiny_fsmt(len(tokenizer)) if family == "fsmt" else tiny_model(family, vocab_size=len(tokenizer))
        model.save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
    return root


@pytest.mark.parametrize("family", PRUNED)
def test_translations_masked_and_pruned_are_the_same(folders, pair_folder, tmp_path, family):
    """Through the commands: a mask file on the whole model, and the model without these heads, reloaded."""
    options = ("--task", "translation", "--data-dir", pair_folder, "--languages", "en-de", "--beams", 3)
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
def test_the_commands_work_on_every_family(folders, pair_folder, tmp_path, family):
    """score, ablate (by loss and by beam search), curve, gates and finetune, for the three components."""
    options = ("--task", "translation", "--data-dir", pair_folder, "--languages", "en-de", "--beams", 2)
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
