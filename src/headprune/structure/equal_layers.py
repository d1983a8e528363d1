"""Layers that are made alike and called alike: one of each kind is looked at, and what it shows holds for the others.

Two layers are of a kind if their modules have the same names, classes, counts and shapes of weights, and if the model
calls them with the same things besides the states. This is compared without running a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headprune.heads import HeadMap, Site, Skipped
from headprune.hooks import LayerCall, NotAStackError, SavedCall, answering_zeros, layer_calls, left_out
from headprune.structure.neurons import FeedForward
from headprune.structure.run import eval_mode, same_attributes, same_draws, takes_use_cache, to_model
from headprune.structure.trace import AttentionBlock
from headprune.types import Batch

LARGE = 1 << 22  # numbers in a table of words: from here on it is not multiplied with


@dataclass(frozen=True)
class EqualLayers:
    """Which layer stands for which."""

    paths: tuple[str, ...]
    like: Mapping[str, str]  # each layer -> the first of its kind
    as_tuple: bool  # how the model takes what a layer returns
    is_all_there_is: bool = False  # whether the others have no weights

    @classmethod
    def of(cls, model: nn.Module, inputs: Batch) -> EqualLayers | None:
        """None where the model is no stack of layers."""
        try:
            return cls.of_stack(model, inputs)
        except NotAStackError:
            return None

    @classmethod
    def of_stack(cls, model: nn.Module, inputs: Batch) -> EqualLayers:
        """NotAStackError where the model is no stack of layers. No layer is run: none needs weights."""
        paths = layer_paths(model)
        layers = [model.get_submodule(path) for path in paths]
        if len(set(map(id, layers))) < len(layers):
            raise NotAStackError("its layers share their weights")
        given = to_model(model, inputs)
        if takes_use_cache(model):
            given = {"use_cache": False, **given}
        with torch.no_grad(), same_attributes(model), eval_mode(model), same_draws(model):
            found = layer_calls(layers, lambda: model(**given))
        kinds: list[tuple[str, object, LayerCall]] = []
        like: dict[str, str] = {}
        places = _places(layers)
        for path, layer, call in zip(paths, layers, found.calls, strict=True):
            form = _form(layer, places)
            first = next((one for one, own, known in kinds if own == form and _is_same_call(known, call)), None)
            if first is None:
                kinds.append((path, form, call))
            like[path] = first or path
        return cls(paths, like, found.as_tuple)

    @property
    def firsts(self) -> list[str]:
        return list(dict.fromkeys(self.like.values()))

    def in_first(self, path: str) -> str:
        """The path of a module in the layer that stands for its own."""
        own = next((layer for layer in self.paths if f"{path}.".startswith(f"{layer}.")), None)
        return path if own is None else self.like[own] + path.removeprefix(own)

    def holds(self, path: str) -> bool:
        """Whether a module is in one of the layers."""
        return any(f"{path}.".startswith(f"{layer}.") for layer in self.paths)

    @contextmanager
    def firsts_alone(self, model: nn.Module) -> Iterator[None]:
        """Inside the block a pass runs one layer of each kind, and does not ask for words at the end."""
        others = [model.get_submodule(path) for path in self.paths if self.like[path] != path]
        get = getattr(model, "get_output_embeddings", None)
        words = get() if callable(get) else None
        with ExitStack() as stack:
            stack.enter_context(left_out(others, as_tuple=self.as_tuple))
            if type(words) is nn.Linear and (self.is_all_there_is or words.weight.numel() > LARGE):
                stack.enter_context(answering_zeros(words))
            yield

    def blocks(self, found: Sequence[AttentionBlock]) -> list[AttentionBlock]:
        """What was found, for every layer."""
        return self._spread(found, lambda block: block.path, _moved_block)

    def parts(self, found: Sequence[FeedForward]) -> list[FeedForward]:
        return self._spread(found, lambda part: part.output, _moved_part)

    def skipped(self, found: Sequence[Skipped]) -> list[Skipped]:
        every = self._spread(found, lambda item: item.path, lambda item, move: replace(item, path=move(item.path)))
        return list({item.path: item for item in every}.values())

    def _spread(self, found: Sequence[Any], path_of: Any, moved: Any) -> list[Any]:
        inside = {path: [one for one in found if f"{path_of(one)}.".startswith(f"{path}.")] for path in self.firsts}
        taken = {id(one) for own in inside.values() for one in own}
        every = []
        for path in self.paths:
            first = self.like[path]
            every += [one if path == first else moved(one, _Move(first, path)) for one in inside[first]]
        return [*every, *(one for one in found if id(one) not in taken)]


@dataclass(frozen=True)
class _Move:
    """From paths in one layer to those in another."""

    first: str
    other: str

    def __call__(self, path: str) -> str:
        return self.other + path.removeprefix(self.first) if f"{path}.".startswith(f"{self.first}.") else path

    def keys(self, table: Mapping[str, object]) -> dict[str, Any]:
        return {self(path): value for path, value in table.items()}

    def call(self, call: SavedCall) -> SavedCall:
        return replace(call, path=self(call.path))


def _moved_block(block: AttentionBlock, move: _Move) -> AttentionBlock:
    return replace(
        block,
        path=move(block.path),
        attention=move(block.attention),
        output=move(block.output),
        call=move.call(block.call),
        channels=move.keys(block.channels),
        parameters=move.keys(block.parameters),
        roles=move.keys(block.roles),
        idle=tuple(map(move, block.idle)),
    )


def _moved_part(part: FeedForward, move: _Move) -> FeedForward:
    return replace(
        part,
        path=move(part.path),
        output=move(part.output),
        sources=move.keys(part.sources),
        call=move.call(part.call),
    )


def _places(layers: Sequence[nn.Module]) -> set[tuple[str, str]]:
    """Attributes that tell each layer its own place: (module, name)."""
    found: set[tuple[str, str]] | None = None
    for place, layer in enumerate(layers):
        own = {
            (path, name)
            for path, module in layer.named_modules()
            for name, value in vars(module).items()
            if type(value) is int and value == place
        }
        found = own if found is None else found & own
    return found or set()


def _form(layer: nn.Module, places: set[tuple[str, str]]) -> object:
    """Everything that says what a layer is but the numbers in its weights and its place."""
    parts = []
    for path, module in layer.named_modules():
        own = {
            name: _plain(value)
            for name, value in vars(module).items()
            if not name.startswith("_") and name != "training" and (path, name) not in places
        }
        tables = (*module._parameters.items(), *module._buffers.items())
        weights = tuple((name, x.shape, x.dtype, x.requires_grad) for name, x in tables if x is not None)
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
        parts.append((path, type(module), tuple(sorted(own.items(), key=lambda item: item[0])), weights, hooks))
    return tuple(parts)


def _plain(value: object) -> object:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return type(value), id(value) if hasattr(value, "to_diff_dict") else None


def _is_same_call(one: LayerCall, other: LayerCall) -> bool:
    return one.by_name == other.by_name and _is_same(one.args, other.args) and _is_same(one.kwargs, other.kwargs)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return isinstance(one, str | int | float | bool) and one == other


def layer_paths(model: nn.Module) -> tuple[str, ...]:
    """Paths of the layers: of the outermost list of modules that holds the most weights."""
    lists = [
        (path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module)
    ]
    outer = [(path, module) for path, module in lists if not any(path.startswith(f"{other}.") for other, _ in lists)]
    if not outer:
        raise NotAStackError("it has no list of layers")
    path, found = max(outer, key=lambda item: sum(weight.numel() for weight in item[1].parameters()))
    return tuple(f"{path}.{name}" for name, _ in found.named_children())


def sites_by_layer(heads: HeadMap, paths: Sequence[str]) -> dict[str, list[Site]]:
    """Layer -> its sites, in the model's order. All sites must be in one, and in one alone."""
    found: dict[str, list[Site]] = {}
    for site in heads:
        inside = [path for path in paths if f"{site.output}.".startswith(f"{path}.")]
        if len(inside) != 1 or len(site.layers) != 1:
            raise NotAStackError(f"{site.id} is not inside one of its layers")
        found.setdefault(inside[0], []).append(site)
    return found
