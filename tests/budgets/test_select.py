"""`hp.select`: the same heads as on the command line."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import headprune as hp
from headprune.budgets import BudgetMask, budgets
from headprune.cli.app import app
from headprune.errors import BudgetError, MaskError
from headprune.scoring import scorers
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model

METHODS = sorted(scorers)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny BERT whose second layer writes much more than its first, its folder, and a batch."""
    folder, model = tmp_path_factory.mktemp("bert"), tiny_model("bert", num_hidden_layers=3)
    with torch.no_grad():
        for site in list(hp.find_heads(model))[1:]:
            model.get_submodule(site.output).weight.mul_(10.0)
    model.save_pretrained(folder)
    return model, folder, {**example_inputs(model), "labels": torch.tensor([0, 1])}


def chosen(folder, scores, *words):
    """The heads that `headprune prune` keeps by a file of scores."""
    file = folder / "scores.json"
    file.write_text(scores.to_json())
    told = CliRunner().invoke(
        app, ["prune", str(folder), "--scores", str(file), *words, "--dry-run", "--json"], catch_exceptions=False
    )
    return json.loads(told.stdout)["kept"]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_scores_choose_the_same_heads_in_python_and_on_the_command_line(method, saved):
    """Whether the scores compare across sites or not."""
    model, folder, batch = saved
    scores = hp.score(model, [batch], method=method)
    heads = hp.find_heads(model)
    assert hp.select(scores, prune=0.5).to_dict() == chosen(folder, scores, "--prune", "50%")
    assert hp.select(scores, heads, keep=5).to_dict() == chosen(folder, scores, "--keep", "5")
    assert hp.pattern(heads, "50%", scores=scores) == hp.select(scores, heads, keep=0.5)


@pytest.mark.parametrize("words", [("--params", "90%"), ("--macs", "80%", "--length", "16", "--batch", "2")])
@pytest.mark.parametrize("method", ["sensitivity", "curvature"])
def test_budgets_choose_the_same_heads_in_python_and_on_the_command_line(method, words, saved):
    """A share of the parameters, or of the MACs of a forward pass of a given shape."""
    model, folder, batch = saved
    scores = hp.score(model, [batch], method=method)
    how = {"params": 0.9} if words[0] == "--params" else {"macs": 0.8, "length": 16, "batch": 2}
    mask = hp.select(scores, model=model, **how)
    assert 0 < len(mask) < 12
    assert mask.to_dict() == chosen(folder, scores, *words)
    assert mask.to_dict() == chosen(folder, scores, "--budget", f"{words[0][2:]}={words[1]}", *words[2:])


def test_a_budget_of_what_may_be_lost_goes_as_far_as_it_can(saved):
    """`evaluate` says how well the model does; the last step within the drop is taken."""
    scores = hp.score(saved[0], method="random")
    mask = hp.select(scores, max_drop=0.3, evaluate=lambda mask: len(mask) / 12)
    assert mask == hp.select(scores, prune=0.25)
    assert len(hp.select(scores, max_drop=1.0, evaluate=lambda mask: 0.0, at_least=2)) == 6


def test_uniform_keeps_as_many_in_every_site(saved):
    """By a share, as by a budget; sites that differ to begin with are refused."""
    scores, heads = hp.score(saved[0], method="magnitude"), hp.find_heads(saved[0])
    for mask in (hp.select(scores, heads, prune=0.5, uniform=True),
                 hp.select(scores, heads, params=0.9, model=saved[0], uniform=True)):  # fmt: skip
        assert len({len(mask.kept(site.id)) for site in heads}) == 1
        assert 0 < len(mask) < 12
    uneven = hp.find_heads(hp.prune_(tiny_model("bert"), hp.pattern(hp.find_heads(tiny_model("bert")), "4,2")))
    with pytest.raises(MaskError, match="equally many"):
        hp.select(hp.score(tiny_model("bert"), method="random"), uneven, prune=0.5, uniform=True)


def test_budgets_that_cannot_be_meant_are_refused(saved):
    """Each says what to give instead."""
    model, _, _ = saved
    scores = hp.score(model, method="random")
    with pytest.raises(MaskError, match="pass it"):
        hp.select(scores, macs=0.8)
    with pytest.raises(MaskError, match="pass a function"):
        hp.select(scores, max_drop=0.1)
    with pytest.raises(MaskError, match="prune has no effect with macs"):
        hp.select(scores, prune=0.5, macs=0.8, model=model)
    with pytest.raises(MaskError, match="params has no effect with macs"):
        hp.select(scores, macs=0.8, params=0.5, model=model)
    with pytest.raises(TypeError, match="Did you mean 'macs'"):
        hp.select(scores, mac=0.8, model=model)
    with pytest.raises(MaskError, match="expected a number"):
        hp.select(scores, params=-0.5, model=model)
    with pytest.raises(BudgetError, match="cannot be met"):
        hp.select(scores, params=0.01, model=model)


def test_a_user_adds_a_budget_with_a_decorator(saved):
    """It is found by name, in Python and on the command line."""
    model, folder, _ = saved
    scores = hp.score(model, method="random")

    @budgets.add("sites", "Sites that stay.")
    def sites(selection, amount):
        gone = [site.id for site in selection.heads][int(amount):]  # fmt: skip
        return BudgetMask(hp.HeadMask.full(selection.heads).without(*gone))

    try:
        mask = hp.select(scores, model=model, sites=2)
        assert mask.to_dict() == {"encoder.0": [0, 1, 2, 3], "encoder.1": [0, 1, 2, 3], "encoder.2": []}
        assert chosen(folder, scores, "--budget", "sites=2") == mask.to_dict()
    finally:
        budgets._items.pop("sites")
