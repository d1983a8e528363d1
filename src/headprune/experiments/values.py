"""What a preset wants to see: numbers of results, over seeds, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headprune.errors import PresetError
from headprune.experiments.presets import Preset, Value
from headprune.experiments.store import Record
from headprune.stats import mean_interval

ENOUGH = 3  # seeds for an interval, and for a claim


@dataclass(frozen=True)
class Seen:
    """A value as it was found."""

    name: str
    paper: float | str | None
    found: tuple[float, ...]  # by seed

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
            "found": list(self.found), "claim": len(self.found) >= ENOUGH,
        }  # fmt: skip


def seen(preset: Preset, scale: str, records: Iterable[Record]) -> list[Seen]:
    """Every value of a preset; those whose trials are not done are empty."""
    done = [record for record in records if record.is_done]
    return [Seen(value.name, value.paper, tuple(_numbers(preset, value, done))) for value in preset.scale(scale).values]


def _numbers(preset: Preset, value: Value, records: list[Record]) -> list[float]:
    chosen = [
        record
        for record in records
        if record.trial.step == value.step
        and all(record.trial.params["values"].get(name) == wanted for name, wanted in value.where.items())
    ]
    chosen.sort(key=lambda record: record.trial.seed)
    found = [_number(preset, value, record) for record in chosen]
    return [number for number in found if number is not None]


def _number(preset: Preset, value: Value, record: Record) -> float | None:
    """None where the result says that there is no such number (a correlation of scores that do not vary)."""
    found: Any = record.result
    for part in value.path.split("/"):
        if isinstance(found, list) and part.lstrip("-").isdecimal() and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            known = ", ".join(map(str, found))[:200] if isinstance(found, Mapping) else type(found).__name__
            raise PresetError(
                f"{preset.name}: the value '{value.name}' looks for '{value.path}' in {record.trial.label}; there is "
                f"no '{part}' (found: {known})."
            )
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise PresetError(f"{preset.name}: '{value.path}' of {record.trial.label} is {found!r}, not a number.")
    return float(found)
