"""What stays in a pruned block whose code reshapes to the model's width instead of the width of its own heads."""

from __future__ import annotations

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

    def shape(self, asked: tuple[Any, ...], count: int) -> tuple[Any, ...]:
        """The shape that was meant; as asked where that fits."""
        if any(type(size) is not int for size in asked) or not _fits_not(asked, count):
            return asked
        # From the end: the width stands last, and a length may happen to be the same number.
        for place in reversed(range(len(asked))):
            for written, meant in (
                (self.whole, self.heads * self.head_dim),
                (self.whole // self.heads, self.head_dim),  # the width of a head, worked out while running
            ):
                shape = (*asked[:place], meant, *asked[place + 1 :])
                if asked[place] == written and not _fits_not(shape, count):
                    return shape
        return asked


def _fits_not(shape: tuple[int, ...], count: int) -> bool:
    product = 1
    for size in shape:
        product *= size if size >= 0 else 1
    return count % product != 0 if -1 in shape and product else product != count


class _Following(TorchFunctionMode):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width = width

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RESHAPES and len(args) > 1 and not isinstance(args[1], torch.dtype):
            given = args[1] if isinstance(args[1], tuple | list) else args[1:]
            args = (args[0], self.width.shape(tuple(given), args[0].numel()))
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
