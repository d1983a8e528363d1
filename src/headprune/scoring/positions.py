"""Which positions of a batch are real, and which are padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def real_positions(batch: Mapping[str, Any], component: str, like: Tensor) -> Tensor:
    """1.0 at real query positions and 0.0 at padding: (batch, positions), shaped as the first two of `like`.

    Encoder sites follow the attention mask of the input, decoder and cross sites of an encoder-decoder that of the
    target (or its labels). Where nothing of that shape is in the batch, every position is real.
    """
    shape = tuple(like.shape[:2])
    names = ("attention_mask",) if component == "encoder" else ("decoder_attention_mask", "attention_mask")
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and tuple(mask.shape) == shape:
            return mask.to(like.dtype)
    labels = batch.get("labels")
    if component != "encoder" and isinstance(labels, Tensor) and tuple(labels.shape) == shape:
        return (labels != -100).to(like.dtype)
    return torch.ones(shape, dtype=like.dtype, device=like.device)
