"""Presets: a table or figure of a paper as steps, written in TOML. `reading` reads them, `expanding` makes trials.

    name, study, line, what     which table or figure, and what it shows
    [small] and [paper]         the same at two scales, each with
      inputs                    what must be given: name -> what it is
      chain                     steps that several presets share, by name (_shared.toml), before its own
      seeds                     of every step, unless it has its own
      [[…steps]]                name, command (or work), arguments, options, needs, seeds, and
                                each (a list of values a parameter: every combination) or rows (tables of values)
      [[…values]]               what to look at: name, step, path in its result, where (values of `each`), paper's value
      [[…claims]]               what the paper says of them: text, value, is (above, below, within), against another
                                value or than a number, by how much

Options hold placeholders: {data} for an input, {model} for the folder of a step, {seed}, {rate} for one of `each`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headprune.errors import PresetError
from headprune.lab.experiments.placeholders import texts_of
from headprune.registry import hint

SCALES = ("small", "paper")
RELATIONS = ("above", "below", "within")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One kind of trial, done for every seed and every combination of `each`."""

    name: str
    command: str = ""
    work: str = "command"
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    each: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    published: float | None = None  # parameters of its layers, as the paper tells them: for `run --check`
    seeds: tuple[int, ...] | None = None

    def texts(self) -> list[str]:
        """Where placeholders may stand."""
        return list(texts_of([*self.arguments, *self.options.values()]))

    def combinations(self) -> Iterator[dict[str, Any]]:
        for row in self.rows or ({},):
            for values in itertools.product(*self.each.values()):
                yield {**row, **dict(zip(self.each, values, strict=True))}

    def count(self) -> int:
        """How many combinations there are."""
        return max(1, len(self.rows)) * math.prod(map(len, self.each.values()))

    def parameters(self) -> set[str]:
        return {*self.each, *(name for row in self.rows for name in row)}


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number of a result that the paper tells too, or that belongs beside it."""

    name: str
    step: str
    path: str
    where: Mapping[str, Any] = field(default_factory=dict)
    paper: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, as a comparison that can come out false: `value` minus `against` (or `than`) is above `by`,
    below minus `by`, or within `by` of zero."""

    text: str
    value: str
    relation: str
    against: str | None = None
    than: float | None = None
    by: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A preset at one size."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    steps: tuple[Step, ...]
    values: tuple[Value, ...] = ()
    claims: tuple[Claim, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A table or figure."""

    name: str
    study: str
    line: str
    what: str
    scales: Mapping[str, Scale]
    source: str  # the text of its file

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise PresetError(f"{self.name} has no scale '{name}'. {hint(name, self.scales)}")
        return self.scales[name]
