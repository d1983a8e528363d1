"""`residual`: what a head gives that the others cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.heads import HeadScores, Site
from headprune.hooks import captured_inputs
from headprune.scoring.context import HeadSums, ScoringContext, batch_rows, single_examples, with_gradients
from headprune.scoring.moments import Moments, by_example, moments_of, within_memory
from headprune.scoring.run import scorers
from headprune.types import Batch


@scorers.add("residual", needs_all=True)
def residual(job: ScoringContext, *, ridge: float = 1e-4, squared: bool = False) -> HeadScores:
    """How much the loss moves with the part of a head that no least-squares repair could replace:
    E_x |Σ_t dL(x)/dc_t · e_t|, where e is what is left of the head's context c after regression on the other heads'.

    `squared` takes squares instead of absolute values. Cost: a forward to collect moments, then as `sensitivity`, and
    one solve of (heads * width)³ a site. Relations: `sensitivity` where heads have nothing in common; 0 for a head
    that is a linear function of others. Meant for pruning with `recover_(method="least-squares")`.
    """
    batches = list(job.batches)
    sums = HeadSums(job.heads)
    for sites in within_memory([site for site in job.heads if site.num_heads], copies=2):
        modules = {site.id: job.model.get_submodule(site.output) for site in sites}
        unexplained = {
            site.id: Unexplained(
                moments, site.num_heads, ridge=ridge, centred=getattr(modules[site.id], "bias", None) is not None
            )
            for site, moments in zip(sites, moments_of(job, sites, batches).values(), strict=True)
        }
        for batch in batches:
            for site, moved in _moved(job, batch, sites, unexplained).items():
                sums.add(site, moved.square() if squared else moved.abs())
    return sums.scores("residual", ridge=ridge, squared=squared)


def _moved(
    job: ScoringContext, batch: Batch, sites: Sequence[Site], unexplained: Mapping[str, Unexplained]
) -> dict[str, Tensor]:
    """Σ_t dL(x)/dc_t · e_t of every example x, for the sites that the batch reaches: site -> (batch, heads)."""
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    with torch.enable_grad(), captured_inputs(job.model, modules) as contexts:
        total = job.example_losses(batch).sum()
    found: dict[str, Tensor] = {}
    for site, pairs in with_gradients(total, contexts, sites).items():
        for context, grad in pairs:  # a block that layers share moves the loss with each of its calls
            rest = unexplained[site](context)
            dots = (rest * grad).unflatten(-1, (job.heads[site].num_heads, -1)).sum(-1)  # (…, heads)
            ordered = by_example(batch, dots, batch_axis=job.heads[site].batch_axis)
            if ordered is None:
                return _one_by_one(job, batch, sites, unexplained, site)
            found[site] = found.get(site, 0) + ordered.sum(1)
    return found


def _one_by_one(
    job: ScoringContext,
    batch: Batch,
    sites: Sequence[Site],
    unexplained: Mapping[str, Unexplained],
    site: str,
) -> dict[str, Tensor]:
    """Where the rows of a batch are of no example in particular, each example by itself."""
    rows = batch_rows(batch)
    packed = [name for name, value in batch.items() if isinstance(value, Tensor) and value.dim() and len(value) != rows]
    if packed:
        raise DataError(
            f"'{packed[0]}' has {len(batch[packed[0]])} rows for {rows} examples, so that what {site} "
            "computes cannot be told by example. Pass batches of one example each, or use another score."
        )
    parts = [_moved(job, example, sites, unexplained) for example in single_examples(batch)]
    reached = dict.fromkeys(name for part in parts for name in part)
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in reached}


class Unexplained:
    """What is left of each head's context after regression on the contexts of all other heads of its site.

    With Q the inverse of the (regularised) covariance, head h's rest is Q_hh⁻¹ (Q c)_h: one matrix for all heads.
    """

    def __init__(self, moments: Moments, heads: int, *, ridge: float, centred: bool) -> None:
        products = moments.products(centred=centred)
        width = len(products) // heads
        push = ridge * products.diagonal().mean().clamp_min(1e-30)
        inverse = torch.linalg.inv(products + push * torch.eye(len(products), dtype=torch.float64))
        by_head = inverse.unflatten(0, (heads, width))  # (heads, width, heads * width)
        own = torch.stack([by_head[h, :, h * width : (h + 1) * width] for h in range(heads)])
        self.map = torch.linalg.solve(own, by_head).flatten(0, 1)  # (heads * width, heads * width)
        self.mean = moments.mean if centred else torch.zeros_like(moments.mean)

    def __call__(self, context: Tensor) -> Tensor:
        rest: Tensor = (context - self.mean.to(context)) @ self.map.T.to(context)
        return rest
