"""Watching one forward pass: every module call and every softmax attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headprune import patches
from headprune.hooks.multihead import SlicedMultihead
from headprune.hooks.scope import called_projections, outside_scopes, own_scope, settled
from headprune.types import Args, Function, Kwargs


@dataclass(frozen=True)
class Call:
    """A call of a module: what went in and came out, and when."""

    path: str
    module: nn.Module
    args: Args
    kwargs: Kwargs
    output: Any
    order: int  # when it began

    def saved(self) -> SavedCall:
        """What went in, without the history that autograd keeps of it; one tensor stays one tensor."""
        detached: dict[int, Tensor] = {}
        args = tuple(_detached(value, detached) for value in self.args)
        return SavedCall(self.path, args, {name: _detached(value, detached) for name, value in self.kwargs.items()})


@dataclass(frozen=True)
class SavedCall:
    """What a module was called with, to run it again, in this model or a copy of it."""

    path: str
    args: Args
    kwargs: Kwargs

    def arguments(self) -> tuple[list[object], Kwargs]:
        """What went in: a cache that an earlier run filled is empty again."""
        return [_emptied(value) for value in self.args], {k: _emptied(value) for k, value in self.kwargs.items()}


def _detached(value: object, known: dict[int, Tensor]) -> object:
    if isinstance(value, Tensor):
        return known.setdefault(id(value), value.detach())
    if type(value) is list:
        return [_detached(item, known) for item in value]
    if type(value) is tuple:
        return tuple(_detached(item, known) for item in value)
    if type(value) is dict:
        return {name: _detached(item, known) for name, item in value.items()}
    return _emptied(value)


def _emptied(value: object) -> object:
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None or not isinstance(value, caches.Cache):
        return value
    if isinstance(value, caches.EncoderDecoderCache):
        return caches.EncoderDecoderCache(caches.DynamicCache(), caches.DynamicCache())
    return caches.DynamicCache()


@dataclass(frozen=True)
class AttentionEvent:
    """Softmax attention took place: `tensor` holds the result (or the probabilities), one entry per head on an axis."""

    path: str  # the module in whose forward it happened
    tensor: Tensor
    axes: tuple[int, ...]  # where the heads may be, the usual place first
    order: int
    key_input: Tensor | None = None  # what nn.MultiheadAttention projects to keys and values
    query_is_key: bool = False


@dataclass
class Watch:
    """Everything seen during one forward pass."""

    paths: Mapping[nn.Module, str]
    calls: list[Call] = field(default_factory=list)
    events: list[AttentionEvent] = field(default_factory=list)
    clock: int = 0
    _open: list[tuple[nn.Module, int, Args, Kwargs]] = field(default_factory=list)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._open.append((module, self.tick(), args, kwargs))

    def leave(self, module: nn.Module, args: Args, kwargs: Kwargs, output: object) -> object:
        _, order, given, named = self._open.pop()
        if isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad:
            # A frozen projection of a frozen input: give gradients a place to arrive at.
            # A copy, because the model may go on to write into it, which a leaf does not allow.
            output = output.detach().requires_grad_().clone() if torch.is_grad_enabled() else output
        self.calls.append(Call(self.paths[module], module, given, named, output, order))
        return output

    def current(self) -> nn.Module | None:
        """The innermost module with weights that is running."""
        running = (module for module, *_ in reversed(self._open))
        return next((module for module in running if any(True for _ in module.parameters())), None)

    def projected(self, module: nn.Module) -> tuple[Tensor | None, bool]:
        """What `nn.MultiheadAttention`, which keeps its projections to itself, makes keys from; and whether queries,
        too."""
        if not isinstance(module, nn.MultiheadAttention | SlicedMultihead):
            return None, False
        _, _, args, kwargs = next(call for call in reversed(self._open) if call[0] is module)
        given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
        return given["key"], given["key"] is given["query"]


_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}


class _AttentionOperations(TorchFunctionMode):
    """Sees softmax and fused attention wherever they are called."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.muted = watch, 0

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.muted or not torch.is_grad_enabled():
            return result
        if func is F.scaled_dot_product_attention and result.dim() == 4:
            return self.note(result, 1)  # (batch, heads, queries, width)
        if func in _SOFTMAX and result.dim() >= 4 and _last_dimension(result, args, kwargs):
            # (batch, heads, queries, keys), or the heads after the queries, or queries in blocks
            return self.note(result, *range(1, result.dim() - 1))
        if func in _SOFTMAX and result.dim() == 3 and (heads := self.heads(result, args, kwargs)):
            apart = self.note(result.unflatten(0, (-1, heads)), 1)  # (batch, heads, queries, keys)
            return apart.flatten(0, 1)
        return result

    def heads(self, result: Tensor, args: Args, kwargs: Kwargs) -> int:
        """How many heads lie behind one another in the batch dimension: FSMT, where the module says it; else 0."""
        said = getattr(self.watch.current(), "num_heads", 0)
        fits = isinstance(said, int) and said > 1 and result.shape[0] % said == 0
        return said if fits and _last_dimension(result, args, kwargs) else 0

    def note(self, result: Tensor, *axes: int, module: nn.Module | None = None) -> Tensor:
        module = self.watch.current() if module is None else module
        if module is None:
            return result
        if not result.requires_grad:
            result = result.detach().requires_grad_()  # frozen weights: dependence must show all the same
        seen = AttentionEvent(self.watch.paths[module], result, axes, self.watch.tick(), *self.watch.projected(module))
        self.watch.events.append(seen)
        return result


