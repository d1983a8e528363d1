"""Names to things, with near-miss hints for names that do not exist."""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from headprune.errors import DataError, HeadpruneError, UnknownNameError

T = TypeVar("T")


LONGEST = 80  # letters of a name that is compared with others: the time grows with their product


def hint(name: str, known: Iterable[str]) -> str:
    """'Did you mean ...?' and the list of what exists, for the end of an error message."""
    names = sorted(known)
    lowered = {known.lower(): known for known in names if len(known) <= LONGEST}
    typed = name[:LONGEST].lower()
    near = difflib.get_close_matches(typed, lowered, n=1) or [k for k in lowered if k.endswith(f".{typed}")]
    guess = f"Did you mean '{lowered[near[0]]}'? " if near else ""
    more = f", … ({len(names)} in all)" if len(names) > 12 else ""
    shown = ", ".join(known[:LONGEST] for known in names[:12]) + more
    return f"{guess}Known: {shown}."


def known_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is one of those that are known."""
    names = list(known)
    if name not in names:
        raise UnknownNameError(f"No {kind} called '{name}'. {hint(name, names)}")
    return name


def check_finite(kind: str, numbers: Mapping[str, object], error: type[HeadpruneError] = DataError) -> None:
    """Refuse NaN and infinity: a comparison with them says yes or no without meaning it."""
    for name, value in numbers.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise error(f"{kind}: {name} is {value}; expected a finite number.")


def check_options(kind: str, function: Callable[..., object], options: Iterable[str]) -> None:
    """Options that a function does not have are refused by name, before anything is done; and numbers that are none."""
    if isinstance(options, Mapping):
        check_finite(kind, options)
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
    ]
    for name in options:
        if name not in known:
            more = hint(name, known) if known else "It has none."
            raise UnknownNameError(f"{kind} has no option called '{name}'. {more}")


class NamedItems(Generic[T]):
    """Things of one kind by name: those registered here, and those of installed packages.

    A package offers one as an entry point of `group`; the entry point is loaded when its name is first asked for. What
    it names is registered under the entry point's name, unless importing it did so already.
    """

    def __init__(self, kind: str, group: str | None = None) -> None:
        self.kind, self.group = kind, group
        self._items: dict[str, T] = {}

    def put(self, name: str, item: Any) -> None:
        """Register something. Subclasses may make another thing of it."""
        self._items[name] = item

    def find(self, name: str) -> T | None:
        if name not in self._items and self.group is not None:
            for point in importlib.metadata.entry_points(group=self.group, name=name):
                self._load(point)
        return self._items.get(name)

    def _load(self, point: importlib.metadata.EntryPoint) -> None:
        try:
            offered = point.load()
        except Exception as error:  # whatever another package's code raises
            package = f" of {point.dist.name}" if point.dist is not None else ""
            raise UnknownNameError(
                f"The {self.kind} '{point.name}' ({point.value}{package}) cannot be loaded: "
                f"{type(error).__name__}: {error}. Update or remove that package."
            ) from error
        if point.name not in self._items:
            self.put(point.name, offered)

    def __getitem__(self, name: str) -> T:
        found = self.find(name)
        if found is None:
            raise UnknownNameError(f"No {self.kind} called '{name}'. {hint(name, self)}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names()))

    def _names(self) -> set[str]:
        offered = set() if self.group is None else importlib.metadata.entry_points(group=self.group).names
        return {*self._items, *offered}


class Registry(NamedItems[T]):
    """A table of one kind of thing (recoveries, adapters, …) that users may extend."""

    def add(self, name: str) -> Callable[[T], T]:
        """Register under `name`: `@things.add("mine")` above a definition, or `things.add("mine")(thing)`."""

        def register(item: T) -> T:
            self.put(name, item)
            return item

        return register
