"""Who a hook is for: the block of code that put it there, in its own context (thread, task); and who has a model alone.

Torch runs parts of a block in threads of its own: the replicas of DataParallel, and what gradient checkpointing
computes again in the backward pass. What they run carries the scopes of the context that asked for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from headprune import patches
from headprune.errors import MaskError, UnsupportedModelError
from headprune.hooks.unfused_attention import BARE_OUTPUT, JoinedHeads, Unfused, opened
from headprune.structure.adapters import unfused_attention
from headprune.types import Args, Function

_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("headprune_scopes", default=())
_numbering = threading.Lock()  # torch numbers hooks without one: two threads may get the same number


class Scope:
    """A block of code with hooks that act in its context alone."""

    def __init__(self, *, alters: bool = False) -> None:
        self.alters = alters  # whether the model answers otherwise inside
        self.is_open = True
        self._handles: list[RemovableHandle] = []

    @property
    def is_here(self) -> bool:
        """Whether the block runs this code. Compiled code is not asked: it is made anew for every block."""
        return torch.compiler.is_compiling() or self in _scopes.get()

    def before(self, module: nn.Module, hook: Function, **how: bool) -> None:
        with _numbering:
            self._handles.append(module.register_forward_pre_hook(ScopedHook(hook, self), **how))

    def after(self, module: nn.Module, hook: Function, **how: bool) -> None:
        with _numbering:
            self._handles.append(module.register_forward_hook(ScopedHook(hook, self), **how))

    def close(self) -> None:
        self.is_open = False
        with _numbering:
            for handle in self._handles:
                handle.remove()


class ScopedHook:
    """A hook that does nothing where its block is not."""

    def __init__(self, hook: Function, scope: Scope) -> None:
        self.hook, self.scope = hook, scope

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.hook(*args, **kwargs) if self.scope.is_here else None

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        self.__reduce__()

    def __reduce__(self) -> NoReturn:
        raise MaskError(
            "The model is inside a `masked` block (or another that listens to it): a copy or a file of it would stay "
            "masked for ever. Leave the block first."
        )


@contextmanager
def own_scope(*, alters: bool = False) -> Iterator[Scope]:
    """Hooks that are put on inside the block, until it ends."""
    scope = Scope(alters=alters)
    try:
        with patches.torch_threads(carried):
            _scopes.set((*_scopes.get(), scope))
            yield scope
    finally:
        _scopes.set(tuple(other for other in _scopes.get() if other is not scope and other.is_open))
        scope.close()


@contextmanager
def outside_scopes() -> Iterator[None]:
    """As if no block were open in this context: the model as it is."""
    before = _scopes.get()
    _scopes.set(())
    try:
        yield
    finally:
        _scopes.set(before)


def carried(function: Function) -> Function:
    """The function in the scopes of the context that asks for it, whichever thread runs it, and when."""
    scopes = tuple(scope for scope in _scopes.get() if scope.is_open)  # one that another thread ended is no concern
    if not scopes:
        return function

    def run(*args: object, **kwargs: object) -> object:
        if any(scope.alters and not scope.is_open for scope in scopes):
            raise MaskError(
                "Gradient checkpointing computes a part of the model again after its `masked` block has ended. Run the "
                "backward pass inside the block, too."
            )
        token = _scopes.set(scopes)
        try:
            return function(*args, **kwargs)
        finally:
            _scopes.reset(token)

    return run


def is_of_hooks(value: object) -> bool:
    """Whether something on a module was put there by a block of code, which takes it off when it ends."""
    return isinstance(value, ScopedHook | Barrier | JoinedHeads | Unfused)


def scoped_hooks(model: nn.Module, kind: type[object]) -> Iterator[ScopedHook]:
    """Hooks of a kind that blocks of any context have put before modules of the model."""
    for module in model.modules():
        for hook in tuple(module._forward_pre_hooks.values()):
            if isinstance(hook, ScopedHook) and isinstance(hook.hook, kind):
                yield hook


_alone = threading.RLock()  # one for all models: of two that share a part, two threads would wait for each other


class Barrier:
    """Before a model's forward: other threads wait until the block ends."""

    def __init__(self) -> None:
        self.thread, self.over = threading.get_ident(), threading.Event()

    def __call__(self, module: nn.Module, args: Args) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() != self.thread:
            self.over.wait()

    def __deepcopy__(self, memo: dict[int, object]) -> Callable[[nn.Module, Args], None]:
        return _passed  # nobody changes the copy


def _passed(module: nn.Module, args: Args) -> None:
    """What is left of a barrier in a copy."""


@contextmanager
def settled() -> Iterator[None]:
    """Nobody examines or changes a model meanwhile; whoever wants to, waits."""
    with _alone:
        yield


@contextmanager
def alone_with(model: nn.Module, what: str) -> Iterator[None]:
    """No other thread runs the model until the block ends: those that come wait, one that is in it is told of.

    `what` is done here, for the message."""
    with _alone:
        modules = {id(module): module for module in model.modules()}
        if any(id(model) in others for others in _taken):  # by this thread: others wait for the lock
            yield
            return
        barrier = Barrier()
        with _numbering:
            wholes = [module for module in modules.values() if module is model or hasattr(module, "post_init")]
            handles = [module.register_forward_pre_hook(barrier, prepend=True) for module in wholes]
        _taken.append(modules)
        try:
            if (thread := _other_thread(modules)) is not None:
                raise UnsupportedModelError(
                    f"{what} was called while the thread '{thread}' runs this model, whose answers would be wrong. "
                    "Wait for it, or work on a copy (copy.deepcopy)."
                )
            yield
        finally:
            _taken.remove(modules)
            for handle in handles:
                handle.remove()
            barrier.over.set()


_taken: list[dict[int, nn.Module]] = []  # models that the thread with the lock has alone
_CALLS = ("inner", "_call_impl", "_wrapped_call_impl")  # of torch, around a module's hooks and forward


def _other_thread(modules: Mapping[int, nn.Module]) -> str | None:
    """The name of another thread that is in a method of one of these, by the stacks of all threads."""
    here, names = threading.get_ident(), {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in sys._current_frames().items():
        if ident != here and any(id(owner) in modules for owner in _owners(top)):
            return names.get(ident, str(ident))
    return None


def _owners(top: FrameType | None) -> list[object]:
    """`self` of every method that a thread is in; without a call that has only come to a barrier."""
    found: list[object] = []
    frame = top
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        frame = frame.f_back
        if isinstance(owner, Barrier):
            found.clear()
            while frame is not None and frame.f_code.co_name in _CALLS:
                frame = frame.f_back
        elif owner is not None:
            found.append(owner)
    return found


@contextmanager
def called_projections(model: nn.Module) -> Iterator[None]:
    """Let every attention of the model call its output projection as a module, so that hooks on it fire."""
    forms = unfused_attention(model)
    with opened(forms) if forms else nullcontext():
        yield


@contextmanager
def joined_heads(model: nn.Module) -> Iterator[None]:
    """Let every output projection be a module (XLNet's is a parameter) until the block ends."""
    forms = {module: form for module, form in unfused_attention(model).items() if form == BARE_OUTPUT}
    with opened(forms) if forms else nullcontext():
        yield
