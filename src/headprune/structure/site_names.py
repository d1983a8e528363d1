"""Names of sites: tower, component and layer, from where a block is in the model and what it attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from headprune.heads.headmap import NEURONS
from headprune.structure.trace import AttentionBlock, places_in_lists


class Block(Protocol):
    """Something in a layer: where it is, and when it ran."""

    @property
    def path(self) -> str: ...

    @property
    def calls(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class SiteAddress:
    id: str
    tower: str | None
    component: str
    layer: int
    layers: tuple[int, ...]


def name_sites(model: nn.Module, blocks: Sequence[AttentionBlock]) -> list[SiteAddress]:
    """A name for each block, in the order given."""
    towers = [_tower(model, block.path) for block in blocks]
    several = len(set(towers)) > 1
    decoders = {_decoder(block.path) for block in blocks if block.is_cross} - {None}
    components = [_component(block, decoders) for block in blocks]
    return _names(model, blocks, towers if several else [None] * len(towers), components)


def name_neurons(model: nn.Module, parts: Sequence[Block]) -> list[SiteAddress]:
    """A name for each feed-forward part, in the order given: `neurons.3`, or `decoder.neurons.3` where an encoder has
    some, too."""
    towers = [_tower(model, part.path) for part in parts]
    several = len(set(towers)) > 1
    sides = ["decoder" if _decoder(part.path) else "encoder" for part in parts]
    prefixes = [
        (tower if several else None, side if len(set(sides)) > 1 else None)
        for tower, side in zip(towers, sides, strict=True)
    ]
    return _names(model, parts, [".".join(filter(None, both)) or None for both in prefixes], [NEURONS] * len(parts))


def _names(
    model: nn.Module, blocks: Sequence[Block], towers: Sequence[str | None], components: Sequence[str]
) -> list[SiteAddress]:
    """A second one of the same tower, component and layer is told by its number."""
    families: dict[tuple[str | None, str], list[int]] = {}
    for index, key in enumerate(zip(towers, components, strict=True)):
        families.setdefault(key, []).append(index)
    names: dict[int, SiteAddress] = {}
    for (tower, component), members in families.items():
        layers = _layers(model, [blocks[i] for i in members])
        used: dict[int, int] = {}
        for index, runs in zip(members, layers, strict=True):
            used[runs[0]] = used.get(runs[0], 0) + 1
            nth = f"#{used[runs[0]]}" if used[runs[0]] > 1 else ""
            prefix = f"{tower}." if tower else ""
            names[index] = SiteAddress(f"{prefix}{component}.{runs[0]}{nth}", tower, component, runs[0], runs)
    return [names[i] for i in range(len(blocks))]


def _component(block: AttentionBlock, decoders: set[str | None]) -> str:
    """By what it attends to; a decoder that sees later positions too (DETR) is known by its cross-attention."""
    if block.is_cross:
        return "cross"
    return "decoder" if block.is_causal or _decoder(block.path) in decoders else "encoder"


def _decoder(path: str) -> str | None:
    """The part of a path that leads to a decoder."""
    before, found, rest = path.partition("decoder")
    return f"{before}{found}{rest.partition('.')[0]}" if found else None


def _tower(model: nn.Module, path: str) -> str | None:
    """The enclosing sub-model that has a config of another kind than the whole: `vision_model` is `vision`."""
    whole = type(getattr(model, "config", None))
    module = model
    for part in path.split("."):
        module = getattr(module, part)
        config = getattr(module, "config", None)
        is_model = config is not None and hasattr(module, "post_init")
        if is_model and type(config) is not whole and part != "model":
            if part in ("encoder", "decoder"):
                return None  # the component says it already
            return part.removesuffix("_model").removesuffix("_tower")
    return None


def _layers(model: nn.Module, blocks: Sequence[Block]) -> list[tuple[int, ...]]:
    """The layers that run each block, all of one tower and component."""
    runs = sum(len(block.calls) for block in blocks)
    if runs > len(blocks) and runs == _config_layers(model):  # a module shared by several layers: count its calls
        order = sorted(time for block in blocks for time in block.calls)
        return [tuple(order.index(time) for time in block.calls) for block in blocks]
    places = [places_in_lists(model, block.path) for block in blocks]
    depth = max(map(len, places))
    if any(len(place) != depth for place in places) or depth == 0:
        return [(place[0][1] if place else 0,) for place in places]
    varying = [d for d in range(depth) if len({place[d][1] for place in places}) > 1]
    if len(varying) < 2:  # one list of layers; other lists on the path hold the parts of a layer
        at = varying[0] if varying else 0
        return [(place[at][1],) for place in places]
    outer, inner = varying[0], varying[-1]  # stages of layers: count through
    return [(_layers_before(model, place[outer], place[inner]) + place[inner][1],) for place in places]


def _config_layers(model: nn.Module) -> int | None:
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    return count if isinstance(count, int) else None


def _layers_before(model: nn.Module, stage: tuple[str, int], inner: tuple[str, int]) -> int:
    """How many layers the stages before this one have."""
    stages, index = stage
    rest = inner[0].removeprefix(f"{stages}.{index}")  # empty where the stage itself is the list
    modules = dict(model.named_modules())
    lists: list[Any] = [modules.get(f"{stages}.{i}{rest}", ()) for i in range(index)]  # a stage may have no attention
    return sum(map(len, lists))
