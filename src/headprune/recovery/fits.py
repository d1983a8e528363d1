"""A fit of an output projection to the heads that are left of its site, and the table of methods that make one.

A method is given what all heads write on calibration data (`Moments`), and answers with a new weight and bias such that
the kept heads alone come near to what all heads wrote. Nothing remains at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headprune.registry import Registry
from headprune.scoring.context import equations_of
from headprune.scoring.moments import Moments


@dataclass(frozen=True)
class Fit:
    """The output projection of one site, (outputs, heads * width) and (outputs,), in float64."""

    weight: Tensor
    bias: Tensor | None

    def error(self, other: Fit, moments: Moments, kept: Tensor) -> float:
        """The mean squared distance of this projection of all heads from another one of the kept columns."""
        gap = -self.weight.clone()
        gap[:, kept] += other.weight[:, kept]
        zero = torch.zeros(len(gap), dtype=torch.float64)
        shift = (other.bias if other.bias is not None else zero) - (self.bias if self.bias is not None else zero)
        mean = gap @ moments.mean
        spread = torch.einsum("oi,ij,oj->", gap, moments.products(centred=True), gap)
        return float(spread + (mean + shift).square().sum())


Recovery = Callable[..., Fit]
recoveries: Registry[Recovery] = Registry("recovery", "headprune.recoveries")


def columns_of(heads: Sequence[int], width: int) -> Tensor:
    """The columns of an output projection that belong to heads, given by their place in it."""
    return torch.tensor([head * width + i for head in heads for i in range(width)], dtype=torch.long)


def other_columns(kept: Sequence[int], width: int, full: Fit) -> Tensor:
    """The columns of all other heads."""
    heads, stay = full.weight.shape[1] // width, set(kept)
    return columns_of([head for head in range(heads) if head not in stay], width)


def fitted(method: str, full: Fit, moments: Moments, kept: Sequence[int], width: int, **options: object) -> Fit:
    """By the name of a method."""
    with equations_of(f"The repair '{method}'"):
        return recoveries[method](full, moments, kept, width, **options)
