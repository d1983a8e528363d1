"""Gradients of losses with respect to head masks, shared by `sensitivity` and `fisher`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headprune.errors import MaskError
from headprune.heads import Site
from headprune.masking import masked
from headprune.scoring.context import ScoringContext, batch_rows, single_examples
from headprune.types import Batch

Gradients = dict[str, Tensor]


def example_gradients(job: ScoringContext, batch: Batch) -> Gradients:
    """dL(x)/dξ for every example x of the batch: site -> (batch, heads).

    Each example has a mask of its own, so one backward of the summed loss gives every example's gradient. Where the
    output projection does not see the batch first (Swin's windows), examples go one by one.
    """
    try:
        return _gradients(job, batch, (batch_rows(batch),))
    except MaskError:
        parts = [_gradients(job, example, ()) for example in single_examples(batch)]
        return {site: torch.stack([part[site] for part in parts]) for site in parts[0]}


def with_gradients(
    total: Tensor, contexts: Mapping[str, list[Tensor]], sites: Sequence[Site]
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """What output projections received, each with the gradient of a loss: site -> one pair a call."""
    flat = [(site.id, context) for site in sites for context in contexts[site.id]]
    grads = torch.autograd.grad(total, [context for _, context in flat], allow_unused=True, materialize_grads=True)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {site.id: [] for site in sites}
    for (name, context), grad in zip(flat, grads, strict=True):
        found[name].append((context.detach(), grad))
    return found


def batch_gradients(job: ScoringContext, batch: Batch) -> Gradients:
    """d(mean loss)/dξ with one mask for the whole batch: site -> (1, heads)."""
    found = _gradients(job, batch, ())
    return {site: grad.unsqueeze(0) / batch_rows(batch) for site, grad in found.items()}


def _gradients(job: ScoringContext, batch: Batch, shape: tuple[int, ...]) -> Gradients:
    sites = [site for site in job.heads if site.num_heads]
    device = next(job.model.parameters()).device
    masks = {s.id: torch.ones(*shape, s.original_num_heads, device=device, requires_grad=True) for s in sites}
    with torch.enable_grad(), masked(job.model, masks, heads=job.heads):
        total = job.example_losses(batch).sum()  # sum: each row keeps its own gradient
    grads = torch.autograd.grad(total, list(masks.values()), allow_unused=True)
    return {
        site.id: torch.zeros(*shape, site.num_heads, device=device) if grad is None else grad[..., list(site.kept)]
        for site, grad in zip(sites, grads, strict=True)
    }
