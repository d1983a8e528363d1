"""What removed heads write on average, added to the output bias."""

from __future__ import annotations

from collections.abc import Sequence

from headprune.recovery.sequential import Fit, other_columns, recoveries
from headprune.scoring.moments import Moments


@recoveries.add("bias")
def fold_mean(full: Fit, moments: Moments, kept: Sequence[int], width: int) -> Fit:
    """What the removed heads write on average becomes part of the output bias.

    Adds a bias where there is none. Exact where a removed head writes the same everywhere.
    """
    gone = other_columns(kept, width, full)
    lost = full.weight[:, gone] @ moments.mean[gone]
    return Fit(full.weight, lost if full.bias is None else full.bias + lost)
