"""What a preset wants to see: numbers of results, over seeds, beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headprune.lab.experiments.presets import Preset, Value
from headprune.lab.experiments.store import Record
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
    return [_seen(value, done, names) for value in preset.scale(scale).values]


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


def number_at(result: Mapping[str, object], path: str) -> float | str:
    """The number at the end of a path, or why there is none."""
    found: Any = result
    for part in path.split("/"):
        if isinstance(found, list) and part.lstrip("-").isdecimal() and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            known = ", ".join(map(str, found))[:200] if isinstance(found, Mapping) else type(found).__name__
            return f"no '{part}' on the way to '{path}' (found: {known})"
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= LARGEST:
        return f"'{path}' is {repr(found)[:60]}, not a number"
    return float(found)
