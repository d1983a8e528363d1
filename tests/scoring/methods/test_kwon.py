"""`kwon`."""

from __future__ import annotations

import itertools

import pytest
import torch

import headprune as hp
from headprune.scoring.context import ExampleLoss, ScoringContext, evaluation
from headprune.scoring.methods.kwon import cheapest_together, rearranged
from headprune.shrink import Shrinker
from tests.families.tiny import labelled_batches, tiny_model


def gradients_by_hand(model, batch, example):
    """dL/dξ of one example for every head of `encoder.0`, by masks of its own."""
    heads = hp.find_heads(model)
    weights = {site.id: torch.ones(site.num_heads, requires_grad=True) for site in heads}
    one = {name: value[example : example + 1] for name, value in batch.items()}
    with hp.masked(model, weights):
        loss = model(**one).loss
    return torch.autograd.grad(loss, weights["encoder.0"])[0]


def test_kwon_begins_with_squared_gradients_of_the_masks():
    """The mean over examples of each one's own gradient, squared."""
    model = tiny_model("bert")
    batch = labelled_batches(model, 1)[0]
    own = torch.stack([gradients_by_hand(model, batch, example) for example in (0, 1)])
    scores = hp.score(model, [batch], method="kwon")
    means = [value / 2 for value in scores.sums["encoder.0"]]
    assert means == pytest.approx(own.square().mean(0).tolist(), rel=1e-4)


def test_heads_whose_gradients_cancel_go_together():
    """Alone each of the first two costs more than either of the others; together they cost nothing."""
    gradients = torch.tensor([[3.0, -3.0, 1.0, 1.0], [-3.0, 3.0, 1.0, 1.0]], dtype=torch.float64)
    block = gradients.T @ gradients / 2
    costs = {pair: float(block[list(pair)][:, list(pair)].sum()) for pair in itertools.combinations(range(4), 2)}
    assert min(costs, key=costs.__getitem__) == (0, 1)
    found = cheapest_together(block, 2)
    assert costs[tuple(sorted(found))] <= costs[2, 3]
    assert cheapest_together(block, 0) == []
    assert sorted(cheapest_together(block, 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_rearranging_never_costs_more_than_the_smallest_diagonal(seed):
    """What is let in and what leaves can only make the sum over pairs smaller."""
    torch.manual_seed(seed)
    rows = torch.randn(6, 9, dtype=torch.float64)
    block = rows.T @ rows
    for count in range(1, 9):
        start = block.diagonal().argsort()[:count]
        found = torch.tensor(cheapest_together(block, count))
        assert len(set(found.tolist())) == count
        assert block[found][:, found].sum() <= block[start][:, start].sum() + 1e-9


@pytest.mark.parametrize(("family", "unit"), [("bert", "head"), ("llama", "group")])
def test_every_site_keeps_as_many_as_before(family, unit):
    """Heads, whole groups and neurons change places within their sites alone."""
    model = tiny_model(family)
    every = hp.find_heads(model, neurons=True)
    batches = labelled_batches(model)
    if family == "llama":
        batches = [{**batch, "labels": batch["input_ids"]} for batch in batches]
    mask = hp.HeadMask.random(every, keep=0.5, seed=1, unit=unit)
    job = ScoringContext(model=model, heads=every, batches=batches, loss=ExampleLoss("mean"))
    with evaluation(model):
        found = rearranged(job, mask, unit)
    assert found != mask
    assert {site.id: len(found.kept(site.id)) for site in every} == {site.id: len(mask.kept(site.id)) for site in every}
    whole = {head for site in every for head in site.groups if set(head) <= set(found.kept(site.id))}
    assert sum(map(len, whole)) or unit == "head"


def test_shrink_rearranges_what_the_budget_chose():
    """The published way as one: the search, the rearrangement, the tuning of masks."""
    model = tiny_model("bert")
    batches = labelled_batches(model, 20)
    shrinker = Shrinker.of(model, batches, method="kwon", length=16)
    assert shrinker.way.recover == "mask-tuning"
    plain = Shrinker.of(model, batches, method="fisher", length=16)
    by_kwon, by_fisher = shrinker.mask("macs", 0.6), plain.mask("macs", 0.6)
    assert len(by_kwon) == len(by_fisher)
    assert by_kwon != by_fisher
