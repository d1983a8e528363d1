"""Which positions of a batch are real, and which are padding; and of which example they are."""

from __future__ import annotations

import torch
from torch import Tensor

from headprune.heads import Site
from headprune.scoring.context import batch_rows
from headprune.types import Batch


def real_positions(batch: Batch, component: str, like: Tensor, *, has_encoder: bool) -> Tensor:
    """1.0 at real query positions and 0.0 at padding: (batch, positions), shaped as the first two of `like`.

    Encoder sites follow the attention mask of the input, decoder and cross sites of an encoder-decoder that of the
    target (or its labels; that of the input, where the decoder reads the input again to classify it). Where nothing of
    that shape is in the batch, every position is real.
    """
    own, labels, source = (_by_row(batch.get(name)) for name in ("decoder_attention_mask", "labels", "attention_mask"))
    is_target = component != "encoder" and has_encoder  # labels of a decoder alone may hide what is only read
    candidates = [own if component != "encoder" else None]
    if is_target:
        candidates.append(labels != -100 if labels is not None else None)
    if not is_target or (labels is None and "decoder_input_ids" not in batch):
        candidates.append(source)
    for found in candidates:
        if found is not None and found.shape == like.shape[:2]:
            return found.to(like)
    return torch.ones(like.shape[:2], dtype=like.dtype, device=like.device)


def _by_row(value: object) -> Tensor | None:
    """(batch, positions); several texts of an example (the choices of a question) one after another."""
    return value.flatten(1) if isinstance(value, Tensor) and value.dim() > 1 else None


def by_example(batch: Batch, values: Tensor, *, batch_axis: int = 0) -> Tensor | None:
    """What was computed at positions, with examples first: (batch, positions, …). Windows of a picture are joined.

    None where rows are of no example in particular: tokens that were sent to an expert, pictures of all examples in one
    row.
    """
    values, rows = values.movedim(batch_axis, 0), batch_rows(batch)
    if values.dim() == 3 and values.shape[0] == rows:
        return values
    if rows > 1 and not _comes_in_equal_parts(batch, values, rows):
        return None
    return values.reshape(rows, -1, values.shape[-1])


def _comes_in_equal_parts(batch: Batch, values: Tensor, rows: int) -> bool:
    """Windows, so many of each picture; or positions in one row, as many as the texts of the batch have."""
    if values.dim() > 2:
        return values.shape[0] % rows == 0
    texts = [text for text in map(_by_row, batch.values()) if text is not None and len(text) == rows]
    return any(values.shape[0] == text.numel() for text in texts)


def real_rows(batch: Batch, site: Site, values: Tensor, *, has_encoder: bool) -> Tensor:
    """The rows of an output projection's input at real positions: (rows, width). All, where they are of no example."""
    ordered = by_example(batch, values, batch_axis=site.batch_axis)
    if ordered is None:
        return values.flatten(0, -2)
    return ordered[real_positions(batch, site.side, ordered, has_encoder=has_encoder) > 0]


def example_means(batch: Batch, site: Site, values: Tensor, *, has_encoder: bool, batch_axis: int = 0) -> Tensor:
    """The mean of each example over its real positions: (batch, …). The mean over all for each, where rows are of no
    example in particular."""
    ordered = by_example(batch, values, batch_axis=batch_axis)
    if ordered is None:
        return values.flatten(0, -2).mean(0).expand(batch_rows(batch), -1)
    weights = real_positions(batch, site.side, ordered, has_encoder=has_encoder)
    return (ordered * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True).clamp_min(1)
