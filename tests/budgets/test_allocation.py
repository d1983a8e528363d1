"""Units within a budget: no other choice loses less."""

from __future__ import annotations

import itertools

import pytest
import torch

import headprune as hp
from headprune.budgets.allocation import within
from headprune.heads import HeadScores
from tests.budgets.toy import random_scores
from tests.families.tiny import tiny_model


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
