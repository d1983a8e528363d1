"""What stays in a pruned model: slicing what a block receives for all heads although it has only some."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headprune.types import Args, Function, Kwargs


@dataclass(frozen=True)
class SlicedArgument:
    """An argument of a block with one entry per original head on `dim`, of which the block needs only some."""

    name: str  # keyword, or "" if it is positional only
    position: int  # place among the positional arguments, or -1
    dim: int
    heads: int  # entries in the argument
    kept: tuple[int, ...]

    def slice(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        kept = torch.tensor(self.kept, device=value.device)
        if value.shape[self.dim] == self.heads:
            return value.index_select(self.dim, kept)
        if value.shape[self.dim] == 1:
            return value  # the same for all heads this time
        split = value.unflatten(self.dim, (-1, self.heads))  # batch and heads in one dimension (ALiBi)
        return split.index_select(self.dim + 1, kept).flatten(self.dim, self.dim + 1)


class SliceArguments:
    """A forward pre-hook that stays in the pruned model."""

    def __init__(self, arguments: Sequence[SlicedArgument]) -> None:
        self.arguments = tuple(arguments)

    def __call__(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        values = list(args)
        for argument in self.arguments:
            if argument.name in kwargs:
                kwargs = kwargs | {argument.name: argument.slice(kwargs[argument.name])}
            elif 0 <= argument.position < len(values):
                values[argument.position] = argument.slice(values[argument.position])
        return tuple(values), kwargs


def arguments_sliced_by(module: nn.Module) -> tuple[SlicedArgument, ...] | None:
    """What an earlier pruning told a block to slice; None if nothing."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SliceArguments)]
    return hooks[0].arguments if hooks else None


def slice_arguments_(module: nn.Module, arguments: Sequence[SlicedArgument]) -> Callable[[], None]:
    """Slice these arguments at every call from now on; returns the undo."""
    old = [(key, hook) for key, hook in module._forward_pre_hooks.items() if isinstance(hook, SliceArguments)]
    for key, _ in old:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    handle = module.register_forward_pre_hook(SliceArguments(arguments), with_kwargs=True, prepend=True)

    def undo() -> None:
        handle.remove()
        for _, hook in old:
            module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)

    return undo


PRUNED_ATTENTION = "headprune"  # the name under which the function below is registered with transformers


def register_attention_function() -> None:
    """Tell transformers the attention function of pruned blocks whose bias or output needs care."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with contextlib.suppress(ValueError):
        ALL_ATTENTION_FUNCTIONS.register(PRUNED_ATTENTION, _pruned_attention)


def _pruned_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's own attention, after cutting a position bias of all heads down to the heads left.

    In an emptied block there is nothing to attend with: the one placeholder head answers zero.
    """
    config = module.config  # a ConfigView
    if config.headprune_empty:
        nothing = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        return nothing, query.new_zeros(query.shape[0], 0, query.shape[2], key.shape[2])
    bias = kwargs.get("position_bias")
    if bias is not None and config.headprune_bias_heads is not None:
        kept = torch.tensor(config.headprune_bias_heads, device=bias.device)
        kwargs["position_bias"] = bias.index_select(1, kept)  # (batch or 1, heads, queries, keys)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function = ALL_ATTENTION_FUNCTIONS.get_interface(config.headprune_base._attn_implementation, eager)
    result: tuple[Tensor, Tensor | None] = function(module, query, key, value, attention_mask, **kwargs)
    return result


_RESHAPES = {Tensor.view, Tensor.reshape, torch.reshape}


@dataclass(frozen=True)
class Width:
    """The width that a block's code counts on, and the heads that it has."""

    whole: int  # of the original heads together
    heads: int  # that are left
    head_dim: int

    def shape(self, asked: Args, given: Args) -> Args:
        """The shape that was meant by `asked` for a tensor of shape `given`; as asked where that is right.

        Widths stand last. Elsewhere the same number is a length, and is left alone.
        """
        if any(type(size) is not int for size in (*asked, *given)):
            return asked
        per_head = self.whole // self.heads  # what code that divides the width by its heads takes for a head's
        meant = {self.whole: self.heads * self.head_dim, per_head: self.head_dim}.get(asked[-1])
        if meant is None:
            return asked
        shape = (*asked[:-1], meant)
        if -1 not in asked:
            return shape if math.prod(asked) != math.prod(given) == math.prod(shape) else asked
        # The rest may divide by the wrong width, too, so what is reshaped must tell.
        if asked[-1] == per_head and len(asked) > 1 and asked[-2] > 0 and asked[-2] % self.heads == 0:
            is_of_maps = asked[0] == -1 and given[-2:] == asked[-2:]  # queries and keys that happen to be as many
            return asked if is_of_maps else shape
        return asked if given[-1] == asked[-1] else shape


class _Following(TorchFunctionMode):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width = width

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if func in _RESHAPES and len(args) > 1 and not isinstance(args[1], torch.dtype):
            given = args[1] if isinstance(args[1], tuple | list) else args[1:]
            args = (args[0], self.width.shape(tuple(given), tuple(args[0].shape)))
        return func(*args, **(kwargs or {}))


class _Running(threading.local):
    """The blocks that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.modes: list[_Following] = []


_running = _Running()


@dataclass
class FollowWidth:
    """A pair of hooks around a block's forward."""

    width: Width

    def enter(self, module: nn.Module, args: Args) -> None:
        mode = _Following(self.width)
        mode.__enter__()  # type: ignore[no-untyped-call]
        _running.modes.append(mode)

    def leave(self, module: nn.Module, args: Args, output: object) -> None:
        _running.modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]


def follow_width_(module: nn.Module, width: Width) -> Callable[[], None]:
    """Let reshapes in a block's forward follow the heads it has, from now on; returns the undo."""
    old = width_followed_by(module)
    _forget(module)
    _register(module, width)

    def undo() -> None:
        _forget(module)
        if old is not None:
            _register(module, old)

    return undo


def width_followed_by(module: nn.Module) -> Width | None:
    owner = next((_owner(hook) for hook in module._forward_pre_hooks.values() if _owner(hook)), None)
    return owner.width if owner is not None else None


def _register(module: nn.Module, width: Width) -> None:
    follow = FollowWidth(width)
    module.register_forward_pre_hook(follow.enter)
    module.register_forward_hook(follow.leave, always_call=True)


def _forget(module: nn.Module) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if _owner(hook)]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)


def _owner(hook: object) -> FollowWidth | None:
    owner = getattr(hook, "__self__", None)
    return owner if isinstance(owner, FollowWidth) else None
