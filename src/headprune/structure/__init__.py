"""Finding attention in a model. Imported lazily: hooks read the adapters in here, and the rest builds on hooks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headprune.structure.find import find_heads as find_heads
    from headprune.structure.find import model_structure as model_structure
    from headprune.structure.run import example_inputs as example_inputs

_PLACES = {"example_inputs": "run", "find_heads": "find", "model_structure": "find"}
__all__ = ["example_inputs", "find_heads", "model_structure"]  # found by __getattr__


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'headprune.structure' has no attribute {name!r}")
    return getattr(import_module(f"headprune.structure.{_PLACES[name]}"), name)
