"""Reading configs that may hold other configs, and settings that differ from layer to layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def value_of(config: Any, name: str) -> Any:
    """A setting, or None: also where a config refuses to give one value for what varies by layer."""
    try:
        return getattr(config, name, None)
    except (AttributeError, ValueError, KeyError, RuntimeError):
        return None


def with_inner(config: Any) -> Iterator[Any]:
    """A config and, breadth first, the configs inside it."""
    waiting = [config]
    while waiting:
        config = waiting.pop(0)
        yield config
        inner = [value_of(config, name) for name in getattr(type(config), "sub_configs", {})]
        waiting += [one for one in inner if one is not None and not isinstance(one, dict)]
