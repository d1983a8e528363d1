"""transformers 4 itself: gradients of `head_mask`, as its example script run_bertology takes them, and `prune_heads`.

Written from the method (Michel et al. 2019, and what the example's options say): the absolute gradient of the loss
with respect to a mask of ones is added up over batches, every layer divided by its norm, and the lowest heads go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

PACKAGE = "transformers"
NOTE = "version 5 has neither `prune_heads` nor `head_mask`"
Batches = list[dict[str, Any]]


def score(model: nn.Module, batches: Batches, mask: Tensor | None = None) -> Tensor:
    """(layers, heads)"""
    shape = (model.config.num_hidden_layers, model.config.num_attention_heads)
    mask = (torch.ones(shape) if mask is None else mask.clone()).requires_grad_()
    total = torch.zeros(shape)
    for batch in batches:
        model(**batch, head_mask=mask).loss.backward()
        assert mask.grad is not None
        total += mask.grad.abs()
        mask.grad = None
        model.zero_grad()
    return total / total.norm(dim=1, keepdim=True).clamp_min(1e-20)


def prune(model: nn.Module, scores: Tensor, share: float) -> nn.Module:
    count = int(share * scores.numel() + 1e-9)
    return _without(model, _guarded(scores).flatten().argsort()[:count].tolist(), scores.shape[1])


def _guarded(scores: Tensor) -> Tensor:
    """The best head of every layer is kept: a layer without heads ends in an error here."""
    return scores.scatter(1, scores.argmax(1, keepdim=True), float("inf"))


def _without(model: nn.Module, places: list[int], heads: int) -> nn.Module:
    gone: dict[int, list[int]] = {}
    for place in sorted(places):
        gone.setdefault(place // heads, []).append(place % heads)
    model.prune_heads(gone)
    return model


def prune_family(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    """Half of every layer: which heads does not matter here, so that families whose forward takes no `head_mask`
    get as far as `prune_heads`."""
    heads = model.config.num_attention_heads
    model.prune_heads({layer: list(range(int(share * heads))) for layer in range(model.config.num_hidden_layers)})
    return model


def empty_layer(model: nn.Module, batches: Batches, layer: int) -> nn.Module:
    model.prune_heads({layer: list(range(model.config.num_attention_heads))})
    return model


def save(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


def load(folder: Path) -> nn.Module:
    return AutoModelForSequenceClassification.from_pretrained(folder)


def _singly(batches: Batches) -> Batches:
    """One example a batch, the example script's default: gradients of different examples do not cancel out."""
    return [
        {name: value[row : row + 1] for name, value in batch.items()}
        for batch in batches
        for row in range(len(batch["labels"]))
    ]


def _at_once(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    return prune(model, score(model, _singly(batches)), share)


def _in_steps(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    """A tenth of the heads at a time, scored again with those masked that have gone: the example's own loop."""
    heads = model.config.num_attention_heads
    mask = torch.ones(model.config.num_hidden_layers, heads)
    wanted = int(share * mask.numel() + 1e-9)
    step = max(1, int(0.1 * mask.numel()))
    while (gone := int((mask == 0).sum())) < wanted:
        scores = _guarded(score(model, _singly(batches), mask))
        scores[mask == 0] = float("inf")
        mask.view(-1)[scores.flatten().argsort()[: min(step, wanted - gone)]] = 0
    return _without(model, (mask.flatten() == 0).nonzero().flatten().tolist(), heads)


WAYS = {"head_mask gradients, at once": _at_once, "head_mask gradients, 10 % at a time": _in_steps}
