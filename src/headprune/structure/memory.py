"""What was found in a model, kept until the model changes, so that one job examines it once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headprune.heads import HeadMap
from headprune.hooks import JoinedHeads
from headprune.structure.neurons import FeedForward
from headprune.structure.trace import AttentionBlock
from headprune.types import Batch

MOST_BYTES = 1 << 26  # that the recorded calls of one model may hold: an example of ours is far smaller


@dataclass(frozen=True)
class ModelStructure:
    """The heads of a model together with the block of each site (emptied sites have none).

    Blocks are named by their paths, so that it holds for a copy of the model, too. Besides, it keeps the inputs that
    each block received, without their history: no autograd graph lives on in it.
    """

    heads: HeadMap
    blocks: Mapping[str, AttentionBlock]
    feed_forward: Mapping[str, FeedForward] = field(default_factory=dict)  # of neurons, if they were asked for
    attention: ModelStructure | None = None  # the same without neurons, then

    def is_light(self) -> bool:
        """Whether it may be kept: what blocks received is small, and free of history."""
        calls = [*(block.call for block in self.blocks.values()), *(part.call for part in self.feed_forward.values())]
        held = {t.untyped_storage()._cdata: t for call in calls for t in _tensors((call.args, call.kwargs))}
        total = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
        return total <= MOST_BYTES and not any(tensor.grad_fn is not None for tensor in held.values())


def _tensors(value: object, depth: int = 5) -> Iterator[Tensor]:
    """Also those inside objects of the model's own making."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from _tensors(vars(value), depth - 1)


@dataclass(frozen=True)
class _Found:
    """Heads, and if they are known the blocks, of a model in a certain state."""

    fingerprint: int
    heads: Mapping[bool, HeadMap]  # with neurons and without, as far as it is known
    structures: Mapping[bool, ModelStructure] = field(default_factory=dict)
    example: tuple[tuple[str, object], ...] | None = None  # names and weak references; None if it was made here


_found: weakref.WeakKeyDictionary[nn.Module, _Found] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, heads: HeadMap) -> None:
    """Save the next `find_heads` its work; what else was known of the model is forgotten."""
    every = {False: heads} if heads.attention is heads else {False: heads.attention, True: heads}
    _found[model] = _Found(_fingerprint(model), every)


def remember_structure(model: nn.Module, structure: ModelStructure, example: Batch | None) -> None:
    """Save whoever asks next an examination."""
    every = {False: structure.attention or structure, **({True: structure} if structure.attention else {})}
    heads = {neurons: one.heads for neurons, one in every.items()}
    _found[model] = _Found(_fingerprint(model), heads, every if structure.is_light() else {}, _reference(example))


def known_heads(model: nn.Module, *, neurons: bool) -> HeadMap | None:
    """What `find_heads` said of the model as it is."""
    found = _valid(model)
    return found.heads.get(neurons) if found is not None else None


def known_structure(model: nn.Module, example: Batch | None, *, neurons: bool) -> ModelStructure | None:
    """What an examination found, by this example if one is given."""
    found = _valid(model)
    if found is None or (example is not None and not _is_same(found.example, example)):
        return None
    return found.structures.get(neurons)


def forget(model: nn.Module) -> None:
    _found.pop(model, None)


def _valid(model: nn.Module) -> _Found | None:
    found = _found.get(model)
    if found is not None and found.fingerprint != _fingerprint(model):
        forget(model)
        return None
    return found


def _reference(example: Batch | None) -> tuple[tuple[str, object], ...] | None:
    if example is None:
        return None
    return tuple((name, weakref.ref(x) if isinstance(x, Tensor) else x) for name, x in example.items())


def _is_same(known: tuple[tuple[str, object], ...] | None, example: Batch) -> bool:
    if known is None or [name for name, _ in known] != list(example):
        return False
    before = [value() if isinstance(value, weakref.ref) else value for _, value in known]
    return all(old is new for old, new in zip(before, example.values(), strict=True))


def _fingerprint(model: nn.Module) -> int:
    """Changes whenever a module or the shape, type or place of a weight does, or what computes attention."""
    parts: list[object] = []
    for name, module in model.named_modules():
        if isinstance(module, JoinedHeads):
            continue  # it comes and goes with blocks of code, of other threads, too
        weights = tuple((n, p.shape, p.dtype, p.device) for n, p in module._parameters.items() if p is not None)
        config = vars(module).get("config")
        parts.append((name, id(module), type(module), weights, getattr(config, "_attn_implementation", None)))
    return hash((tuple(parts), torch.get_default_dtype()))
