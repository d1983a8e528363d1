"""Scoring in parts that survive an interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headprune.errors import HeadpruneError
from headprune.heads import HeadScores
from headprune.heads.files import dump, load, write_text
from headprune.scoring.registry import data_free
from headprune.scoring.run import score
from headprune.sites.find import find_heads, unwrapped

PART = 16  # batches between two writes


def score_in_parts(
    model: nn.Module,
    batches: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> HeadScores:
    """`score`, with the sums so far kept in `path`; the file is removed at the end.

    A file that was begun with another model, data or options is not gone on with.
    """
    if options.get("method") in data_free:
        return score(model, **options)
    key = _key(model, batches, options)
    total, done = _begun(path, key)
    heads = find_heads(model)
    for start in range(0, len(batches), PART):
        part = batches[start : start + PART]
        if start + len(part) <= done:
            for _ in part:
                progress("resuming")
            continue
        scores = score(model, _counted(part, progress), heads=heads, **options)
        total = scores if total is None else total + scores
        write_text(path, dump("partial-scores", {"key": key, "done": start + len(part), "scores": total.to_dict()}))
    scores = total if total is not None else score(model, [], heads=heads, **options)
    path.unlink(missing_ok=True)
    return scores


def _counted(part: Sequence[Mapping[str, Any]], progress: Callable[[str], None]) -> Any:
    for batch in part:
        progress("scoring")
        yield batch


def _begun(path: Path, key: str) -> tuple[HeadScores | None, int]:
    try:
        content = load("partial-scores", path.read_text(encoding="utf-8"))
        if content.get("key") == key and type(content.get("done")) is int:
            return HeadScores.from_dict(content["scores"]), content["done"]
    except (OSError, HeadpruneError, KeyError, TypeError):
        pass  # no usable beginning: start anew
    return None, 0


def _key(model: nn.Module, batches: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """The same for the same model, data and options."""
    digest = hashlib.sha256(json.dumps({k: str(v) for k, v in options.items()}, sort_keys=True).encode())
    for name, parameter in unwrapped(model).named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}{float(parameter.detach().double().sum())!r}".encode())
    for batch in batches:
        for name, value in sorted(batch.items()):
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}{float(value.double().sum())!r}".encode())
    return digest.hexdigest()[:16]
