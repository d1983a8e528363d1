"""Units within a budget: no other choice loses less."""

from __future__ import annotations

import itertools

import pytest
import torch

import headprune as hp
from headprune.budgets import Selection
from headprune.budgets.budget import Counted, within
from headprune.cost.macs import count_macs, count_parameters
from headprune.errors import MaskError
from headprune.heads import HeadScores
from headprune.structure.dummy_inputs import example_inputs
from tests.budgets.toy import random_scores
from tests.families.tiny import tiny_model


def parameters(model, heads):
    return count_parameters(model, heads).total


def within_share(model, share=None, **how):
    """A mask for a share of the parameters; half of what sites cost goes without one."""
    heads = hp.find_heads(model)
    selection = Selection(scores=random_scores(heads), heads=heads, model=model, **how)
    costs = selection.costs(Counted("parameters", model, heads, parameters))
    half = (costs.rest + 0.5 * (costs.total - costs.rest)) / costs.total
    return selection.within(costs, share if share is not None else half)


@pytest.mark.parametrize("family", ["bert", "llama", "bart", "gpt2"])
@pytest.mark.parametrize("kind", ["parameters", "macs"])
def test_counted_costs_are_those_of_the_pruned_model(family, kind):
    """What the table says a mask costs, a model pruned with it does; the budget is met, and not by far too much."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    unit = "group" if family == "llama" else "head"
    example = example_inputs(model, batch=2, length=7)
    count = parameters if kind == "parameters" else lambda model, heads: count_macs(model, heads, example).total
    selection = Selection(scores=random_scores(heads), heads=heads, model=model, unit=unit)
    costs = selection.costs(Counted(kind, model, heads, count))
    share = (costs.rest + 0.5 * (costs.total - costs.rest)) / costs.total
    mask = selection.within(costs, share)
    told = costs.rest + sum(
        costs.sites[s.id][
            len(mask.kept(s.id)) * len(s.groups) // s.num_heads if unit == "group" else len(mask.kept(s.id))
        ]
        for s in heads
    )
    hp.prune_(model, mask)
    real = count(model, hp.find_heads(model))
    assert real == pytest.approx(told, rel=1e-6)
    assert 0.85 * share * costs.total < real <= share * costs.total * (1 + 1e-9)


def test_budgets_that_cannot_be_met_are_refused():
    """With the reason, and nothing else."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    with pytest.raises(MaskError, match="what is not attention"):
        within_share(model, 0.2)
    with pytest.raises(MaskError, match="expected more than 0"):
        within_share(model, 1.2)
    with pytest.raises(MaskError, match="cannot be met"):
        within(random_scores(heads), heads, {s.id: [1.0, 2.0, 3.0, 4.0, 5.0] for s in heads}, 1.0)


def test_emptied_sites_and_query_units():
    """A model that was pruned before, and grouped queries that lose one head a group."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0"))
    assert 0 < len(within_share(model)) < 4
    llama = tiny_model("llama")
    hp.prune_(llama, within_share(llama, 0.999, unit="query"), gqa="query")


def lost(scores, mask):
    return sum(v for site, row in scores.scores.items() for h, v in enumerate(row) if h not in mask.kept(site))


@pytest.mark.parametrize("seed", range(5))
def test_no_other_mask_within_the_budget_loses_less(seed):
    """Against every combination of counts; costs that are neither equal nor straight."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    scores = random_scores(heads, seed)
    generator = torch.Generator().manual_seed(seed)
    costs = {s.id: [0.0, *torch.rand(4, generator=generator).cumsum(0).tolist()] for s in heads}
    total = sum(row[-1] for row in costs.values())
    mask = within(scores, heads, costs, 0.6 * total)
    spent = sum(costs[s.id][len(mask.kept(s.id))] for s in heads)
    assert spent <= 0.6 * total
    best = min(
        sum(sum(sorted(scores.scores[s.id])[: 4 - n]) for s, n in zip(heads, counts, strict=True))
        for counts in itertools.product(range(5), repeat=len(heads.sites))
        if sum(costs[s.id][n] for s, n in zip(heads, counts, strict=True)) <= 0.599 * total
    )
    assert lost(scores, mask) <= best + 1e-9


def test_scores_below_zero_are_no_reason_to_go():
    """Entropies are stored negated: all of the model fits, so all of it stays."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    scores = random_scores(heads)
    rows = {site: tuple(value - 5 for value in row) for site, row in scores.sums.items()}
    negative = HeadScores(method="random", sums=rows, squares=rows, counts=scores.counts, comparable=True)
    costs = {site.id: [0.0, 1.0, 2.0, 3.0, 4.0] for site in heads}
    assert len(within(negative, heads, costs, 8.0)) == 8
    assert within(negative, heads, costs, 5.0) == within(scores, heads, costs, 5.0)
    assert len(within(scores, heads, costs, 0.0)) == 0


def test_a_budget_loses_the_least_scores_also_far_from_zero():
    """Where one site's units cost more, it may be cheaper to lose one of these than several others."""
    heads = hp.find_heads(tiny_model("bert"))
    rows = {"encoder.0": [1.0] * 4, "encoder.1": [3.0] * 4}
    scores = HeadScores.from_values(heads, rows, method="curvature", comparable=True)
    costs = {"encoder.0": [0, 1, 2, 3, 4], "encoder.1": [0, 4, 8, 12, 16]}
    assert within(scores, heads, costs, 16.0).to_dict() == {"encoder.0": [0, 1, 2, 3], "encoder.1": [0, 1, 2]}


def test_uniform_keeps_the_same_number_everywhere():
    """The most that fits."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    costs = {site.id: [0.0, 1.0, 2.0, 3.0, 4.0] for site in heads}
    mask = within(random_scores(heads), heads, costs, 5.0, uniform=True)
    assert {len(mask.kept(site.id)) for site in heads} == {2}


def test_sites_keep_what_they_must():
    """`at_least` holds where the budget would have it otherwise."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    costs = {site.id: [0.0, 1.0, 2.0, 3.0, 4.0] for site in heads}
    mask = within(random_scores(heads), heads, costs, 4.0, at_least=2)
    assert all(len(mask.kept(site.id)) >= 2 for site in heads)
