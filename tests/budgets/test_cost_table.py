"""What heads cost, counted on pruned models, and the masks within that."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.budgets import Selection
from headprune.budgets.allocation import within
from headprune.budgets.counted import Counted
from headprune.cost.macs import count_macs, count_parameters
from headprune.errors import MaskError
from headprune.structure import example_inputs
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
