"""Which heads a tool has really removed, and what the model with just these heads masked answers.

Both are read from the weights alone, so that no tool is taken at its word: a kept column of an output projection is
one of the original's columns, and the masked model is the original with the others' inputs multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Removed:
    """The columns of every output projection that are gone, by the name of its module."""

    columns: dict[str, list[int]]
    width: dict[str, int]  # of a head
    changed: tuple[str, ...] = ()  # projections with columns that the original does not have

    def heads(self) -> dict[str, list[int]]:
        """Heads of which nothing is left."""
        found = {}
        for name, gone in self.columns.items():
            size = self.width[name]
            counts = [0] * (max(gone, default=-1) // size + 1)
            for column in gone:
                counts[column // size] += 1
            found[name] = [head for head, count in enumerate(counts) if count == size]
        return found

    @property
    def count(self) -> int:
        return sum(map(len, self.heads().values()))

    @property
    def is_whole(self) -> bool:
        """Whether only whole heads are gone."""
        return all(len(gone) == len(self.heads()[name]) * self.width[name] for name, gone in self.columns.items())


def projections(model: nn.Module, endings: tuple[str, ...]) -> dict[str, nn.Module]:
    """The output projections of a model."""
    return {name: part for name, part in model.named_modules() if name.endswith(endings)}


def input_columns(projection: Any) -> Tensor:
    """(inputs, outputs): one row for each input of the projection, whichever way its weight lies."""
    weight = projection.weight.detach()
    return weight if type(projection).__name__ == "Conv1D" else weight.T


def removed(original: nn.Module, pruned: nn.Module, endings: tuple[str, ...], heads: int) -> Removed:
    """Compare the projections of two models column by column."""
    after = dict(pruned.named_modules())
    columns: dict[str, list[int]] = {}
    width: dict[str, int] = {}
    changed = []
    for name, projection in projections(original, endings).items():
        before = input_columns(projection)
        width[name] = before.shape[0] // heads
        places = {row.numpy().tobytes(): place for place, row in enumerate(before)}
        left = after.get(name)
        # A stand-in for an emptied projection may have a `weight` of one number; it is no parameter.
        rows = input_columns(left) if isinstance(getattr(left, "weight", None), nn.Parameter) else before[:0]
        kept = {places.get(row.contiguous().numpy().tobytes()) for row in rows}
        if None in kept:
            changed.append(name)
        columns[name] = [place for place in range(before.shape[0]) if place not in kept]
    return Removed(columns, width, tuple(changed))


@contextmanager
def masked(original: nn.Module, gone: Removed) -> Iterator[None]:
    """The original with the removed columns' inputs at zero until the block ends."""
    modules = dict(original.named_modules())
    handles = []
    for name, columns in gone.columns.items():
        factor = torch.ones(input_columns(modules[name]).shape[0])
        factor[columns] = 0
        handles.append(modules[name].register_forward_pre_hook(_scaled(factor)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _scaled(factor: Tensor) -> Any:
    return lambda module, inputs: (inputs[0] * factor, *inputs[1:])
