"""What stays in a pruned block whose code reshapes to the model's width instead of the width of its own heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_RESHAPES = {Tensor.view, Tensor.reshape, torch.reshape}


@dataclass(frozen=True)
class Width:
    """The width that a block's code counts on, and the heads that it has."""

    whole: int  # of the original heads together
    heads: int  # that are left
    head_dim: int

    def shape(self, asked: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
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

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RESHAPES and len(args) > 1 and not isinstance(args[1], torch.dtype):
            given = args[1] if isinstance(args[1], tuple | list) else args[1:]
            args = (args[0], self.width.shape(tuple(given), tuple(args[0].shape)))
        return func(*args, **(kwargs or {}))


@dataclass
class FollowWidth:
    """A pair of hooks around a block's forward."""

    width: Width
    active: list[_Following] = field(default_factory=list)

    def enter(self, module: nn.Module, args: Any) -> None:
        mode = _Following(self.width)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self.active.append(mode)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.active.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]


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


def _owner(hook: Any) -> FollowWidth | None:
    owner = getattr(hook, "__self__", None)
    return owner if isinstance(owner, FollowWidth) else None
