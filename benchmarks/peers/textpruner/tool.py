"""TextPruner, as its README has it: `TransformerPruner` with a configuration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from textpruner import GeneralConfig, TransformerPruner, TransformerPruningConfig
from textpruner.pruners.utils import generate_mask
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

PACKAGE = "textpruner"
NOTE = (
    "its setup.py compares Python versions as text, and so asks for numpy < 1.22 under Python 3.11, which has no wheel "
    "there; installed without its own list of dependencies"
)
Batches = list[dict[str, Any]]


def _pruner(model: nn.Module, **options: Any) -> TransformerPruner:
    folder = tempfile.mkdtemp(prefix="textpruner-")  # it caches its scores there, and reads them again
    return TransformerPruner(
        model,
        transformer_pruning_config=TransformerPruningConfig(**options),
        general_config=GeneralConfig(use_device="cpu", output_dir=folder),
    )


def _iterative(model: nn.Module, batches: Batches, share: float, **options: Any) -> nn.Module:
    config = model.config
    pruner = _pruner(
        model,
        pruning_method="iterative",
        target_ffn_size=getattr(config, "intermediate_size", None),  # all: only heads go
        target_num_of_heads=round((1 - share) * config.num_attention_heads),
        **options,
    )
    pruner.prune(dataloader=batches, save_model=False)
    return model


def score(model: nn.Module, batches: Batches) -> Tensor:
    """Its scores of heads and of feed-forward neurons, which it takes together."""
    return _pruner(model, pruning_method="iterative").get_importance_score(batches)[0]


def prune(model: nn.Module, scores: Tensor, share: float) -> nn.Module:
    """By the mask that it makes of its scores by default: as many heads from every layer."""
    return _by_mask(model, generate_mask(scores, round((1 - share) * scores.numel()), even_masking=True))


def _by_mask(model: nn.Module, mask: Tensor) -> nn.Module:
    _pruner(model, pruning_method="masks").prune(head_mask=mask, save_model=False)
    return model


def prune_family(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    return _iterative(model, batches, share)


def empty_layer(model: nn.Module, batches: Batches, layer: int) -> nn.Module:
    mask = torch.ones(model.config.num_hidden_layers, model.config.num_attention_heads)
    mask[layer] = 0
    return _by_mask(model, mask)


def save(model: nn.Module, folder: Path) -> None:
    """What its `save_model` writes: the weights, and the config with the heads that went."""
    folder.mkdir(parents=True, exist_ok=True)
    pruner = _pruner(model, pruning_method="masks")
    config = model.config
    pruner.head_mask = torch.ones(config.num_hidden_layers, config.num_attention_heads)
    pruner.ffn_mask = torch.ones(config.num_hidden_layers, config.intermediate_size)
    pruner.keep_shape = False
    pruner.output_dir = pruner.general_config.output_dir = str(folder.parent)
    pruner.save_model(dir_name=folder.name)


def load(folder: Path) -> nn.Module:
    return AutoModelForSequenceClassification.from_pretrained(folder)


def _way(**options: Any) -> Any:
    return lambda model, batches, share: _iterative(model, batches, share, **options)


WAYS = {
    "one iteration": _way(n_iters=1),
    "four iterations": _way(n_iters=4),
    "four iterations, heads uneven": _way(n_iters=4, head_even_masking=False),
    "one iteration, heads uneven": _way(n_iters=1, head_even_masking=False),
    "four iterations, heads uneven, by logits": _way(n_iters=4, head_even_masking=False, use_logits=True),
}
