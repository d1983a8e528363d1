"""The table of scorers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headprune.heads import HeadScores
from headprune.registry import Registry

scorers: Registry[Callable[..., HeadScores]] = Registry("scorer")

data_free: set[str] = set()  # scorers that look at no data
of_attention: set[str] = set()  # scorers that look at attention itself: not for neurons
needs_all: set[str] = set()  # scorers whose answers on parts of the data do not add up to that on all of it


def unit_options(method: str, unit: str) -> dict[str, Any]:
    """What a scorer must be told so that heads that go together are scored together; most only add up their heads."""
    return {"unit": unit} if "unit" in inspect.signature(scorers[method]).parameters else {}
