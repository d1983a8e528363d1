"""A factor for each kept head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headprune.recovery.sequential import Fit, recoveries
from headprune.scoring.moments import Moments


@recoveries.add("rescale")
def rescale(full: Fit, moments: Moments, kept: Sequence[int], width: int, *, ridge: float = 1e-4) -> Fit:
    """One factor for each kept head, the best by least squares; the bias is left alone.

    Few numbers, so little data is enough; much less is recovered than by `least-squares`.
    """
    if not len(kept):
        return full
    heads = full.weight.shape[1] // width
    together = (full.weight.T @ full.weight) * moments.products(centred=False)  # (heads * width, heads * width)
    by_head = together.unflatten(0, (heads, width)).unflatten(2, (heads, width))
    agreement = by_head.sum((1, 3))  # what two heads write, multiplied
    chosen = torch.tensor(list(kept), dtype=torch.long)
    within = agreement[chosen][:, chosen]
    wanted = agreement[chosen].sum(1)  # with what all heads write together
    push = ridge * within.diagonal().mean().clamp_min(1e-30)
    identity = torch.eye(len(chosen), dtype=torch.float64)
    factors = torch.linalg.solve(within + push * identity, wanted + push)  # drawn towards 1
    weight = full.weight.clone().unflatten(1, (heads, width))
    weight[:, chosen] *= factors[None, :, None]
    return Fit(weight.flatten(1), full.bias)
