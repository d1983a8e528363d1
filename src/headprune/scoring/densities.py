"""Scores that a budget of cost cuts at a threshold: what a weight of a unit is worth, times its weights.

A budget keeps what loses the least score in sum, so what decides between a head and a neuron is score per cost. Methods
that compare heads and neurons by a number of each unit, or not at all, say it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headprune.heads import HeadMap, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import units_of_site
from headprune.structure import projections
from headprune.structure.find import model_structure


def weights_of_unit(model: nn.Module, heads: HeadMap) -> dict[str, float]:
    """How many weights one head or neuron of each site has, those that heads share in equal parts."""
    found: dict[str, float] = {}
    parts = model_structure(model, neurons=True).feed_forward if heads.neurons else {}
    for site in heads:
        if not site.num_heads:
            continue
        outputs = projections.matrix(model.get_submodule(site.output)).shape[0]
        if site.is_neurons:
            kinds = parts[site.id].sources.values()
            found[site.id] = float(outputs * (1 + sum(1 if kind == "one" else 2 for kind in kinds)))
        else:
            found[site.id] = outputs * site.head_dim * (2.0 + 2.0 * site.num_kv_heads / site.num_heads)
    return found


def by_density(
    model: nn.Module, heads: HeadMap, densities: Mapping[str, Tensor], method: str, **options: object
) -> HeadScores:
    """Scores of which a budget keeps those with the largest densities; a table of (heads,) for each site."""
    weights = weights_of_unit(model, heads)
    lowest = min(float(row.min()) for row in densities.values())
    values = {
        site.id: ((densities[site.id] - lowest) * weights[site.id]).tolist() if site.num_heads else [] for site in heads
    }
    return HeadScores.from_values(heads, values, method=method, options=options)


def standardised(values: Tensor) -> Tensor:
    """With a mean of 0 and a standard deviation of 1."""
    return (values - values.mean()) / values.std(correction=0).clamp_min(1e-30)


def ranks(site: Site, values: Sequence[float], unit: Unit = "head") -> Tensor:
    """The place of each unit of a site by its value, as a share: (heads,). A threshold on it takes the same share from
    every site."""
    places = {head: place for place, head in enumerate(site.kept)}
    units = [
        [places[head.index] for head in members]
        for members in units_of_site(site, unit, (0.0,) * site.original_num_heads)
    ]
    worths = torch.tensor([sum(values[place] for place in members) for members in units], dtype=torch.float64)
    found = torch.zeros(site.num_heads, dtype=torch.float64)
    for rank, number in enumerate(worths.argsort(stable=True).tolist(), start=1):
        found[units[number]] = rank / len(units)
    return found


def even_shares(model: nn.Module, heads: HeadMap, scores: HeadScores, unit: Unit = "head") -> HeadScores:
    """The same order within each site, and the same share of every one: a site's numbers mean nothing in another."""
    densities = {}
    for site in heads:
        if site.num_heads:
            row = scores.scores[site.id]
            densities[site.id] = ranks(site, [float(row[index] or 0.0) for index in site.kept], unit)
    found = by_density(model, heads, densities, scores.method, shares="even", **dict(scores.options))
    return HeadScores.from_dict({**found.to_dict(), "comparable": True})
