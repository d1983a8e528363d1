"""What a preset wants to see: numbers of results, over seeds, beside the paper's."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headprune.lab.experiments.presets import Preset, Value
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.work import works
from headprune.stats import mean_interval

LARGEST = 1e150  # a number whose square is one, too
ENOUGH = 3  # seeds for an interval, and for a claim
Named = tuple[str, Mapping[str, Any]]  # a trial as its preset knows it: the step, and its values of `each`


@dataclass(frozen=True)
class Observed:
    """A value as it was found."""

    name: str
    paper: float | str | None
    found: tuple[float, ...]
    seeds: tuple[int, ...] = ()  # of what was found
    planned: int = 0  # trials that it should be found in, one a seed
    problem: str = ""  # why a finished trial has no such number
    exact: bool = False  # arithmetic: the same for every seed

    @property
    def mean(self) -> float | None:
        return sum(self.found) / len(self.found) if self.found else None

    @property
    def half_width(self) -> float | None:
        """Of the 95 % t interval over seeds; None with fewer than three."""
        if len(self.found) < ENOUGH:
            return None
        interval = mean_interval(list(self.found))
        return interval.high - (self.mean or 0.0)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds as a share of the mean (so Budhraja et al.); None with fewer than three."""
        if len(self.found) < ENOUGH or not self.mean:
            return None
        return statistics.stdev(self.found) / abs(self.mean)

    def message(self) -> str:
        here = (self.problem or "not done") if self.mean is None else f"{self.mean:.4g}"
        here += f" ± {self.half_width:.2g}" if self.half_width is not None else ""
        return f"{self.name}: {here}" + ("" if self.paper is None else f" (paper: {self.paper})")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "paper": self.paper, "mean": self.mean, "half_width": self.half_width,
            "spread": self.spread,
            "found": list(self.found), "seeds": list(self.seeds), "planned": self.planned,
            "claim": len(self.found) >= ENOUGH, "problem": self.problem,
        }  # fmt: skip


def seen(preset: Preset, scale: str, records: Iterable[Record], planned: Iterable[Named]) -> list[Observed]:
    """Every value of a preset; those whose trials are not done are empty. `planned` are all trials, run or not."""
    done, names = [record for record in records if record.is_done], list(planned)
    steps = {step.name: step.work for step in preset.scale(scale).steps}
    found: dict[str, Observed] = {}
    for value in preset.scale(scale).values:
        if value.derive:
            found[value.name] = _derived(value, found)
        else:
            exact = (kind := works.find(steps[value.step])) is not None and kind.exact
            found[value.name] = replace(_seen(value, done, names), exact=exact)
    return list(found.values())


def _derived(value: Value, known: Mapping[str, Observed]) -> Observed:
    """From other values of the same seed; a seed that lacks one of them has none."""
    parts = {name: known[name] for group in value.of for name in group}
    once = {name: part.found[0] for name, part in parts.items() if part.planned == 1 and part.found}
    by_seed = {name: dict(zip(part.seeds, part.found, strict=True)) for name, part in parts.items() if name not in once}
    common = sorted(set.intersection(*map(set, by_seed.values()))) if by_seed else [0]
    numbers = []
    for seed in common:
        at = {**once, **{name: found[seed] for name, found in by_seed.items()}}
        numbers.append(_DERIVE[value.derive]([[at[name] for name in group] for group in value.of]))
    problem = next((part.problem for part in parts.values() if part.problem), "")
    planned = max(part.planned for part in parts.values())
    exact = all(part.exact for part in parts.values())
    return Observed(value.name, value.paper, tuple(numbers), tuple(common), planned, problem, exact)


_DERIVE: Mapping[str, Callable[[list[list[float]]], float]] = {
    "largest": lambda groups: max(map(max, groups)),
    "smallest": lambda groups: min(map(min, groups)),
    "mean": lambda groups: statistics.fmean(number for group in groups for number in group),
    "difference": lambda groups: groups[0][0] - groups[-1][-1],
    "first-lowest": lambda groups: float(sum(group[0] < min(group[1:]) for group in groups)),
    "first-highest": lambda groups: float(sum(group[0] > max(group[1:]) for group in groups)),
}


def _seen(value: Value, records: list[Record], planned: list[Named]) -> Observed:
    def meant(step: str, values: Mapping[str, object]) -> bool:
        return step == value.step and all(values.get(name) == wanted for name, wanted in value.where.items())

    chosen = [record for record in records if meant(record.trial.step, record.trial.params["values"])]
    chosen.sort(key=lambda record: record.trial.seed)
    found, seeds, problem = [], [], ""
    for record in chosen:
        number = number_at(record.result, value.path)
        if isinstance(number, str):
            problem = f"{record.trial.label}: {number}"
        else:
            found.append(number)
            seeds.append(record.trial.seed)
    expected = sum(meant(step, values) for step, values in planned)
    return Observed(value.name, value.paper, tuple(found), tuple(seeds), expected, problem)


def number_at(result: Mapping[str, Any], path: str) -> float | str:
    """The number at the end of a path, or why there is none. `#0` is the first entry of a table, `#-1` its last."""
    found: Any = result
    for part in path.split("/"):
        if isinstance(found, Mapping) and re.fullmatch(r"#-?\d{1,6}", part) and part not in found:
            places, place = list(found.values()), int(part[1:])
            if not -len(places) <= place < len(places):
                return f"no place {place} on the way to '{path}' (found: {len(places)})"
            found = places[place]
        elif isinstance(found, list) and part.lstrip("-").isdecimal() and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            known = ", ".join(map(str, found))[:200] if isinstance(found, Mapping) else type(found).__name__
            return f"no '{part}' on the way to '{path}' (found: {known})"
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= LARGEST:
        return f"'{path}' is {repr(found)[:60]}, not a number"
    return float(found)
