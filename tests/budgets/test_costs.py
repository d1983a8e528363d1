"""Budgets: parameters, MACs and time, solved over sites."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.budgets.allocation import within
from headprune.budgets.costs import Costs, SpeedupMask, mask_for_budget, mask_for_speedup, mask_within, site_costs
from headprune.cost.macs import count_macs, count_parameters
from headprune.errors import BudgetError, MaskError
from headprune.structure import example_inputs
from tests.budgets.toy import random_scores
from tests.families.tiny import tiny_model


@pytest.mark.parametrize("family", ["bert", "llama", "bart", "gpt2"])
@pytest.mark.parametrize("kind", ["parameters", "macs"])
def test_counted_costs_are_those_of_the_pruned_model(family, kind):
    """What the table says a mask costs, a model pruned with it does; the budget is met, and not by far too much."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    unit = "group" if family == "llama" else "head"
    costs = site_costs(model, kind, heads=heads, unit=unit, batch=2, length=7)
    share = (costs.rest + 0.5 * (costs.total - costs.rest)) / costs.total
    mask = mask_within(random_scores(heads), heads, costs, share, unit=unit)
    told = costs.rest + sum(
        costs.sites[s.id][
            len(mask.kept(s.id)) * len(s.groups) // s.num_heads if unit == "group" else len(mask.kept(s.id))
        ]
        for s in heads
    )
    hp.prune_(model, mask)
    after = hp.find_heads(model)
    example = example_inputs(model, batch=2, length=7)
    real = count_parameters(model, after).total if kind == "parameters" else count_macs(model, after, example).total
    assert real == pytest.approx(told, rel=1e-6)
    assert 0.85 * share * costs.total < real <= share * costs.total * (1 + 1e-9)


def test_uniform_keeps_the_same_number_everywhere():
    """The most that fits."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    costs = {site.id: [0.0, 1.0, 2.0, 3.0, 4.0] for site in heads}
    mask = within(random_scores(heads), heads, costs, 5.0, uniform=True)
    assert {len(mask.kept(site.id)) for site in heads} == {2}


def test_budgets_that_cannot_be_met_are_refused():
    """With the reason, and nothing else."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    scores = random_scores(heads)
    costs = site_costs(model, "parameters", heads=heads)
    with pytest.raises(MaskError, match="what is not attention"):
        mask_within(scores, heads, costs, 0.2)
    with pytest.raises(MaskError, match="expected more than 0"):
        mask_within(scores, heads, costs, 1.2)
    with pytest.raises(MaskError, match="cannot be met"):
        within(scores, heads, {s.id: [1.0, 2.0, 3.0, 4.0, 5.0] for s in heads}, 1.0)
    with pytest.raises(MaskError, match="more than 1"):
        mask_for_speedup(model, scores, heads, 0.9)


def test_sites_keep_what_they_must():
    """`at_least` holds where the budget would have it otherwise."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    costs = {site.id: [0.0, 1.0, 2.0, 3.0, 4.0] for site in heads}
    mask = within(random_scores(heads), heads, costs, 4.0, at_least=2)
    assert all(len(mask.kept(site.id)) >= 2 for site in heads)


def test_a_speed_up_is_measured_not_believed():
    """On a model with enough attention for time to show; what the search says is what it measured last."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(vocab_size=50, hidden_size=256, num_hidden_layers=2, num_attention_heads=8, intermediate_size=64)
    ).eval()
    heads, threads = hp.find_heads(model), torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine would be all that is measured
    try:
        hit = mask_for_speedup(model, random_scores(heads), heads, 1.5, batch=2, length=256, repeats=3, tries=2)
    finally:
        torch.set_num_threads(threads)
    assert len(hit.mask) < len(heads)
    assert hit.spread[0] <= hit.speedup <= hit.spread[1]
    assert hit.speedup > 1.1


@pytest.mark.parametrize("smallest", [1.02, 2.0])
def test_a_table_that_says_it_cannot_be_done_is_not_believed(monkeypatch, smallest):
    """Times of a few passes may be wrong: the smallest model is measured, and only that can refuse."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    wrong = Costs("seconds", 1.0, {site.id: (0.0,) * (site.num_heads + 1) for site in heads})

    def measured(model, mask, *_):
        return SpeedupMask(mask, 1 / (1 - (1 - 1 / smallest) * (1 - len(mask) / len(heads))), (1.0, 2.0), (1.0, 1.0))

    monkeypatch.setattr("headprune.budgets.costs.site_costs", lambda *_, **__: wrong)
    monkeypatch.setattr("headprune.budgets.costs._measured", measured)
    if smallest < 1.25:
        with pytest.raises(MaskError, match=r"measured to be 1\.02 times"):
            mask_for_speedup(model, random_scores(heads), heads, 1.25)
    else:
        hit = mask_for_speedup(model, random_scores(heads), heads, 1.25)
        assert 0 < len(hit.mask) < len(heads)
        assert hit.speedup == pytest.approx(1.25, rel=0.1)


def test_emptied_sites_and_query_units():
    """A model that was pruned before, and grouped queries that lose one head a group."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0"))
    heads = hp.find_heads(model)
    costs = site_costs(model, "parameters", heads=heads)
    share = (costs.rest + 0.5 * (costs.total - costs.rest)) / costs.total
    assert 0 < len(mask_within(random_scores(heads), heads, costs, share)) < 4
    llama = tiny_model("llama")
    heads = hp.find_heads(llama)
    costs = site_costs(llama, "parameters", heads=heads, unit="query")
    mask = mask_within(random_scores(heads), heads, costs, 0.999, unit="query")
    hp.prune_(llama, mask, gqa="query")


def test_a_uniform_speedup_of_unequal_sites_is_refused():
    """Before anything is timed; it once answered with a mask without heads."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    heads = hp.find_heads(model)
    scores = hp.score(model, method="random", heads=heads)
    with pytest.raises(MaskError, match=r"encoder\.0 has 3, encoder\.1 4"):
        mask_for_speedup(model, scores, heads, 1.001, uniform=True, repeats=3)
    with pytest.raises(BudgetError, match="cannot be met"):
        mask_for_budget(model, scores, heads, "parameters", 0.01)
