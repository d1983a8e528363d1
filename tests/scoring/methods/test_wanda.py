"""`wanda`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from tests.families.tiny import labelled_batches, tiny_model
from tests.scoring.methods.test_flap import heard


def test_wanda_orders_a_site_by_weights_times_activations():
    """Σ |W_ij| ‖c_j‖ over the weights of a head."""
    model = tiny_model("bert")
    batches = [{**batch, "attention_mask": torch.ones_like(batch["input_ids"])} for batch in labelled_batches(model)]
    scores = hp.score(model, batches, method="wanda")
    for site in hp.find_heads(model):
        rows = heard(model, batches, site.output)
        weight = model.get_submodule(site.output).weight.detach().double()
        values = (weight.abs() * rows.square().mean(0).sqrt()).sum(0).unflatten(0, (site.num_heads, -1)).sum(1)
        row = torch.tensor(scores.scores[site.id])
        assert row.argsort().tolist() == values.argsort().tolist()


@pytest.mark.parametrize(("family", "unit"), [("bert", "head"), ("llama", "group")])
def test_wanda_takes_the_same_share_from_every_site(family, unit):
    """Of heads and of neurons, as near as whole ones come."""
    model = tiny_model(family)
    every = hp.find_heads(model, neurons=True)
    batches = labelled_batches(model)
    if family == "llama":
        batches = [{**batch, "labels": batch["input_ids"]} for batch in batches]
    scores = hp.score(model, batches, method="wanda", heads=every, unit=unit)
    mask = hp.select(scores, every, params=0.75, model=model, unit=unit)
    shares = {site.id: (len(mask.kept(site.id)) / site.num_heads, 1 / len(site.groups)) for site in every}
    middle = sum(share for share, _ in shares.values()) / len(shares)
    assert 0.2 < middle < 0.95
    coarsest = max(one for _, one in shares.values())  # of a site with four heads a quarter goes, or a half
    assert all(abs(share - middle) <= coarsest for share, _ in shares.values())
