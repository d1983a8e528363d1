"""The attention functions that transformers models look up by name, seen on their way to the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def wrapped_attention(wrapper: Callable[..., Any]) -> Iterator[None]:
    """Call `wrapper(function, module, *args, **kwargs)` instead of each attention function until the block ends."""
    utils = sys.modules.get("transformers.modeling_utils")
    if utils is None:
        yield
        return
    interface = utils.AttentionInterface
    original = interface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)
        return lambda module, *args, **kwargs: wrapper(function, module, *args, **kwargs)

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original
