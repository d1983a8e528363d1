"""How a job is run: what it is given besides its options, and what every result can do."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from headprune import jobs
from headprune.errors import UnknownNameError
from headprune.jobs import options as options_room
from headprune.registry import hint

Step = Callable[[str], None]  # called with the name of each step as it begins
Options = TypeVar("Options", contravariant=True)


class Progress:
    """How a job tells what it is doing. This one is silent; the command line has one that shows a bar."""

    quiet = True  # whether libraries that show progress of their own should keep it to themselves

    @contextmanager
    def steps(self, total: int) -> Iterator[Step]:
        """So many steps are to come, until the block ends."""
        yield lambda name: None

    @contextmanager
    def parts(self, total: int, finished: int = 0) -> Iterator[Step]:
        """So many parts of a long work, some finished already: to be called with the name of each as it ends."""
        yield lambda name: None

    def tell(self, message: str) -> None:
        """What a person may read meanwhile; a program is told nothing but the result."""

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
    """A function of `headprune.jobs`. Of several processes that train together, only the first has a result."""

    def __call__(self, options: Options, progress: Progress = SILENT, /) -> Result | None: ...


def find_job(name: str) -> Job[Any]:
    """The function behind a command: `find_job("train-mt")` is `headprune.jobs.train_mt.train_mt`."""
    name = name.replace("-", "_")
    found: Job[Any] = getattr(importlib.import_module(f"headprune.jobs.{name}"), name)
    return found


def find_options(name: str) -> type[Any]:
    """What a job can be asked: `find_options("train-mt")` is `headprune.jobs.options.train_mt.TrainMtOptions`.

    Quick, because no job is imported."""
    if name not in job_names():
        raise UnknownNameError(f"No job called '{name}'. {hint(name, job_names())}")
    module = importlib.import_module(f"{options_room.__name__}.{name.replace('-', '_')}")
    found: type[Any] = getattr(module, "".join(map(str.capitalize, name.split("-"))) + "Options")
    return found


@functools.cache
def job_names() -> tuple[str, ...]:
    """Every job, as its command is called: what has a file of options and one of what is done."""
    rooms = ({module.name for module in pkgutil.iter_modules(room.__path__)} for room in (jobs, options_room))
    return tuple(sorted(name.replace("_", "-") for name in set.intersection(*rooms)))


def results_version(name: str) -> int:
    """Of a job's results: its options class says it where it is not 1, and the class of its results says the same."""
    return int(getattr(find_options(name), "results", 1))
