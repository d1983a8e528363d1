"""The output projection fitted to the kept heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headprune.recovery.methods.bias import fold_mean
from headprune.recovery.sequential import Fit, columns_of, other_columns, recoveries
from headprune.scoring.moments import Moments


@recoveries.add("least-squares")
def least_squares(full: Fit, moments: Moments, kept: Sequence[int], width: int, *, ridge: float = 1e-4) -> Fit:
    """The projection of the kept heads that comes nearest to what all heads wrote: argmin E‖W'c_kept + b' - Wc - b‖².

    `ridge` times the mean variance of the kept heads is what a change of the weights costs, so that a fit on little
    data stays near the original. Without a bias in the model, none is fitted. Exact where the removed heads are
    linear functions of the kept ones.
    """
    columns, gone = columns_of(kept, width), other_columns(kept, width, full)
    has_bias = full.bias is not None
    if not len(columns):
        return fold_mean(full, moments, kept, width) if has_bias else full
    products = moments.products(centred=has_bias)
    within = products[columns][:, columns]
    within = within + ridge * within.diagonal().mean().clamp_min(1e-30) * torch.eye(len(columns), dtype=torch.float64)
    between = products[gone][:, columns]
    wanted = full.weight[:, gone] @ between  # (outputs, kept): what is lost, as the kept channels see it
    change = torch.cholesky_solve(wanted.T, torch.linalg.cholesky(within)).T
    weight = full.weight.clone()
    weight[:, columns] += change
    if full.bias is None:
        return Fit(weight, None)
    shift = full.weight[:, gone] @ moments.mean[gone] - change @ moments.mean[columns]
    return Fit(weight, full.bias + shift)
