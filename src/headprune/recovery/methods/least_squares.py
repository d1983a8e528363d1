"""The output projection fitted to the kept heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headprune.recovery.methods.bias import fold_mean
from headprune.recovery.sequential import Fit, columns_of, judged_on_held_rows, other_columns, recoveries
from headprune.scoring.moments import Moments

RIDGE = 1e-2  # where there is nothing to choose it on
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@recoveries.add("least-squares")
@judged_on_held_rows
def least_squares(
    full: Fit,
    moments: Moments,
    kept: Sequence[int],
    width: int,
    *,
    ridge: float | None = None,
    ridges: Sequence[float] = RIDGES,
) -> Fit:
    """The projection of the kept heads that comes nearest to what all heads wrote: argmin E‖W'c_kept + b' - Wc - b‖².

    `ridge` times the mean variance of the kept heads is what a change of the weights costs, so that a fit on little
    data stays near the original. Unless it is given, it is the one of `ridges` with which a fit on three quarters of
    the data comes nearest on the rest, for each site; the fit is then made on all. Without a bias in the model, none
    is fitted. Exact where the removed heads are linear functions of the kept ones.
    """
    if ridge is None:
        ridge = RIDGE
        if moments.held is not None and moments.held.count and len(kept) and moments.held.count < moments.count:
            held, rest, columns = moments.held, moments.fitted_rows(), columns_of(kept, width)
            errors = {one: full.error(_solved(full, rest, kept, width, one), held, columns) for one in ridges}
            ridge = min(errors, key=errors.__getitem__)
    return _solved(full, moments, kept, width, ridge)


def _solved(full: Fit, moments: Moments, kept: Sequence[int], width: int, ridge: float) -> Fit:
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
