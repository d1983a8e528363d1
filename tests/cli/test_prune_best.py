"""`headprune prune` with a method, a repair and a budget, on a trained task."""

from __future__ import annotations

import re

import pytest
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.cost.macs import count_parameters
from headprune.errors import MaskError
from tests.command import answered, call


def prune(trained, *words):
    return answered("prune", trained / "tuned", "--task", "sst2", "--data-dir", trained / "data", *words)


def test_best_chooses_repairs_and_saves(trained, tmp_path):
    """The folder loads, has half of the heads, and says how it was made."""
    told = prune(trained, "--method", "best", "--prune", "50%", "--out", tmp_path / "small")
    assert told["heads"] == [8, 4]
    assert told["recovery"]["method"] == "least-squares"
    assert told["recovery"]["error_left"] < 1
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert len(hp.find_heads(loaded)) == 4
    assert loaded.config.headprune["history"][-1]["recovered"] == "least-squares"


@pytest.mark.parametrize("method", ["sensitivity", "residual", "reconstruction", "fisher-block"])
def test_any_method_and_repair(trained, tmp_path, method):
    """With and without repair, the same heads go in one round."""
    kept = [
        prune(trained, "--method", method, "--prune", 3, "--recover", recover, "--out", tmp_path / recover)["kept"]
        for recover in ("none", "bias", "rescale")
    ]
    assert kept[0] == kept[1] == kept[2]


def test_budgets_of_parameters_and_macs(trained, tmp_path):
    """At most what was asked for, as a share or a count."""
    model = AutoModelForSequenceClassification.from_pretrained(trained / "tuned")
    total = count_parameters(model, hp.find_heads(model)).total
    for asked in ("80%", str(int(0.8 * total))):
        told = prune(trained, "--method", "sensitivity", "--params", asked, "--dry-run")
        assert told["parameters"][1] <= 0.8 * total
        assert told["heads"][1] > 0
    told = prune(trained, "--method", "sensitivity", "--macs", "85%", "--length", 24, "--dry-run")
    assert told["heads"][1] < 8
    with pytest.raises(MaskError, match="what is not attention"):
        prune(trained, "--method", "sensitivity", "--params", "10%", "--dry-run")


def test_uniform_masks_can_be_exported_plain(trained, tmp_path):
    """The same number of heads in every layer: a plain checkpoint."""
    told = prune(trained, "--method", "best", "--prune", "50%", "--uniform", "--out", tmp_path / "small")
    assert {len(heads) for heads in told["kept"].values()} == {2}
    told = prune(trained, "--method", "sensitivity", "--params", "85%", "--uniform", "--dry-run")
    assert len({len(heads) for heads in told["kept"].values()}) == 1


def test_a_speed_up_is_told_as_measured(trained, monkeypatch):
    """By a clock that counts multiplications: a trained's passes are too short for time on a busy machine."""

    def counted(tasks, repeats, warmup, after):
        times = []
        for task in tasks:
            with FlopCounterMode(display=False) as counter:
                task()
            times.append([float(counter.get_total_flops())] * repeats)
        return times

    monkeypatch.setattr("headprune.budgets.kinds.speedup.interleaved", counted)
    told = prune(trained, "--method", "sensitivity", "--speedup", 1.2, "--length", 24, "--dry-run")
    asked, measured = (float(number) for number in re.findall(r"\d\.\d+", told["by"])[:2])
    assert asked == 1.2
    assert measured == pytest.approx(told["macs"][0] / told["macs"][1], rel=0.1)
    assert 0 < told["heads"][1] < 8
    with pytest.raises(MaskError, match="with as few as allowed, 0 of 8"):
        prune(trained, "--method", "sensitivity", "--speedup", 9, "--length", 24, "--dry-run")


def test_neurons_alone_and_together_with_heads(trained, tmp_path):
    """A quarter of the neurons; then a budget that heads and neurons share."""
    told = prune(
        trained, "--parts", "neurons", "--method", "sensitivity", "--recover", "least-squares", "--prune", "25%",
        "--out", tmp_path / "neurons",
    )  # fmt: skip
    assert told["recovery"]["error_left"] <= 1.0
    assert all(site.startswith("neurons.") for site in told["removed"])
    loaded = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(tmp_path / "neurons"), neurons=True)
    assert len(loaded.neurons) == round(0.75 * sum(site.original_num_heads for site in loaded.neurons))
    assert len(loaded.attention) == sum(site.original_num_heads for site in loaded.attention)
    told = prune(trained, "--parts", "both", "--method", "best", "--params", "95%", "--out", tmp_path / "both")
    before, after = told["parameters"]
    assert 0.9 * before < after <= 0.95 * before
    where = ("--task", "sst2", "--data-dir", trained / "data", "--out", tmp_path / "scores")
    scores = answered("score", trained / "tuned", "--parts", "neurons", *where)
    assert all(site.startswith("neurons.") for site in scores["scores"])
    file = tmp_path / "scores" / "scores.json"
    told = prune(trained, "--parts", "neurons", "--scores", file, "--params", "98%", "--dry-run")
    assert told["parameters"][1] <= 0.98 * told["parameters"][0]
    assert told["neurons"][1] < told["neurons"][0]
    told = prune(trained, "--heads", "neurons.0:3,encoder.1:0", "--dry-run")
    assert told["removed"] == {"encoder.1": [0], "neurons.0": [3]}
    with pytest.raises(MaskError, match="cannot be equally many"):
        prune(trained, "--parts", "both", "--uniform", "--method", "best", "--params", "90%", "--dry-run")
    with pytest.raises(MaskError, match="share of both means nothing"):
        prune(trained, "--parts", "both", "--method", "best", "--prune", "50%", "--dry-run")


def test_a_random_choice_keeps_what_every_site_must_have(trained):
    """--at-least and --per mean the same without scores."""
    for seed in range(6):
        told = prune(trained, "--prune", "75%", "--at-least", 1, "--seed", seed, "--dry-run")
        assert all(told["kept"].values())
        told = prune(trained, "--prune", "50%", "--per", "site", "--seed", seed, "--dry-run")
        assert {len(heads) for heads in told["kept"].values()} == {2}


def test_max_drop_with_a_repair(trained, tmp_path):
    """The drop is that of the repaired model."""
    told = prune(
        trained, "--method", "residual", "--recover", "least-squares", "--max-drop", 2, "--out", tmp_path / "x"
    )
    assert told["budget"]["validation"]["pruned"]["score"] >= told["budget"]["validation"]["full"]["score"] - 0.02


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--speedup", 1.5), "needs an order"),
        (("--method", "best", "--scores", "x.json", "--prune", "1"), "both say"),
        (("--method", "best", "--heads", "encoder.0:1"), "say it all"),
        (("--params", "80%", "--prune", "1", "--method", "best"), "one of"),
    ],
)
def test_options_that_contradict_each_other(trained, words, told):
    """Before anything is loaded."""
    with pytest.raises(MaskError, match=told):
        prune(trained, *words, "--dry-run")


def test_a_method_needs_data(trained):
    """Scored on what?"""
    with pytest.raises(MaskError, match="--task"):
        call("prune", trained / "tuned", "--method", "best", "--prune", "1", "--dry-run")
