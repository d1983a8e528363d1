"""The attention functions that transformers models look up by name, seen on their way to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from headprune import patches

AttentionWrapper = Callable[..., Any]  # (function, module, *args, **kwargs) -> what the function would return
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
