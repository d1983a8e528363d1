"""Kinds of work that a trial can be: a name, and a function from what the trial says to a result.

A result is a table of plain JSON values. Files go into the trial's folder, where trials that need it find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headprune.registry import Registry


@dataclass(frozen=True)
class Needed:
    """A finished trial as another one sees it."""

    folder: Path
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """What a piece of work is given."""

    params: Mapping[str, Any]
    seed: int
    folder: Path  # its own: whatever it writes
    needs: Mapping[str, Needed]
    inputs: Mapping[str, Path] = field(default_factory=dict)  # what was given from outside
    device: str = "cpu"  # where to compute: no part of the trial, whose result should not depend on it


Result = dict[str, Any]
Work = Callable[[Context], Result]
works: Registry[Work] = Registry("work")
alone: set[str] = set()  # kinds of work that measure time: nothing else may run on the machine meanwhile


@works.add("echo")
def echo(context: Context) -> Result:
    """Says what it was told: for trying out runners and clusters."""
    return {"params": dict(context.params), "seed": context.seed}


@works.add("spin")
def spin(context: Context) -> Result:
    """Keeps one core busy for a while: for measuring runners."""
    total = 0
    for step in range(int(context.params["options"]["steps"]) * 100_000):
        total += step % 7
    return {"total": total}
