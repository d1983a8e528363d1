"""Scores that a budget cuts at a threshold."""

from __future__ import annotations

import headprune as hp
from headprune.scoring.densities import even_shares, weights_of_unit
from tests.families.tiny import tiny_model


def test_a_unit_has_the_weights_that_go_with_it():
    """Heads and neurons together are the attention and feed-forward matrices of the model."""
    for family in ("bert", "llama"):
        model = tiny_model(family)
        every = hp.find_heads(model, neurons=True)
        weights = weights_of_unit(model, every)
        total = sum(weights[site.id] * site.num_heads for site in every)
        layers = [module for name, module in model.named_modules() if name.endswith(("layer", "layers"))]
        matrices = [p for name, p in layers[0].named_parameters() if p.dim() == 2 and "norm" not in name.lower()]
        assert total == sum(parameter.numel() for parameter in matrices)


def test_even_shares_keep_the_order_of_a_site_and_lose_what_it_says_of_others():
    """One site's numbers are a thousand times another's; both lose half."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    values = {
        site.id: [float(n + 1) * 1000**number for n in range(site.num_heads)] for number, site in enumerate(heads)
    }
    scores = even_shares(model, heads, hp.HeadScores.from_values(heads, values, method="mine"))
    mask = hp.select(scores, heads, prune=0.5)
    for site in heads:
        half = site.num_heads // 2
        assert mask.kept(site.id) == tuple(range(half, site.num_heads))
