"""What transformers v4 called pruned heads: `config.pruned_heads`, layers with the heads that are gone.

v4 checkpoints say so in their config and hold weights that are cut already. On v5 nothing reads the entry. Here it
becomes headprune's own: which rows and columns a head has is found on a model of the same config, made for the
purpose, because the one that is being loaded is empty.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import V4_ENTRY, Entry, sites_by_layer
from headprune.errors import CheckpointError
from headprune.heads import HeadMap, HeadMask
from headprune.heads.headmap import DIGITS
from headprune.structure.find import find_heads
from headprune.surgery.prune import prune_with_report
from headprune.types import Config


def entry_for(model: nn.Module) -> Entry | None:
    """headprune's entry for a model whose config is that of a pruned v4 checkpoint; None for any other."""
    asked = getattr(getattr(model, "config", None), V4_ENTRY, None)
    if not asked or config_entry.read(model) is not None:
        return None
    gone = _checked(asked)
    try:
        with _in_memory():
            twin = _twin(model)
            if twin is None:
                return None
            heads = find_heads(twin)
            prune_with_report(twin, _mask(heads, gone), verify=False, about={"by": "transformers v4"})
    except CheckpointError:
        raise
    except Exception as error:  # whatever this family stumbles over
        raise CheckpointError(
            f"The config says that transformers v4 removed heads ({V4_ENTRY}: {str(gone)[:200]}), which cannot be done "
            f"in {type(model).__name__} here: {type(error).__name__}: {error} Load it with v4, or start from the whole "
            "model."
        ) from error
    return config_entry.read(twin)


def _mask(heads: HeadMap, gone: Mapping[int, list[int]]) -> HeadMask:
    layers = sites_by_layer(heads)
    unknown = sorted(set(gone) - set(layers))
    if unknown:
        raise CheckpointError(f"config.{V4_ENTRY} names layer {unknown[0]}; this model has layers 0 to {max(layers)}.")
    for layer, indices in gone.items():
        count = layers[layer].original_num_heads
        if not set(indices) < set(range(count)):
            raise CheckpointError(
                f"config.{V4_ENTRY} removes heads {indices} of layer {layer}, which has {count}: expected some, "
                "not all. v4 could not run a layer without heads."
            )
    return HeadMask.full(heads).without(*(f"{layers[n].id}:{head}" for n, indices in gone.items() for head in indices))


@contextmanager
def _in_memory() -> Iterator[None]:
    """Outside of what loading sets up: the meta device, and the checkpoint's precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def _checked(asked: object) -> dict[int, list[int]]:
    """From a file that anybody may have touched: `{"0": [1, 2]}`; in a config that is in memory, layers are numbers."""
    found: dict[int, list[int]] = {}
    pairs = list(asked.items()) if isinstance(asked, Mapping) else [("", None)]
    for layer, heads in pairs:
        number = int(layer) if str(layer).isdecimal() and len(str(layer)) <= DIGITS else None
        is_list = isinstance(heads, list) and all(type(head) is int for head in heads)
        if number is None or heads is None or not is_list or number in found:
            raise CheckpointError(
                f"config.{V4_ENTRY} is {repr(asked)[:200]}; expected layers with lists of heads, as transformers v4 "
                "wrote them."
            )
        found[number] = sorted(set(heads))
    return {layer: heads for layer, heads in found.items() if heads}


def _twin(model: nn.Module) -> nn.Module | None:
    """A whole model of the same class and config, with random weights, in memory and in float32; None for a part of a
    model that is not made from a config alone (the whole one will ask again)."""
    config: Config = copy.deepcopy(model.config)
    setattr(config, V4_ENTRY, {})
    config._attn_implementation = "eager"  # the one asked for may not run here
    generator = torch.Generator().manual_seed(0)
    try:
        twin = type(model)(config).float().eval()
    except TypeError:
        return None
    with torch.no_grad():
        for parameter in twin.parameters():  # while a model is loaded, nothing is initialised
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return twin
