"""Ways to make up for removed heads in the output projection of their site. One function a method.

Each is given what all heads write on calibration data (`Moments`), and answers with a new weight and bias such that
the kept heads alone come near to what all heads wrote. Nothing remains at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headprune.registry import Registry
from headprune.scoring.moments import Moments, equations_of


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
recoveries: Registry[Recovery] = Registry("recovery")


def columns_of(heads: Sequence[int], width: int) -> Tensor:
    """The columns of an output projection that belong to heads, given by their place in it."""
    return torch.tensor([head * width + i for head in heads for i in range(width)], dtype=torch.long)


@recoveries.add("bias")
def fold_mean(full: Fit, moments: Moments, kept: Sequence[int], width: int) -> Fit:
    """What the removed heads write on average becomes part of the output bias.

    Adds a bias where there is none. Exact where a removed head writes the same everywhere.
    """
    gone = _others(kept, width, full)
    lost = full.weight[:, gone] @ moments.mean[gone]
    return Fit(full.weight, lost if full.bias is None else full.bias + lost)


@recoveries.add("least-squares")
def least_squares(full: Fit, moments: Moments, kept: Sequence[int], width: int, *, ridge: float = 1e-4) -> Fit:
    """The projection of the kept heads that comes nearest to what all heads wrote: argmin E‖W'c_kept + b' - Wc - b‖².

    `ridge` times the mean variance of the kept heads is what a change of the weights costs, so that a fit on little
    data stays near the original. Without a bias in the model, none is fitted. Exact where the removed heads are
    linear functions of the kept ones.
    """
    columns, gone = columns_of(kept, width), _others(kept, width, full)
    has_bias = full.bias is not None
    if not len(columns):
        return fold_mean(full, moments, kept, width) if has_bias else full
    products = moments.products(centred=has_bias)
    within = products[columns][:, columns]
    within = within + ridge * within.diagonal().mean().clamp_min(1e-30) * torch.eye(len(columns), dtype=torch.float64)
    between = products[gone][:, columns]
    replaced = torch.linalg.solve(within, between.T).T  # (gone, kept): each removed channel by the kept ones
    change = full.weight[:, gone] @ replaced
    weight = full.weight.clone()
    weight[:, columns] += change
    if full.bias is None:
        return Fit(weight, None)
    shift = full.weight[:, gone] @ moments.mean[gone] - change @ moments.mean[columns]
    return Fit(weight, full.bias + shift)


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


def _others(kept: Sequence[int], width: int, full: Fit) -> Tensor:
    heads, stay = full.weight.shape[1] // width, set(kept)
    return columns_of([head for head in range(heads) if head not in stay], width)


def fitted(method: str, full: Fit, moments: Moments, kept: Sequence[int], width: int, **options: Any) -> Fit:
    """By the name of a method."""
    with equations_of(f"The repair '{method}'"):
        return recoveries[method](full, moments, kept, width, **options)
