"""The comparison with other tools: its page, who is ahead by its figures, and the workers' protocol."""

from __future__ import annotations

import copy
import importlib.util
import json
import signal
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.places import ROOT

PEERS = ROOT / "benchmarks" / "peers"


def peers_module(name):
    """A file of the benchmark, whose folder is no package."""
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def on_path(monkeypatch):
    """Files of the benchmark import one another by name; its folder comes last, as some are named as packages."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(PEERS)])


@pytest.fixture
def made_up():
    """Two tools: theirs prunes faster, scores slower, cannot reload, and is wrong on Llama."""
    times = {"median": 1.0, "ratio": [1.0, 1.0, 1.0]}
    fact = {"before": 1000, "after": 800, "verdict": "works", "difference": 0.0, "reload": {"equal": True}}
    works = {"verdict": "works", "difference": 0.0}
    cases = dict.fromkeys(("llama", "llama-8-2", "gpt2", "gpt_neox", "phi3", "bart", "empty"), works)
    about = {"version": "1", "transformers": "5", "torch": "2"}
    return {
        "quick": False, "date": "2026-01-01", "rounds": 3, "machine": {"cores": 2}, "failed": {},
        "model": {"layers": 2, "heads": 4, "width": 8, "examples": 4, "tokens": 4, "batch": 2},
        "tools": {"headprune": about, "torch-pruning": about},
        "figures": {
            "score": {
                "headprune": times, "torch-pruning": {"median": 2.0, "ratio": [2.0, 1.9, 2.1]},
                "control": [1.0, 0.95, 1.05],
            },
            "prune": {
                "headprune": times, "torch-pruning": {"median": 0.1, "ratio": [0.1, 0.09, 0.11]},
                "control": [1.0, 0.95, 1.05],
            },
            "prune_unchecked": {"headprune": {"median": 0.25}},
            "score_by_weights": {"headprune": {"median": 0.5}},
            "speedup": {
                "headprune": times, "torch-pruning": {"median": 1.5, "ratio": [1.5, 1.4, 1.6]},
                "control": [1.0, 0.95, 1.05],
            },
        },
        "facts": {
            "headprune": fact, "torch-pruning": {**fact, "reload": {"equal": False, "error": "SizeError: 3 is not 4"}}
        },
        "cases": {
            "headprune": cases, "torch-pruning": {**cases, "llama": {"verdict": "wrong", "difference": 3.0}},
        },
        "quality": None,
    }  # fmt: skip


def ahead(page, result):
    return {row.key: row.ahead() for row in page.rows(result)}


def test_the_page_is_made_from_the_stored_figures(on_path):
    """`python benchmarks/peers/page.py` would change nothing."""
    page = peers_module("page")
    assert page.PAGE.read_text() == page.page(json.loads(page.STORED.read_text()))


def test_every_row_that_headprune_does_not_lead_says_why(on_path):
    """Of the stored figures: behind or level, with a reason that is known."""
    page = peers_module("page")
    result = json.loads(page.STORED.read_text())
    told = page.page(result).split("## Where headprune is not ahead")[1].split("\n## ")[0]
    for row in page.rows(result):
        assert (f"- {row.title}" in told) == (row.ahead() != "headprune")
    assert "not known" not in told


def test_who_is_ahead_follows_from_the_figures(on_path, made_up):
    """Smaller times, larger speed-ups, right outputs; and the row that headprune loses says why."""
    page = peers_module("page")
    found = ahead(page, made_up)
    assert found["score"] == "headprune"
    assert found["prune"] == "torch-pruning; not headprune"
    assert found["speedup"] == "torch-pruning; not headprune"
    assert found["parameters"] == found["equal"] == found["gpt2"] == "level: headprune, torch-pruning"
    assert found["reload"] == found["llama"] == "headprune"
    text = page.page(made_up)
    assert "- remove half of them, s: torch-pruning ahead. `prune_` runs the model" in text
    assert "(`verify=False`) it took 0.25 s" in text
    assert "- reload: `SizeError: 3 is not 4`" in text
    assert "wrong outputs (3 off)" in text


def test_a_difference_within_the_control_is_none(on_path, made_up):
    """A peer whose ratio reaches into headprune's ratio to itself is level; beyond it, it is not."""
    page = peers_module("page")
    made_up["figures"]["score"]["torch-pruning"]["ratio"] = [1.06, 1.04, 1.08]
    assert ahead(page, made_up)["score"] == "level: headprune, torch-pruning"
    made_up["figures"]["score"]["control"] = [1.0, 0.99, 1.01]
    assert ahead(page, made_up)["score"] == "headprune"


