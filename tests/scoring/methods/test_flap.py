"""`flap`."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.hooks import captured_inputs
from tests.families.tiny import labelled_batches, tiny_model


def heard(model, batches, path):
    """What a projection receives, every row of every batch."""
    rows = []
    for batch in batches:
        with torch.no_grad(), captured_inputs(model, {"it": model.get_submodule(path)}) as found:
            model(**batch)
        rows.append(found["it"][0].flatten(0, -2))
    return torch.cat(rows).double()


def test_flap_is_the_fluctuation_of_channels_through_their_weights():
    """Var(c) ‖W‖², standardised over the channels of a site and averaged over those of a head; a score is that times
    the weights of a head, from the lowest on."""
    model = tiny_model("bert")
    batches = [{**batch, "attention_mask": torch.ones_like(batch["input_ids"])} for batch in labelled_batches(model)]
    scores = hp.score(model, batches, method="flap")
    wanted = {}
    for site in hp.find_heads(model):
        weight = model.get_submodule(site.output).weight.detach().double()
        values = heard(model, batches, site.output).var(0, correction=0) * weight.square().sum(0)
        values = (values - values.mean()) / values.std(correction=0)
        wanted[site.id] = values.unflatten(0, (site.num_heads, -1)).mean(1)
    lowest = min(float(row.min()) for row in wanted.values())
    for site in hp.find_heads(model):
        per_head = 4 * site.head_dim * site.num_heads * site.head_dim
        expected = ((wanted[site.id] - lowest) * per_head).tolist()
        assert list(scores.scores[site.id]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_head_that_always_writes_the_same_is_worth_least():
    """Its mean says all of it: the bias can."""
    model = tiny_model("bert")
    layer = model.bert.encoder.layer[1].attention.self.value
    with torch.no_grad():
        layer.weight[8:16] = 0.0
        layer.bias[8:16] = 3.0
    scores = hp.score(model, labelled_batches(model), method="flap")
    assert scores["encoder.1:1"] == min(value for value in scores.scores["encoder.1"])


def test_a_budget_of_cost_cuts_heads_and_neurons_at_one_threshold():
    """What decides between a head and a neuron is its standardised fluctuation, not how many weights it has."""
    model = tiny_model("bert")
    every = hp.find_heads(model, neurons=True)
    scores = hp.score(model, labelled_batches(model), method="flap", heads=every)
    mask = hp.select(scores, every, params=0.9, model=model)
    width = every["encoder.0"].num_heads * every["encoder.0"].head_dim
    weights = {site.id: 2 * width if site.is_neurons else 4 * site.head_dim * width for site in every}
    kept = [scores[head] / weights[head.site] for head in hp.HeadMask.full(every) if head in mask]
    gone = [scores[head] / weights[head.site] for head in hp.HeadMask.full(every) if head not in mask]
    assert gone
    above = sum(value < max(gone) for value in kept)
    assert above <= 0.05 * len(kept)  # what one unit more or less would not fit
