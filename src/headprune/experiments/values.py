"""What a preset wants to see: numbers of results, over seeds, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headprune.experiments.presets import Preset, Value
from headprune.experiments.store import Record
from headprune.stats import mean_interval

ENOUGH = 3  # seeds for an interval, and for a claim


@dataclass(frozen=True)
class Seen:
    """A value as it was found."""

    name: str
    paper: float | str | None
    found: tuple[float, ...]
    seeds: tuple[int, ...] = ()  # of what was found
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

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "paper": self.paper, "mean": self.mean, "half_width": self.half_width,
            "found": list(self.found), "seeds": list(self.seeds), "claim": len(self.found) >= ENOUGH,
            "problem": self.problem,
        }  # fmt: skip


def seen(preset: Preset, scale: str, records: Iterable[Record]) -> list[Seen]:
    """Every value of a preset; those whose trials are not done are empty."""
    done = [record for record in records if record.is_done]
    return [_seen(value, done) for value in preset.scale(scale).values]


def _seen(value: Value, records: list[Record]) -> Seen:
    chosen = [
        record
        for record in records
        if record.trial.step == value.step
        and all(record.trial.params["values"].get(name) == wanted for name, wanted in value.where.items())
    ]
    chosen.sort(key=lambda record: record.trial.seed)
    found, seeds, problem = [], [], ""
    for record in chosen:
        number = number_at(record.result, value.path)
        if isinstance(number, str):
            problem = f"{record.trial.label}: {number}"
        else:
            found.append(number)
            seeds.append(record.trial.seed)
    return Seen(value.name, value.paper, tuple(found), tuple(seeds), problem)


def number_at(result: Mapping[str, Any], path: str) -> float | str:
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
    if isinstance(found, bool) or not isinstance(found, int | float):
        return f"'{path}' is {found!r}, not a number"
    return float(found)
