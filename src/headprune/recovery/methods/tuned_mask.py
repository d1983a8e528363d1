"""A factor for each kept head, towards what the whole model has at this place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headprune.recovery.sequential import Fit, columns_of, looks_at_stream, recoveries
from headprune.scoring.moments import Moments

LARGEST = 10.0  # of a factor: beyond it, a solution is not trusted


@recoveries.add("mask-tuning")
@looks_at_stream
def mask_tuning(full: Fit, moments: Moments, kept: Sequence[int], width: int, *, ridge: float = 1e-4) -> Fit:
    """One factor for each kept head or neuron: argmin Σ_t ‖x + Σ_h f_h W_h c_h + b - r‖² with x the damaged model's
    residual stream and r the whole model's behind the site.

    A site whose solution has a factor beyond ±10 is left as it is. The equations are solved with the ridge of the
    other repairs, drawn towards 1, in place of the paper's damped LSMR, and later sites are still tuned after such a
    site. Relations: `rescale` aims at what the site would write with all its heads; `stream` fits weights.
    Paper: Kwon et al. 2022, A Fast Post-Training Pruning Framework for Transformers, section 4.3.
    """
    if not len(kept):
        return full
    count = len(kept)
    columns = columns_of(kept, width)
    own, products = full.weight[:, columns], moments.products(centred=False)
    together = (own.T @ own) * products[columns][:, columns]  # (kept * width, kept * width)
    within = together.unflatten(0, (count, width)).unflatten(2, (count, width)).sum((1, 3))  # what two write
    wanted = (own.T @ full.weight * products[columns]).sum(1)  # (kept * width,): with all that the site would write
    if moments.drift is not None:
        wanted = wanted + (own * moments.drift.products(centred=False)[:, columns]).sum(0)
    push = ridge * within.diagonal().mean().clamp_min(1e-30)
    missing = wanted.unflatten(0, (count, width)).sum(1) - within.sum(1)  # (kept,): with every factor 1
    factors = 1 + torch.linalg.solve(within + push * torch.eye(count, dtype=torch.float64), missing)
    if float(factors.abs().max()) > LARGEST:
        return full
    weight = full.weight.clone()
    weight[:, columns] *= factors.repeat_interleave(width)
    return Fit(weight, full.bias)
