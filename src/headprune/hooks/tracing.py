"""Watching one forward pass: every module call and every softmax attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headprune.hooks.attention_interface import wrapped_attention
from headprune.hooks.masks import HeadFactor
from headprune.hooks.unfused_attention import called_projections


@dataclass(frozen=True)
class Call:
    """A call of a module: what went in and came out, and when."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    order: int  # when it began

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """What went in, to run the module again: a cache that the first run filled is empty again."""
        return [_emptied(value) for value in self.args], {k: _emptied(value) for k, value in self.kwargs.items()}


def _emptied(value: Any) -> Any:
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

    calls: list[Call] = field(default_factory=list)
    events: list[AttentionEvent] = field(default_factory=list)
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}


class _AttentionOperations(TorchFunctionMode):
    """Sees softmax and fused attention wherever they are called."""

    def __init__(self, watch: Watch, current: Callable[[], str | None], modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.watch, self.current, self.modules = watch, current, modules
        self.muted = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
        if func is F.multi_head_attention_forward:
            query, key, heads = args[0], args[1], args[4]
            context = self.note(
                result[0].unflatten(-1, (heads, -1)), -2, key_input=key, query_is_key=query is key
            )  # (queries, batch, heads, width)
            return context.flatten(-2), result[1]
        return result

    def heads(self, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many heads lie behind one another in the batch dimension: FSMT, where the module says it; else 0."""
        path = self.current()
        said = getattr(self.modules.get(path), "num_heads", 0) if path is not None else 0
        fits = isinstance(said, int) and said > 1 and result.shape[0] % said == 0
        return said if fits and _last_dimension(result, args, kwargs) else 0

    def note(self, result: Tensor, *axes: int, path: str | None = None, **more: Any) -> Tensor:
        path = self.current() if path is None else path
        if path is None:
            return result
        if not result.requires_grad:
            result = result.detach().requires_grad_()  # frozen weights: dependence must show all the same
        self.watch.events.append(
            AttentionEvent(path, result, tuple(axis % result.dim() for axis in axes), self.watch.tick(), **more)
        )
        return result


def _last_dimension(result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(dim, int) and dim % result.dim() == result.dim() - 1


@contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Record every module call and every softmax attention of the forward passes inside the block."""
    watch = Watch()
    paths = {module: path for path, module in model.named_modules()}
    has_weights = {module: any(True for _ in module.parameters()) for module in paths}
    stack: list[nn.Module] = []
    starts: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = []

    def current() -> str | None:
        return next((paths[module] for module in reversed(stack) if has_weights[module]), None)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack.append(module)
        starts.append((watch.tick(), args, kwargs))

    def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        stack.pop()
        order, given, named = starts.pop()
        if isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad:
            # A frozen projection of a frozen input: give gradients a place to arrive at.
            # A copy, because the model may go on to write into it, which a leaf does not allow.
            output = output.detach().requires_grad_().clone() if torch.is_grad_enabled() else output
        watch.calls.append(Call(paths[module], module, given, named, output, order))
        return output

    operations = _AttentionOperations(watch, current, {path: module for module, path in paths.items()})
    handles = []
    try:
        with _unscaled(model), called_projections(model), wrapped_attention(_noting(operations, paths)), operations:
            for module in paths:
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(leave, with_kwargs=True))
            yield watch
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _unscaled(model: nn.Module) -> Iterator[None]:
    """Look at the model as it is without masks, also inside a `masked` block."""
    paused = []
    for module in model.modules():
        hooks = module._forward_pre_hooks
        paused += [(hooks, key, hooks.pop(key)) for key in list(hooks) if isinstance(hooks[key], HeadFactor)]
    try:
        yield
    finally:
        for hooks, key, factor in paused:
            hooks[key] = factor


def _noting(operations: _AttentionOperations, paths: Mapping[nn.Module, str]) -> Callable[..., Any]:
    """See the attention functions that transformers models call by name, whatever kernel is behind them."""

    def attention(function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if operations.muted:
            return function(module, *args, **kwargs)
        operations.muted += 1
        try:
            output, *rest = function(module, *args, **kwargs)
        finally:
            operations.muted -= 1
        if module in paths and output.dim() == 4 and torch.is_grad_enabled():
            output = operations.note(output, 2, path=paths[module])  # (batch, queries, heads, width)
        return (output, *rest)

    return attention


class _MapRecorder(TorchFunctionMode):
    """Keeps the probabilities of softmax attention that a block computes itself."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
    handles = []

    def enter(name: str) -> Any:
        return lambda module, args: inside.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        inside.pop()

    def keep(weights: Tensor) -> None:
        if inside:
            maps[inside[-1]] = weights.detach()

    def reported(function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
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
        for name, path in blocks.items():
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        with wrapped_attention(reported), _MapRecorder(keep):
            yield maps
    finally:
        for handle in handles:
            handle.remove()
        if switch:
            model.set_attn_implementation(before)
