"""The output projection fitted to the kept heads, towards what the whole model has at this place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headprune.recovery.sequential import Fit, columns_of, looks_at_stream, other_columns, recoveries
from headprune.scoring.moments import Moments

AIMS = (0.0, 0.25, 0.5, 0.75, 1.0)
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)


@recoveries.add("stream")
@looks_at_stream
def stream(
    full: Fit,
    moments: Moments,
    kept: Sequence[int],
    width: int,
    *,
    aims: Sequence[float] = AIMS,
    ridges: Sequence[float] = RIDGES,
) -> Fit:
    """`least-squares`, aimed between what the site would write with all heads and what the whole model's stream needs:
    argmin E‖W'c_kept + b' - (Wc + b + α d)‖² + λ‖W' - W_kept‖².

    d is what the whole model's residual stream has behind this site and the damaged model, with all heads of the site,
    would not: errors of earlier sites that this one can make up for. The aim α and the strength λ are those of the
    grid that come nearest to the whole model's stream on a quarter of the data that the fit did not see; then it is
    fitted on all. Where the stream is not found, or there is too little data to hold some out, as `least-squares`.
    Cost: as `least-squares`, one more forward pass, and a system of equations for each strength.
    """
    aim, ridge = 0.0, ridges[0]
    if moments.drift is not None and moments.held is not None and moments.held.drift is not None:
        judged = _Solved(full, moments.fitted_rows(), kept, width)
        held, columns = moments.held, columns_of(kept, width)
        errors = {
            (one, strength): full.stream_error(fit, held, columns)
            for strength in ridges
            for one, fit in judged.fits(aims, strength)
        }
        aim, ridge = min(errors, key=errors.__getitem__)
    return next(fit for _, fit in _Solved(full, moments, kept, width).fits((aim,), ridge))


@dataclass(frozen=True)
class _Solved:
    full: Fit
    moments: Moments
    kept: Sequence[int]
    width: int

    def fits(self, aims: Iterable[float], ridge: float) -> Iterable[tuple[float, Fit]]:
        """One solution of the equations serves all aims: the fit is a line in them."""
        full, moments = self.full, self.moments
        centred, drift = full.bias is not None, moments.drift
        columns, gone = columns_of(self.kept, self.width), other_columns(self.kept, self.width, full)
        local = full.weight[:, gone] @ moments.products(centred=centred)[gone][:, columns]
        far = drift.products(centred=centred)[:, columns] if drift is not None else torch.zeros_like(local)
        change, more = self._solve(columns, torch.cat([local, far]), ridge).tensor_split(2)  # (outputs, kept) each
        for aim in aims:
            weight = full.weight.clone()
            weight[:, columns] += change + aim * more
            bias = full.bias
            if bias is not None:
                bias = bias + full.weight[:, gone] @ moments.mean[gone] - change @ moments.mean[columns]
                if drift is not None:
                    bias = bias + aim * (drift.mean - more @ drift.rows[columns] / drift.count)
            yield aim, Fit(weight, bias)

    def _solve(self, columns: Tensor, wanted: Tensor, ridge: float) -> Tensor:
        if not len(columns):
            return wanted
        within = self.moments.products(centred=self.full.bias is not None)[columns][:, columns]
        within = within + ridge * within.diagonal().mean().clamp_min(1e-30) * torch.eye(
            len(columns), dtype=torch.float64
        )
        return torch.cholesky_solve(wanted.T, torch.linalg.cholesky(within)).T
