"""How a job is run: what it is given besides its options, and what every result can do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

Step = Callable[[str], None]  # called with the name of each step as it begins
Options = TypeVar("Options", contravariant=True)


class Progress:
    """How a job tells what it is doing. This one is silent; the command line has one that shows a bar."""

    quiet = True  # whether libraries that show progress of their own should keep it to themselves

    @contextmanager
    def steps(self, total: int) -> Iterator[Step]:
        """So many steps are to come, until the block ends."""
        yield lambda name: None

    def note(self, message: str) -> None:
        """Something a person should know that is no result: a warning."""


SILENT = Progress()


class Result(Protocol):
    """What a job found. Its class says which job and which version of its results this is.

    One that may be bad news (`doctor`) says so by `failed`: the command then ends with an error.
    """

    version: ClassVar[int]  # rises only when figures change for the same options

    def to_dict(self) -> Any:
        """Plain JSON values: what `--json` prints and experiments store."""

    def message(self) -> str:
        """What a person wants to know, the last line first of all."""


class Job(Protocol[Options]):
    """A function of `headprune.jobs`."""

    def __call__(self, options: Options, progress: Progress = SILENT, /) -> Result: ...


def find_job(name: str) -> Job[Any]:
    """The function behind a command: `find_job("train-mt")` is `headprune.jobs.train_mt.train_mt`."""
    name = name.replace("-", "_")
    found: Job[Any] = getattr(importlib.import_module(f"headprune.jobs.{name}"), name)
    return found
