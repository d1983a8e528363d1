"""Kinds of work that a trial can be: a name, and a function from what the trial says to a result.

A result is a table of plain JSON values. Files go into the trial's folder, where trials that need it find them. Most
trials are jobs (`job_step`); what no command does is a small function under a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headprune.registry import Registry

OUT = "out"  # inside a trial's folder: what a job wrote


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

    @property
    def places(self) -> dict[str, Path]:
        """What placeholders stand for: folders of needed steps, and inputs."""
        return {**{name: need.folder / OUT for name, need in self.needs.items()}, **self.inputs}


Result = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A kind of work. Its `version` is that of its results: it rises only when figures change."""

    run: Callable[[Context], Result]
    version: int = 1
    alone: bool = False  # it measures time: nothing else may run on the machine meanwhile
    exact: bool = False  # arithmetic: no seed changes it


works: Registry[Work] = Registry("work")


def work(
    name: str, *, version: int = 1, alone: bool = False, exact: bool = False
) -> Callable[[Callable[[Context], Result]], Callable[[Context], Result]]:
    """`@work("mine")` above a function makes it a kind of work that presets can name."""

    def register(run: Callable[[Context], Result]) -> Callable[[Context], Result]:
        works.add(name)(Work(run, version, alone, exact))
        return run

    return register


@work("echo")
def echo(context: Context) -> Result:
    """Says what it was told: for trying out runners and clusters."""
    return {"params": dict(context.params), "seed": context.seed}


@work("spin")
def spin(context: Context) -> Result:
    """Keeps one core busy for a while: for measuring runners."""
    total = 0
    for step in range(int(context.params["options"]["steps"]) * 100_000):
        total += step % 7
    return {"total": total}
