"""`reconstruction`: elimination in closed form."""

from __future__ import annotations

import torch

import headprune as hp
from headprune.recovery import Fit, recoveries
from headprune.recovery.sequential import columns_of
from headprune.scoring.methods.fisher_block import cheapest_first
from headprune.scoring.methods.reconstruction import elimination
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import labelled_batches, tiny_model


def test_elimination_is_what_refitting_after_every_head_finds(moments):
    """The closed form of each step against fitting anew, for every head that could have gone."""
    _, found = moments
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).double()
    full = Fit(weight, torch.zeros(5).double())

    def error(kept):
        fit = recoveries["least-squares"](full, found, kept, 3, ridge=0.0)
        return full.error(fit, found, columns_of(kept, 3))

    left, spent, expected, largest = [0, 1, 2, 3], 0.0, torch.zeros(4).double(), 0.0
    while left:
        costs = {head: error([h for h in left if h != head]) - spent for head in left}
        head = min(left, key=costs.get)
        largest = max(largest, costs[head])
        expected[head], spent = largest, spent + costs[head]
        left.remove(head)
    blocks = [columns_of([head], 3) for head in range(4)]
    torch.testing.assert_close(elimination(weight, found.products(centred=True), blocks, ridge=0.0), expected)


def test_heads_that_push_against_each_other_cost_less_together():
    """1 and 2 cancel: the second of them to go costs little."""
    gradients = torch.tensor([[1.0, -1.0, 0.9], [2.0, -2.0, 0.5]]).double()
    added = cheapest_first(gradients.T @ gradients)
    assert added.argsort().tolist()[0] == 2
    assert torch.allclose(cheapest_first(torch.eye(3).double()), torch.ones(3).double())


def test_groups_are_eliminated_together():
    """The score of a group is shared among its heads, and both units agree where there are no groups."""
    model = tiny_model("llama").eval()
    batch = example_inputs(model)
    batches = [{**batch, "labels": batch["input_ids"]}]
    for method in ("curvature", "reconstruction"):
        scores = hp.score(model, batches, method=method, unit="group").scores["decoder.0"]
        assert scores[0] == scores[1] != scores[2] == scores[3]
    model = tiny_model("bert").eval()
    by_head, by_group = (
        hp.score(model, labelled_batches(model), method="curvature", unit=u).scores for u in ("head", "group")
    )
    assert by_head == by_group