def test_where_headprune_fails_it_is_not_ahead(on_path, made_up):
    """A case that only the peer gets right, and one that nobody does."""
    page = peers_module("page")
    wrong = {"verdict": "wrong", "difference": 1.0}
    ours = {**made_up["cases"]["headprune"], "gpt2": {"error": "E: no"}, "llama": wrong}
    result = {**made_up, "cases": {**made_up["cases"], "headprune": ours}}
    found = ahead(page, result)
    assert found["gpt2"] == "torch-pruning; not headprune"
    assert found["llama"] == "nobody"


def test_accuracy_is_ahead_only_beyond_the_paired_interval(on_path, made_up):
    """By the bits of the answers: headprune has its first way, the peer its best."""
    page, figures = peers_module("page"), peers_module("figures")
    draw = np.random.default_rng(0)
    good, bad = draw.random(400) < 0.9, draw.random(400) < 0.6

    def answer(bits):
        return {"right": "".join(str(int(bit)) for bit in bits), "heads": 36, "seconds": 1.0}

    def row(ours, theirs):
        ways = {"headprune": {"best": answer(ours)}, "torch-pruning": {way: answer(b) for way, b in theirs.items()}}
        quality = figures.quality_figures(answer(good), ways)
        return quality, ahead(page, {**made_up, "quality": quality})["quality"]

    quality, who = row(good, {"a": bad, "b": bad[::-1]})
    assert who == "headprune"
    assert quality["tools"]["torch-pruning"]["ways"]["a"]["accuracy"][0] == pytest.approx(bad.mean())
    assert row(bad, {"a": bad, "b": good})[1] == "torch-pruning; not headprune"
    assert row(good, {"a": good})[1] == "level: headprune, torch-pruning"
    assert ahead(page, made_up)["quality"] == "not measured"


def test_ratios_are_taken_round_by_round(on_path):
    """Not of the medians; and a second headprune is the control."""
    figures = peers_module("figures")
    times = {"score": {"headprune": [1.0, 2.0, 4.0], "other": [2.0, 4.0, 8.0], "headprune again": [1.0, 2.2, 4.0]}}
    found = figures.figures(times, "headprune again")["score"]
    assert found["other"] == {"median": 4.0, "ratio": [2.0, 2.0, 2.0]}
    assert found["control"] == pytest.approx([1.0, 1.0, 1.05])


def test_removed_heads_are_read_from_the_weights(on_path):
    """Whichever way the columns lie now; a changed weight is seen."""
    families, reference = peers_module("families"), peers_module("reference")
    family = families.FAMILIES["bert"]
    whole = family.build()
    cut = copy.deepcopy(whole)
    name = "bert.encoder.layer.1.attention.output.dense"
    dense = cut.get_submodule(name)
    dense.weight = torch.nn.Parameter(dense.weight.detach()[:, list(range(32, 64)) + list(range(8))])
    gone = reference.removed(whole, cut, family.outputs, 8)
    assert gone.heads()[name] == [1, 2, 3]
    assert gone.count == 3
    assert gone.is_whole
    assert not gone.changed
    with torch.no_grad():
        dense.weight[:, 0] += 1
    assert reference.removed(whole, cut, family.outputs, 8).changed == (name,)


def test_a_worker_scores_prunes_and_reloads(on_path, tmp_path):
    """The whole protocol with headprune on a small model, in its own process."""
    talking = peers_module("talking")
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, vocab_size=50
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    ids = np.random.default_rng(0).integers(5, 50, (8, 6))
    np.savez(tmp_path / "data.npz", train_ids=ids, train_mask=np.ones_like(ids), train_labels=np.arange(8) % 2)
    worker = talking.Worker("headprune", tmp_path / "log")
    try:
        loaded = worker.ask("load", checkpoint=str(tmp_path / "model"), data=str(tmp_path / "data.npz"))
        assert loaded["parameters"] > 0
        assert "RuntimeError: Nothing was scored" in worker.ask("prune")["error"]
        assert "No job called 'sing'" in worker.ask("sing")["error"]
        assert worker.ask("score")["seconds"] > 0
        assert worker.ask("prune")["seconds"] > 0
        facts = worker.ask("facts")
        assert (facts["removed"], facts["verdict"]) == (4, "works")
        assert facts["after"] < facts["before"]
        assert facts["reload"]["equal"], facts
        worker.process.send_signal(signal.SIGSTOP)  # it would answer in no time
        assert worker.ask("about", timeout=0.01)["error"].startswith("Did not finish")
    finally:
        worker.stop()
