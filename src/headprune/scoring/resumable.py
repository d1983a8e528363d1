"""Scoring in parts that survive an interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headprune.files import WorkParts
from headprune.heads import HeadMap, HeadScores
from headprune.scoring.run import score, scorers
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.types import Batch

PART = 16  # batches a part


def score_in_parts(
    model: nn.Module,
    batches: Sequence[Batch],
    folder: Path,
    *,
    heads: HeadMap | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> HeadScores:
    """`score`, with the sums of finished parts kept in `folder`, which is removed at the end. Scores that do not add up
    are taken in one go."""
    method: str = options.setdefault("method", "sensitivity")
    if scorers[method].data_free or not batches:
        return score(model, [], heads=heads, **options)
    if scorers[method].needs_all:
        return score(model, list(_counted(batches, progress)), heads=heads, **options)
    heads = heads if heads is not None else find_heads(model)
    sites = {"sites": sorted(heads.original_counts())} if heads.neurons else {}
    parts = WorkParts(folder, work_key(unwrapped(model), batches, {**options, **sites}))
    total: HeadScores | None = None
    for start in range(0, len(batches), PART):
        some = batches[start : start + PART]
        kept = parts.get(str(start))
        if kept is not None:
            found = HeadScores.from_dict(kept)
            for _ in some:
                progress("resuming")
        else:
            found = score(model, _counted(some, progress), heads=heads, **options)
            parts.put(str(start), found.to_dict())
        total = found if total is None else total + found
    assert total is not None, "there is at least one batch"
    parts.finished()
    return total


def _counted(batches: Sequence[Batch], progress: Callable[[str], None]) -> Iterator[Batch]:
    for batch in batches:
        progress("scoring")
        yield batch


def work_key(model: nn.Module, batches: Sequence[Batch], options: Mapping[str, object]) -> str:
    """The same for the same weights, data and options; another for anything else."""
    digest = hashlib.sha256(json.dumps({k: str(v) for k, v in options.items()}, sort_keys=True).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}{float(parameter.detach().double().sum())!r}".encode())
    for batch in batches:
        for name, value in sorted(batch.items()):
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}{float(value.double().sum())!r}".encode())
    return digest.hexdigest()[:16]
