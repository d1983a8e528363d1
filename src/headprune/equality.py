"""Whether two answers are the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """The largest difference of two answers, and what is allowed."""

    largest: float
    allowed: float

    @property
    def is_small(self) -> bool:
        return self.largest <= self.allowed  # a NaN is never small


def difference(found: Any, expected: Any) -> Difference:
    """Largest difference over all floating-point outputs. Attention maps and caches are not compared."""
    worst = Difference(0.0, 0.0)
    theirs = list(_tensors(expected))
    mine = list(_tensors(found))
    if len(mine) != len(theirs):
        return Difference(float("inf"), 0.0)
    for a, b in zip(mine, theirs, strict=True):
        if a.shape != b.shape:
            return Difference(float("inf"), 0.0)
        this = Difference(_largest_difference(a, b), _allowed(b))
        if not this.is_small or this.largest * worst.allowed > worst.largest * this.allowed or worst.allowed == 0.0:
            worst = this
        if not this.is_small:
            return this
    return worst


def _largest_difference(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().float(), b.detach().float()
    same = a == b  # infinities of masked logits included
    return float(torch.where(same, 0.0, (a - b).abs()).max()) if a.numel() else 0.0


def _allowed(expected: Tensor) -> float:
    """1e-5 of the largest output (at least 1) in float32; 2e-2 of the largest output in half precision."""
    values = expected.detach().float()
    values = values[values.isfinite() & (values > torch.finfo(expected.dtype).min / 2)]
    largest = float(values.abs().max()) if values.numel() else 0.0
    if expected.dtype in (torch.float16, torch.bfloat16):
        return 2e-2 * max(largest, 1e-3)
    return 1e-5 * max(1.0, largest)


def _tensors(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        if answer.is_floating_point():
            yield answer
    elif isinstance(answer, Mapping):
        for name, value in answer.items():
            if "attentions" not in str(name) and "past_key_values" not in str(name):
                yield from _tensors(value)
    elif isinstance(answer, list | tuple):
        for value in answer:
            yield from _tensors(value)
