"""Torch-Pruning, as its README and its examples for BERT and for language models have it.

The examples prune hidden widths, too. Here only the query, key and value projections may lose anything, so that heads
go and nothing else. A width ratio above zero is needed for heads to go at all; with `prune_head_dims=False` it takes
nothing from attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch_pruning as tp
from torch import nn

PACKAGE = "torch-pruning"
NOTE = "only query, key and value projections may lose anything, so that heads go and nothing else"
Batches = list[dict[str, Any]]
PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn")


def _attentions(model: nn.Module) -> list[nn.Module]:
    """Modules whose own children are query, key and value projections."""
    return [part for part in model.modules() if any(name in PROJECTIONS for name, _ in part.named_children())]


def _pruner(model: nn.Module, batches: Batches, importance: Any, share: float, **options: Any) -> Any:
    config = model.config
    config.use_cache = False  # the cache joins tensors, which its tracing stumbles over
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    num_heads = {}
    for attention in _attentions(model):
        for name, part in attention.named_children():
            if name in PROJECTIONS:
                num_heads[part] = keys if name in ("k_proj", "v_proj") else heads
    ignored = [part for part in model.modules() if part not in num_heads and not list(part.children())]
    example = {"input_ids": batches[0]["input_ids"][:1]}
    return tp.pruner.BasePruner(
        model,
        example,
        importance=importance,
        pruning_ratio=share,
        ignored_layers=ignored,
        num_heads=num_heads,
        out_channel_groups={},
        in_channel_groups={},
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=share,
        output_transform=lambda outputs: outputs.logits.sum(),
        **options,
    )


def _pruned(model: nn.Module, pruner: Any) -> nn.Module:
    """Its steps, and then the numbers that its examples set by hand."""
    pruner.step()
    config = model.config
    keys_too = getattr(config, "num_key_value_heads", None) == config.num_attention_heads
    for attention in _attentions(model):
        children = dict(attention.named_children())
        part = next(children[name] for name in PROJECTIONS if name in children)
        left = pruner.num_heads[part]
        if hasattr(attention, "num_attention_heads"):  # BERT
            attention.num_attention_heads = left
            attention.all_head_size = children["query"].out_features
        elif "q_proj" in children:  # Llama, BART
            attention.num_heads = left
            if hasattr(attention, "num_key_value_groups"):
                kept = children["k_proj"].out_features // attention.head_dim
                attention.num_key_value_groups = left // kept
            if hasattr(attention, "embed_dim"):
                attention.embed_dim = children["q_proj"].out_features
        elif isinstance(part, nn.Linear):  # one projection for all three
            attention.num_heads = left
            attention.hidden_size = part.out_features // 3
            config.num_attention_heads = left
            if keys_too:
                attention.num_key_value_heads = config.num_key_value_heads = left
    model.zero_grad()
    return model


def _gradients(model: nn.Module, batches: Batches) -> None:
    model.zero_grad()
    for batch in batches:
        model(**batch).loss.backward()


def score(model: nn.Module, batches: Batches) -> Any:
    """What its Taylor importance needs: the gradient of the loss over the data, and the graph of dependencies."""
    _gradients(model, batches)
    return _pruner(model, batches, tp.importance.GroupTaylorImportance(), 0.5)


def score_by_weights(model: nn.Module) -> Any:
    ids = torch.ones(1, 8, dtype=torch.long)
    pruner = _pruner(model, [{"input_ids": ids}], tp.importance.GroupMagnitudeImportance(p=2), 0.5)
    groups = pruner.DG.get_all_groups(ignored_layers=pruner.ignored_layers, root_module_types=pruner.root_module_types)
    return [pruner.estimate_importance(group) for group in groups]


def prune(model: nn.Module, scores: Any, share: float) -> nn.Module:
    return _pruned(model, scores)


def prune_family(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    return _pruned(model, _pruner(model, batches, tp.importance.GroupMagnitudeImportance(p=2), share))


def empty_layer(model: nn.Module, batches: Batches, layer: int) -> nn.Module:
    attention = _attentions(model)[layer]
    ratios = {part: 1.0 for name, part in attention.named_children() if name in PROJECTIONS}
    pruner = _pruner(model, batches, tp.importance.GroupMagnitudeImportance(p=2), 0.5, head_pruning_ratio_dict=ratios)
    return _pruned(model, pruner)


def save(model: nn.Module, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model, folder / "model.pth")


def load(folder: Path) -> nn.Module:
    return torch.load(folder / "model.pth", weights_only=False)


def _taylor(**options: Any) -> Any:
    def way(model: nn.Module, batches: Batches, share: float) -> nn.Module:
        _gradients(model, batches)
        return _pruned(model, _pruner(model, batches, tp.importance.GroupTaylorImportance(), share, **options))

    return way


def _magnitude(**options: Any) -> Any:
    def way(model: nn.Module, batches: Batches, share: float) -> nn.Module:
        importance = tp.importance.GroupMagnitudeImportance(p=2)
        return _pruned(model, _pruner(model, batches, importance, share, **options))

    return way


def _hessian(model: nn.Module, batches: Batches, share: float) -> nn.Module:
    """Squared gradients, example by example."""
    importance = tp.importance.GroupHessianImportance()
    importance.zero_grad()
    for batch in batches:
        for row in range(len(batch["labels"])):
            model.zero_grad()
            model(**{name: value[row : row + 1] for name, value in batch.items()}).loss.backward()
            importance.accumulate_grad(model)
    return _pruned(model, _pruner(model, batches, importance, share))


WAYS = {
    "Taylor, as many from every layer": _taylor(),
    "Taylor, over all layers": _taylor(global_pruning=True),
    "Hessian, as many from every layer": _hessian,
    "magnitude, as many from every layer": _magnitude(),
    "magnitude, over all layers": _magnitude(global_pruning=True),
}
