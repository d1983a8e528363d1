"""`reconstruction`: how badly a site does without a head, after the others have been fitted to replace it."""

from __future__ import annotations

import torch
from torch import Tensor

from headprune.heads import HeadScores
from headprune.scoring.job import HeadSums, Job
from headprune.scoring.moments import Moments, moments_of
from headprune.scoring.registry import scorers
from headprune.sites import projections


@scorers.add("reconstruction")
def reconstruction(job: Job, *, ridge: float = 1e-4) -> HeadScores:
    """What share of a site's output is lost with a head, when the heads that are left are refitted by least squares.

    Heads of a site are taken away one by one, at each step the one whose loss after refitting is smallest; its score
    is that loss (or that of the one before, if that was larger), over the mean square of what the site writes.
    Cost: one forward, then linear algebra alone. Relations: needs no labels and does not see what the rest of the
    model makes of an error, as `residual` does.
    """
    sums = HeadSums(job.heads)
    sites = [site for site in job.heads if site.num_heads]
    found = moments_of(job, sites, list(job.batches))
    for site in sites:
        module = job.model.get_submodule(site.output)
        centred = getattr(module, "bias", None) is not None
        weight = projections.matrix(module).cpu().double()
        sums.add(site.id, elimination(weight, found[site.id], site.num_heads, ridge=ridge, centred=centred)[None])
    return sums.scores("reconstruction", ridge=ridge)


def elimination(weight: Tensor, moments: Moments, heads: int, *, ridge: float, centred: bool) -> Tensor:
    """The error that each head adds when it goes, (heads,), in the best order of going.

    With Q the inverse covariance of the heads that are left and W their fitted projection, head h adds
    tr(W_h Q_hh⁻¹ W_hᵀ); W and Q without it follow in closed form.
    """
    products = moments.products(centred=centred)
    width = len(products) // heads
    push = ridge * products.diagonal().mean().clamp_min(1e-30)
    inverse = torch.linalg.inv(products + push * torch.eye(len(products), dtype=torch.float64))
    size = torch.einsum("oi,ij,oj->", weight, products, weight).clamp_min(1e-30)
    weight = weight.clone()
    left = list(range(heads))
    added = torch.zeros(heads, dtype=torch.float64)
    largest = 0.0
    while left:
        costs = {}
        for head in left:
            own = slice(head * width, (head + 1) * width)
            solved = torch.linalg.solve(inverse[own, own], weight[:, own].T)  # (width, outputs)
            costs[head] = float((weight[:, own] * solved.T).sum())
        head = min(left, key=lambda h: costs[h])
        own = slice(head * width, (head + 1) * width)
        step = torch.linalg.solve(inverse[own, own], inverse[own])  # (width, all)
        weight -= weight[:, own] @ step
        inverse -= inverse[:, own] @ step
        left.remove(head)
        largest = max(largest, costs[head])
        added[head] = largest / float(size)
    return added
