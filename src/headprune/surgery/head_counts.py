"""Counts that modules repeat (heads, groups, widths), and how they follow a cut."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from headprune.hooks import SlicedMultihead, Width, width_followed_by
from headprune.structure import projections
from headprune.structure.configs import value_of
from headprune.structure.trace import AttentionBlock
from headprune.surgery.edits import Edits
from headprune.surgery.units import Cut

# Widths that some modules repeat and reshape to; tried only if repairing head counts is not enough.
WIDTH_NAMES = ("embed_dim", "output_dim", "split_size", "hidden_size", "attention_size", "d_model")


def repairs(model: nn.Module, block: AttentionBlock, cut: Cut) -> Iterator[Edits]:
    """Ways to make the counts that modules repeat agree with the cut, the most likely first."""
    counts, widths = _counts(model, block, cut)
    both = {path: {**counts.get(path, {}), **widths.get(path, {})} for path in {**counts, **widths}}
    view = _config_counts(model, block, cut)
    known = width_followed_by(model.get_submodule(block.attention))
    if known is None:
        for attributes in (counts, both) if widths else (counts,):
            ways = [Edits(attributes=attributes)]
            if view:
                ways.append(Edits(attributes=attributes, configs={block.attention: view}))
            # What an emptied site answers does not depend on its keys and values, so that any way would do; but a cache
            # keeps them, and by the shape of those of the first layer it counts the tokens that it has seen.
            yield from reversed(ways) if cut.is_empty else ways
    whole = known.whole if known is not None else block.heads * block.head_dim
    follow = {block.attention: Width(whole, max(1, len(cut.positions)), block.head_dim)}
    yield Edits(attributes=counts, reshapes=follow)
    if view:
        yield Edits(attributes=counts, reshapes=follow, configs={block.attention: view})


def _counts(
    model: nn.Module, block: AttentionBlock, cut: Cut
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Attributes of the block's modules that count heads, and those that repeat a width made of heads."""
    counts: dict[str, dict[str, int]] = {}
    widths: dict[str, dict[str, int]] = {}
    heads, new_heads = block.heads, len(cut.positions)
    for name, module in model.get_submodule(block.path).named_modules():
        path = f"{block.path}.{name}" if name else block.path
        if projections.is_projection(module):
            continue
        is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d)
        if is_convolution and f"{path}.weight" not in block.parameters:
            continue  # over the model's width
        for attribute, value in vars(module).items():
            if type(value) is not int or attribute.startswith("_") or attribute in block.adapter.keep_counts:
                continue
            becomes = _new_channels if is_convolution else _new_count
            new = becomes(attribute, value, block, cut)
            if new is not None:
                counts.setdefault(path, {})[attribute] = new
            elif attribute in WIDTH_NAMES and value == heads * block.head_dim:
                widths.setdefault(path, {})[attribute] = new_heads * block.head_dim
    if isinstance(model.get_submodule(block.attention), nn.MultiheadAttention | SlicedMultihead):
        return counts, {}  # its embed_dim is the width outside
    return counts, widths


def _new_channels(name: str, value: int, block: AttentionBlock, cut: Cut) -> int | None:
    """Of a convolution with a group for every head or every channel of a head."""
    if name not in ("groups", "in_channels", "out_channels"):
        return None
    for per_head in (1, block.head_dim):
        if value == block.heads * per_head:
            return max(1, len(cut.positions)) * per_head
        if value == len(block.groups) * per_head:
            return max(1, cut.num_kv_heads) * per_head
    return None


def _new_count(name: str, value: int, block: AttentionBlock, cut: Cut) -> int | None:
    """What a count must become, judged by its name and its present value."""
    heads, kv = block.heads * block.maps, len(block.groups) * block.maps
    new_heads, new_kv = len(cut.positions) * block.maps, cut.num_kv_heads * block.maps
    is_kv = "kv" in name or "key_value" in name
    if "group" in name:
        return new_heads // new_kv if is_kv and value == heads // kv else None
    if name in ("all_head_size", "inner_dim", "q_dim", "q_size"):
        return new_heads * (value // heads) if value == heads * (value // heads) else None
    if name in ("kv_dim", "kv_size"):
        return new_kv * (value // kv) if value == kv * (value // kv) else None
    if "head" not in name or any(word in name for word in ("dim", "size", "width")):
        return None
    if is_kv:
        return new_kv if value == kv else None
    return new_heads if value == heads else None


def _config_counts(model: nn.Module, block: AttentionBlock, cut: Cut) -> dict[str, int]:
    """Head counts that the attention module may read from the config while it runs."""
    config = getattr(model.get_submodule(block.attention), "config", None)
    view = {}
    for name in ("num_attention_heads", "num_key_value_heads", "num_heads", "num_kv_heads", "n_heads", "n_head"):
        value = value_of(config, name)
        if type(value) is int:
            new = _new_count(name, value, block, cut)
            if new is not None:
                view[name] = new
    return view
