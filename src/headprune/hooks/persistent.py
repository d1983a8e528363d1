"""What stays in a pruned model: slicing what a block receives for all heads although it has only some."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SlicedArgument:
    """An argument of a block with one entry per original head on `dim`, of which the block needs only some."""

    name: str  # keyword, or "" if it is positional only
    position: int  # place among the positional arguments, or -1
    dim: int
    heads: int  # entries in the argument
    kept: tuple[int, ...]

    def slice(self, value: Any) -> Any:
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

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
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
