"""The table of scorers."""

from __future__ import annotations

from collections.abc import Callable

from headprune.heads import HeadScores
from headprune.registry import Registry

scorers: Registry[Callable[..., HeadScores]] = Registry("scorer")

data_free: set[str] = set()  # scorers that look at no data
