"""Which positions of a batch are real, and which are padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headprune.heads import Site
from headprune.scoring.job import batch_rows


def real_positions(batch: Mapping[str, Any], component: str, like: Tensor, *, has_encoder: bool) -> Tensor:
    """1.0 at real query positions and 0.0 at padding: (batch, positions), shaped as the first two of `like`.

    Encoder sites follow the attention mask of the input, decoder and cross sites of an encoder-decoder that of the
    target (or its labels). Where nothing of that shape is in the batch, every position is real.
    """
    shape = tuple(like.shape[:2])
    own, labels, source = (batch.get(name) for name in ("decoder_attention_mask", "labels", "attention_mask"))
    if component != "encoder" and isinstance(own, Tensor) and tuple(own.shape) == shape:
        return own.to(like)
    is_target = component != "encoder" and has_encoder  # labels of a decoder alone may hide what is only read
    if is_target and isinstance(labels, Tensor) and tuple(labels.shape) == shape:
        return (labels != -100).to(like)
    if not is_target and isinstance(source, Tensor) and tuple(source.shape) == shape:
        return source.to(like)
    return torch.ones(shape, dtype=like.dtype, device=like.device)


def by_example(batch: Mapping[str, Any], site: Site, values: Tensor) -> Tensor:
    """What an output projection sees, with examples first: (batch, positions, …). Windows of a picture are joined."""
    values = values.movedim(site.batch_axis, 0)
    rows = batch_rows(batch)
    if values.dim() != 3 or values.shape[0] != rows:
        values = values.reshape(rows, -1, values.shape[-1])
    return values


def real_rows(batch: Mapping[str, Any], site: Site, values: Tensor, *, has_encoder: bool) -> Tensor:
    """The rows of an output projection's input at real positions: (rows, width)."""
    values = by_example(batch, site, values)
    return values[real_positions(batch, site.side, values, has_encoder=has_encoder) > 0]
