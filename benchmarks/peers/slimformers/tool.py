"""slimformers, as its README has it: `Pruner(model).prune_attention_heads(...)`.

It scores and removes in one call. Its list of classes has BertModel and BertForMaskedLM, but no classifier: on one it
finds no block, says so and changes nothing. So that there is something to compare, the classifier's body is then put
into a BertForMaskedLM for the call; this is not in its documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from slimformers import Pruner
from torch import nn
from transformers import AutoModelForSequenceClassification

PACKAGE = "slimformers"
NOTE = (
    "`Pruner(BertForSequenceClassification)` finds no block and changes nothing; the classifier's body was handed over "
    "inside a `BertForMaskedLM`. It imports `Conv1D` from `transformers.modeling_utils`, where 4.55 was the last to "
    "have it"
)
Batches = list[dict[str, Any]]


def score_and_prune(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    body = transformers.BertForMaskedLM(model.config)
    body.bert = model.bert
    inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
    Pruner(body).prune_attention_heads(inputs, sparsity=share, max_batches=len(inputs))
    return model


def prune_family(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    Pruner(model).prune_attention_heads(batches, sparsity=share, max_batches=len(batches))
    return model


def empty_layer(model: nn.Module, batches: Batches, layer: int) -> nn.Module:
    """It takes no list of layers: all heads of all layers is the only way to ask for it."""
    return score_and_prune(model, batches, 1.0)


def save(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


def load(folder: Path) -> nn.Module:
    return AutoModelForSequenceClassification.from_pretrained(folder)


WAYS = {"query activations": score_and_prune}
