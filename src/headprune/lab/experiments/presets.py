"""Presets: a table or figure of a paper as steps, written in TOML. `reading` reads them, `expanding` makes trials.

    name, study, line, what     which table or figure, and what it shows
    [small] and [paper]         the same at two scales, each with
      inputs                    what must be given: name -> what it is
      chain                     steps that several presets share, by name (_shared.toml), before its own
      seeds                     of every step, unless it has its own
      [[…steps]]                name, command (or work), arguments, options, needs, seeds, and
                                each (a list of values a parameter: every combination) or rows (tables of values)
      [[…values]]               what to look at: name, step, path in its result, where (values of `each`), and what
                                the paper has (paper); or derive (largest, mean, first-lowest, …) and of (names of
                                other values)
      [[…claims]]               what is said of them: text, value, is (above, below, within), against another value (or
                                so many `times` it) or than a number, by how much; and who says it: `cited` is the
                                paper's place, `reading` is why the words or the number are ours
      differs                   why it may come out otherwise at this size; a claim may have its own

Options hold placeholders: {data} for an input, {model} for the folder of a step, {seed}, {rate} for one of `each`.
Values and claims may be given as `rows`, tables that fill {placeholders} in their texts, or as a `table` with `down`
and `across`, as papers print them. A step may `use` named options of _shared.toml.
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
DERIVED = ("largest", "smallest", "mean", "difference", "first-lowest", "first-highest")


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
    """A number of a result that the paper tells too, or that belongs beside it.

    One that is derived has no step: it is the `largest`, `smallest` or `mean` of other values (`of`, in groups), the
    `difference` between two, or in how many of the groups the first is lowest or highest."""

    name: str
    step: str = ""
    path: str = ""
    derive: str = ""
    of: tuple[tuple[str, ...], ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    paper: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, as a comparison that can come out false: `value` minus `against` (or `than`) is above `by`,
    below minus `by`, or within `by` of zero. `cited` is where the paper says it; a `reading` is what we take its words
    to mean where it gives no number, or what follows from its table."""

    text: str
    value: str
    relation: str
    against: str | None = None
    than: float | None = None
    times: float = 1.0  # of what it is compared with
    by: float = 0.0
    cited: str = ""
    reading: str = ""
    paper: str | float | None = None  # what the paper found, where its values do not tell
    differs: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A preset at one size."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    steps: tuple[Step, ...]
    values: tuple[Value, ...] = ()
    claims: tuple[Claim, ...] = ()
    note: str = ""
    differs: str = ""


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
