"""headprune, as its README has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModelForSequenceClassification

import headprune as hp

PACKAGE = "headprune"
Batches = list[dict[str, Any]]


def score(model: nn.Module, batches: Batches) -> Any:
    return hp.score(model, batches, method="sensitivity")


def score_by_weights(model: nn.Module) -> Any:
    return hp.score(model, method="magnitude")


def prune(model: nn.Module, scores: Any, share: float) -> nn.Module:
    return hp.prune_(model, hp.select(scores, prune=share, at_least=1))


def prune_unchecked(model: nn.Module, scores: Any, share: float) -> nn.Module:
    """Without the comparison with the masked model that `prune_` makes by default."""
    return hp.prune_(model, hp.select(scores, prune=share, at_least=1), verify=False)


def prune_family(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    heads = hp.find_heads(model)
    shares_keys = any(site.num_kv_heads != site.num_heads for site in heads)
    scores = hp.score(model, batches, heads=heads)
    how: dict[str, Any] = {"per": "site", "unit": "group"} if shares_keys else {"per": "component", "at_least": 1}
    return hp.prune_(model, hp.select(scores, heads, prune=share, **how))


def empty_layer(model: nn.Module, batches: Batches, layer: int) -> nn.Module:
    return hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(f"encoder.{layer}"))


def save(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


def load(folder: Path) -> nn.Module:
    return AutoModelForSequenceClassification.from_pretrained(folder)


def _best(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    mask = hp.search(model, batches, prune=share)
    hp.recover_(model, mask, batches)
    return hp.prune_(model, mask)


def _sensitivity(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    return prune(model, score(model, batches), share)


# The first way is the one that counts; it is what the documentation calls best, and was fixed beforehand.
WAYS = {"best (curvature, least squares)": _best, "sensitivity, no repair": _sensitivity}
