"""`reconstruction`: how badly a site does without a head, after the others have been fitted to replace it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headprune.heads import HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import units_of_site
from headprune.scoring.context import HeadSums, ScoringContext
from headprune.scoring.moments import moments_of, within_memory
from headprune.scoring.run import scorers
from headprune.structure import projections


@scorers.add("reconstruction", comparable=True, needs_all=True)
def reconstruction(job: ScoringContext, *, ridge: float = 1e-4, unit: Unit = "head") -> HeadScores:
    """What share of a site's output is lost with a head, when the heads that are left are refitted by least squares.

    Heads of a site are taken away one by one, at each step the one whose loss after refitting is smallest; its score
    is that loss (or that of the one before, if that was larger), over the mean square of what the site writes.
    With `unit="group"` the heads of a group go together. Cost: one forward, then linear algebra alone.
    Relations: needs no labels and does not see what the rest of the model makes of an error, as `curvature` does.
    """
    sums = HeadSums(job.heads)
    batches = list(job.batches)
    for sites in within_memory([site for site in job.heads if site.num_heads], copies=1):
        found = moments_of(job, sites, batches)
        for site in sites:
            module = job.model.get_submodule(site.output)
            weight = projections.matrix(module).cpu().double()
            products = found[site.id].products(centred=getattr(module, "bias", None) is not None)
            size = ((weight @ products) * weight).sum().clamp_min(1e-30)
            added = elimination(weight, products, blocks_of(site, unit), ridge=ridge)
            sums.add(site.id, by_head(site, unit, added / size)[None])
    return sums.scores("reconstruction", ridge=ridge, unit=unit)


def blocks_of(site: Site, unit: Unit) -> list[Tensor]:
    """The columns of an output projection's input that go together: of each head, or of each group of heads."""
    width, places = site.head_dim, {head: place for place, head in enumerate(site.kept)}
    steps = torch.arange(width)
    return [
        torch.cat([places[head.index] * width + steps for head in members])
        for members in units_of_site(site, unit, (0.0,) * site.original_num_heads)
    ]


def by_head(site: Site, unit: Unit, values: Tensor) -> Tensor:
    """The values of units, in equal parts for their heads: (heads,)."""
    places = {head: place for place, head in enumerate(site.kept)}
    found = torch.zeros(site.num_heads, dtype=values.dtype)
    for members, value in zip(units_of_site(site, unit, (0.0,) * site.original_num_heads), values, strict=True):
        found[[places[head.index] for head in members]] = value / len(members)
    return found


TOGETHER = 64  # one in so many blocks that are left goes at a step of an elimination, and at least one
SPARSE = 0.8  # of the blocks left in the matrices: then they are made smaller


def elimination(weight: Tensor, products: Tensor, blocks: Sequence[Tensor], *, ridge: float) -> Tensor:
    """The error that each block of columns adds when it goes, (blocks,), in the best order of going.

    With Q the inverse of the mean products of the columns that are left and W their fitted projection, block h adds
    tr(W_h Q_hh⁻¹ W_hᵀ) (or as much as the one before it, if that was more); W and Q without it follow in closed form.
    Of many blocks (neurons), the cheapest sixty-fourth of those that are left goes at a step: most of the work is at
    the beginning, where what goes is worth little.
    """
    push = ridge * products.diagonal().mean().clamp_min(1e-30)
    inverse = torch.cholesky_inverse(
        torch.linalg.cholesky(products + push * torch.eye(len(products), dtype=torch.float64))
    )
    weight = weight.clone()
    columns = torch.stack(list(blocks))  # (blocks, width): all are as wide
    left = torch.ones(len(blocks), dtype=torch.bool)
    added = torch.zeros(len(blocks), dtype=torch.float64)
    largest = 0.0
    names = torch.arange(len(blocks))
    while len(names):
        costs = _costs(weight, inverse, columns, left)
        chosen = costs.argsort()[: max(1, int(left.sum()) // TOGETHER)]
        own = columns[chosen].flatten()
        step = torch.linalg.solve(inverse[own][:, own], inverse[own])  # (columns that go, all)
        weight -= weight[:, own] @ step
        inverse -= inverse[:, own] @ step
        left[chosen] = False
        for number in chosen.tolist():
            largest = max(largest, float(costs[number]))
            added[names[number]] = largest
        if int(left.sum()) <= SPARSE * len(left):  # what is gone no longer changes anything: on without it
            stay = columns[left].flatten()
            weight, inverse = weight[:, stay], inverse[stay][:, stay]
            names, columns = names[left], torch.arange(len(stay)).view(-1, columns.shape[1])
            left = torch.ones(len(names), dtype=torch.bool)
    return added


def _costs(weight: Tensor, inverse: Tensor, columns: Tensor, left: Tensor) -> Tensor:
    """What each block would add, (blocks,); infinite for those that are gone."""
    if columns.shape[1] == 1:
        places = columns[:, 0]
        costs = weight[:, places].square().sum(0) / inverse.diagonal()[places].clamp_min(1e-30)
    else:
        own = inverse[columns[:, :, None], columns[:, None, :]]  # (blocks, width, width)
        own[~left] = torch.eye(own.shape[-1], dtype=torch.float64)  # gone: nothing to solve
        parts = weight[:, columns].transpose(0, 1)  # (blocks, outputs, width)
        costs = (parts * torch.linalg.solve(own, parts.transpose(1, 2)).transpose(1, 2)).sum((1, 2))
    return costs.masked_fill(~left, torch.inf)
