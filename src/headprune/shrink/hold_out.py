"""A quarter of the examples is held out: nothing is fitted to it, and the price is told on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headprune.errors import DataError
from headprune.scoring.answers import has_labels
from headprune.scoring.context import batch_rows
from headprune.types import Batch

HELD = 4  # of so many examples one is held out
LEAST = 32  # examples below which a fit and its price mean little


def held_out(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches to fit on, and every fourth example to tell the price on. A batch whose tensors do not have a row for
    each example (images cut into patches, all in one tensor) stays whole, on one side."""
    rows = sum(map(batch_rows, batches))
    if rows < LEAST:
        raise DataError(
            f"Found {rows} examples; expected at least {LEAST}, a quarter of which is held out to tell the price on. A "
            "few hundred are better."
        )
    if len({has_labels(batch) for batch in batches}) > 1:
        bare = next(number for number, batch in enumerate(batches) if not has_labels(batch))
        raise DataError(f"Batch {bare} has no labels and others have some; expected labels in all batches or in none.")
    fitted: list[Batch] = []
    held: list[Batch] = []
    seen = kept = 0  # examples, and those that are held out
    for batch in batches:
        count = batch_rows(batch)
        if _has_rows(batch, count):
            place = torch.arange(seen, seen + count) % HELD == HELD - 1
        else:
            place = torch.full((count,), (kept + count) * HELD <= seen + count)
        seen, kept = seen + count, kept + int(place.sum())
        for part, chosen in ((fitted, ~place), (held, place)):
            if bool(chosen.all()):
                part.append(batch)
            elif bool(chosen.any()):
                part.append(_rows(batch, chosen))
    if not held:
        raise DataError(
            f"The {len(batches)} batches cannot be cut into examples, and too few to hold one out; expected {HELD} or "
            "more of them. Make them smaller."
        )
    return fitted, held


def _has_rows(batch: Batch, count: int) -> bool:
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor) and value.dim()]
    return all(len(value) == count for value in tensors)


def _rows(batch: Batch, chosen: torch.Tensor) -> Batch:
    return {
        name: value[chosen.to(value.device)] if isinstance(value, torch.Tensor) and value.dim() else value
        for name, value in batch.items()
    }
