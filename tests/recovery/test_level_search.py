"""Levels shifted between sites: never dearer, never further from the whole model, and the model is left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import headprune as hp
from headprune.heads import HeadMask
from headprune.masking import masked
from headprune.recovery.level_search import Room, Shifter
from headprune.recovery.recover import repaired
from headprune.scoring.context import ExampleLoss, ScoringContext, evaluation
from headprune.structure.find import find_parts
from tests.families.tiny import labelled_batches, tiny_model


def subject(count=8, seed=0, **more):
    """A model, its heads and neurons, their scores in an order that knows nothing, and what shifts levels."""
    model = tiny_model("bert", num_labels=2).eval()
    heads = find_parts(model, "both")[1]
    data = labelled_batches(model, count=count)
    scores = hp.score(model, method="random", heads=heads, seed=seed)
    context = ScoringContext(model=model, heads=heads, batches=data, loss=ExampleLoss("mean"))
    shifter = Shifter.of(context, scores, "least-squares", **{"passes": 40, "view": "none", **more})
    return context, scores, shifter


def costs_of(heads):
    """A head costs as much as four neurons."""
    return {
        site.id: [float(n * (4 if site.component != "neurons" else 1)) for n in range(site.num_heads + 1)]
        for site in heads
    }


def cost(mask, heads):
    return sum(costs_of(heads)[site.id][len(mask.kept(site.id))] for site in heads)


def bad_mask(context, scores):
    """One site has lost everything and another nothing."""
    heads = context.heads
    first, *_, last = (site.id for site in heads.neurons)
    values = scores.scores
    half = {
        site.id: sorted(sorted(site.kept, key=lambda head: -values[site.id][head])[: len(site.kept) // 2])
        for site in heads
    }
    return HeadMask.from_dict(heads, {**half, first: [], last: list(heads[last].kept)})


def test_a_better_mask_is_found_at_no_higher_cost():
    """From a bad one, where there is much to find; the answers are nearer on data that no fit saw."""
    context, scores, shifter = subject()
    mask = bad_mask(context, scores)
    before = {name: value.clone() for name, value in context.model.state_dict().items()}
    better = shifter.refined(mask, costs_of(context.heads))
    assert better != mask
    assert cost(better, context.heads) <= cost(mask, context.heads)
    assert all(value.equal(before[name]) for name, value in context.model.state_dict().items())

    def distance(chosen):
        fitted = replace(context, batches=shifter.levels.context.batches)
        repairing, masking = (
            repaired(fitted, chosen, "least-squares"),
            masked(context.model, chosen, heads=context.heads),
        )
        with torch.no_grad(), evaluation(context.model), repairing, masking:
            return shifter.whole.closeness_now().kl

    assert distance(better) < distance(mask)


def test_the_same_search_finds_the_same():
    """What is drawn hangs on the seed alone, not on what was looked for before."""
    context, scores, shifter = subject()
    mask, table = bad_mask(context, scores), costs_of(context.heads)
    first = shifter.refined(mask, table)
    assert shifter.refined(mask, table) == first
    assert subject()[2].refined(mask, table) == first


def test_every_site_keeps_as_many_as_it_must():
    """`at_least` holds for what is shifted, too."""
    context, _, shifter = subject(at_least=2)
    mask = HeadMask.from_dict(
        context.heads, {site.id: list(site.kept[: len(site.kept) // 2]) for site in context.heads}
    )
    found = shifter.refined(mask, costs_of(context.heads))
    assert all(len(found.kept(site.id)) >= 2 for site in context.heads)


def test_too_little_data_is_left_to_the_scores():
    """One batch cannot be fitted to and judged on; no passes are no search."""
    assert subject(count=2, passes=0)[2] is None
    context, scores, _ = subject()
    alone = replace(context, batches=list(context.batches)[:1])
    assert Shifter.of(alone, scores, "least-squares", passes=4) is None


@pytest.mark.parametrize("seed", range(20))
def test_an_offspring_is_within_its_room(seed):
    """Whatever is drawn: sites keep between their fewest and all, at no more than the limit."""
    table = {"a": [0.0, 1.0, 2.0, 3.0], "b": [0.0, 5.0, 10.0], "c": [0.0, 0.0, 7.0], "empty": [0.0]}
    counts = {"a": 2, "b": 1, "c": 2, "empty": 0}
    room = Room(table, 14.0, {"a": 1, "b": 0, "c": 1, "empty": 0})
    draw = random.Random(seed)
    for _ in range(20):
        counts = room.shifted(counts, draw)
        assert room.spent(counts) <= room.limit
        assert all(room.floors[site] <= count < len(table[site]) for site, count in counts.items())
