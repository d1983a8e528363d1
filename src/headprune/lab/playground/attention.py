"""What every head looks at on a sentence, packed for a page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headprune.heads import HeadMap
from headprune.hooks import recorded_attention
from headprune.types import Tokenizer


@contextmanager
def attention_of(model: nn.Module, heads: HeadMap) -> Iterator[dict[str, Tensor]]:
    """Maps (batch, heads, queries, keys) by site, filled by the forward passes of the block."""
    with recorded_attention(model, {site.id: site.path for site in heads.attention if site.num_heads}) as maps:
        yield maps


def packed(maps: Mapping[str, Tensor], row: int, length: int) -> dict[str, str]:
    """One sentence's maps as bytes in base64, (heads x tokens x tokens), of the sites that look at the sentence."""
    found = {}
    for site, weights in maps.items():
        if weights.dim() == 4 and weights.shape[-1] >= length and weights.shape[-2] >= length:
            part = weights[row, :, :length, :length].float().cpu()
            found[site] = base64.b64encode(
                (part * 255).round().clamp(0, 255).to(torch.uint8).numpy().tobytes()
            ).decode()
    return found


def tokens_of(tokenizer: Tokenizer, ids: Any) -> tuple[str, ...]:
    """As people read them, without the marks that tokenizers have for a space."""
    names = tokenizer.convert_ids_to_tokens([int(one) for one in ids])
    return tuple(_readable(str(name)) for name in names)


def _readable(name: str) -> str:
    text = name.replace("\u2581", "").replace("\u0120", "").replace("\u010a", "\u23ce")
    return text or "\u2423"