def _last_dimension(result: Tensor, args: Args, kwargs: Kwargs) -> bool:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(dim, int) and dim % result.dim() == result.dim() - 1


@contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Record every module call and every softmax attention of the forward passes inside the block."""
    with called_projections(model), outside_scopes():  # without masks, also inside a `masked` block
        watch = Watch({module: path for path, module in model.named_modules()})
        operations = _AttentionOperations(watch)
        with wrapped_attention(_noting(operations)), operations, own_scope() as scope:
            for module in watch.paths:
                scope.before(module, watch.enter, with_kwargs=True, prepend=True)
                scope.after(module, watch.leave, with_kwargs=True)
            yield watch


def _noting(operations: _AttentionOperations) -> Function:
    """See the attention functions that transformers models call by name, whatever kernel is behind them."""

    def attention(function: Function, module: nn.Module, *args: object, **kwargs: object) -> object:
        if operations.muted:
            return function(module, *args, **kwargs)
        operations.muted += 1
        try:
            output, *rest = function(module, *args, **kwargs)
        finally:
            operations.muted -= 1
        if module in operations.watch.paths and output.dim() == 4 and torch.is_grad_enabled():
            output = operations.note(output, 2, module=module)  # (batch, queries, heads, width)
        return (output, *rest)

    return attention


class _MapRecorder(TorchFunctionMode):
    """Keeps the probabilities of softmax attention that a block computes itself."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            weights: Any
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self.keep(weights)
            return output, weights.mean(1) if kwargs.get("average_attn_weights", True) else weights
        result = func(*args, **kwargs)
        if func in _SOFTMAX and result.dim() == 4 and _last_dimension(result, args, kwargs):
            self.keep(result)
        return result


@contextmanager
def recorded_attention(model: Any, blocks: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """The attention maps (batch, heads, queries, keys) of named blocks (name -> path), run eagerly.

    Extra columns that a family adds to its softmax (sinks) are cut off when the attention function reports the map.
    """
    maps: dict[str, Tensor] = {}
    inside: list[str] = []

    def enter(name: str) -> Function:
        return lambda module, args: inside.append(name)

    def leave(module: nn.Module, args: Args, output: object) -> None:
        inside.pop()

    def keep(weights: Tensor) -> None:
        if inside:
            maps[inside[-1]] = weights.detach()

    def reported(function: Function, module: nn.Module, *args: object, **kwargs: object) -> object:
        output, weights, *rest = function(module, *args, **kwargs)
        if weights is not None:
            keep(weights)  # comes after the softmax inside, and replaces it
        return (output, weights, *rest)

    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    switch = before not in (None, "eager") and hasattr(model, "set_attn_implementation")
    try:
        if switch:
            model.set_attn_implementation("eager")
        with settled(), wrapped_attention(reported), _MapRecorder(keep), own_scope() as scope:
            for name, path in blocks.items():
                scope.before(model.get_submodule(path), enter(name))
                scope.after(model.get_submodule(path), leave, always_call=True)
            yield maps
    finally:
        if switch:
            model.set_attn_implementation(before)


AttentionWrapper = Function  # (function, module, *args, **kwargs) -> what the function would return
_wrappers: ContextVar[tuple[AttentionWrapper, ...]] = ContextVar("_wrappers", default=())


@contextmanager
def wrapped_attention(wrapper: AttentionWrapper) -> Iterator[None]:
    """Call `wrapper(function, module, *args, **kwargs)` instead of each attention function until the block ends.

    The wrapper belongs to this context: attention that another thread runs in the meantime does not meet it.
    """
    with patches.attention_lookup(_wrapped):
        _wrappers.set((*_wrappers.get(), wrapper))
        try:
            yield
        finally:
            _wrappers.set(tuple(other for other in _wrappers.get() if other is not wrapper))


def _wrapped(function: patches.AttentionFunction) -> patches.AttentionFunction:
    for wrapper in _wrappers.get():
        function = partial(wrapper, function)
    return function
