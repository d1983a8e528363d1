"""The table of scorers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headprune.heads import HeadScores
from headprune.registry import NamedItems, check_options

Function = TypeVar("Function", bound=Callable[..., HeadScores])


@dataclass(frozen=True)
class Scorer:
    """A function from a ScoringContext and options of its own to scores, and what it says of itself."""

    function: Callable[..., HeadScores]
    comparable: bool = False  # its numbers mean the same in every site, so that sites need no normalisation
    data_free: bool = False  # looks at no data
    of_attention: bool = False  # looks at attention itself: not for neurons
    needs_all: bool = False  # its answers on parts of the data do not add up to that on all of it

    def __call__(self, job: Any, **options: Any) -> HeadScores:
        scores = self.function(job, **options)
        return replace(scores, comparable=scores.comparable or self.comparable)

    def check_options(self, name: str, options: Iterable[str]) -> None:
        check_options(f"The score '{name}'", self.function, options)


class Scorers(NamedItems[Scorer]):
    """Scorers by the name that users type. A package offers its own in the group `headprune.scorers`."""

    def add(
        self,
        name: str,
        *,
        comparable: bool = False,
        data_free: bool = False,
        of_attention: bool = False,
        needs_all: bool = False,
    ) -> Callable[[Function], Function]:
        """Register a function: `@scorers.add("mine", comparable=True)`. What can be said is told in `Scorer`."""

        def register(function: Function) -> Function:
            self._items[name] = Scorer(function, comparable, data_free, of_attention, needs_all)
            return function

        return register

    def put(self, name: str, item: Any) -> None:
        self._items[name] = item if isinstance(item, Scorer) else Scorer(item)


scorers = Scorers("scorer", group="headprune.scorers")


def unit_options(method: str, unit: str) -> dict[str, Any]:
    """What a scorer must be told so that heads that go together are scored together; most only add up their heads."""
    return {"unit": unit} if "unit" in inspect.signature(scorers[method].function).parameters else {}
