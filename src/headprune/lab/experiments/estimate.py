"""How long trials would take, from measured ones: times.json holds seconds of one thread by what is done and to what.

`python tools/papers/times.py STORE` writes it from stored trials. A trial that is like none there (another option) is
taken for its family: what is done to which task, by the epoch, the step or the example.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

from headprune.lab.experiments.store import Record
from headprune.lab.experiments.trial import Trial

FILE = "times.json"
_CHOICES = ("seed", "keep", "pattern", "prune", "lambda")  # change what is found, hardly how long it takes


def likeness(trial: Trial) -> str:
    """The same for trials that take the same time: names of steps and inputs, and what is drawn, do not count."""
    params = {name: trial.params.get(name) for name in ("command", "arguments")}
    options = {name: value for name, value in trial.params.get("options", {}).items() if name not in _CHOICES}
    text = json.dumps({"work": trial.work, **params, "options": options}, sort_keys=True)
    for name in trial.needs:
        text = text.replace(f"{{{name}}}", "{}")
    return hashlib.sha256(re.sub(r"\{\}/[^\"]*", "{}", text).encode()).hexdigest()[:16]


def family(trial: Trial) -> tuple[str, float]:
    """What is done, to which task; and how much of it there is, in the unit that the name ends with."""
    options = trial.params.get("options", {})
    unit, amount = "trial", 1.0
    if "updates" in options:
        unit, amount = "updates", float(options["updates"])
    elif trial.kind in _EPOCHS:
        unit, amount = "epochs", float(options.get("epochs", _EPOCHS[trial.kind]))
    elif trial.kind in ("ablate", "score") and options.get("examples"):
        unit, amount = "examples", float(options.get("choose-examples") or options["examples"])
    elif trial.kind == "curve":
        scores = options.get("scores", [])
        lines = (len(scores) if isinstance(scores, list) else 1) + float(options.get("random", 3))
        parts = 3 if options.get("components") == "each" else 1
        unit, amount = ("trial", 1.0) if "checkpoints" in options else ("orders", lines * parts)
    more = ["help"] if options.get("data-dir") == "{help}" else []  # a smaller corpus than the other
    more += ["all-but-one"] if options.get("all-but-one") else []
    return " ".join(filter(None, (trial.kind, str(options.get("task") or ""), *more, f"by {unit}"))), amount


_EPOCHS = {"train-mt": 10.0, "finetune": 3.0, "gates": 2.0}  # where nothing is said


def measured(records: Iterable[Record]) -> dict[str, Any]:
    """What times.json holds: mean processor seconds of trials alike, and of families."""
    alike: dict[str, list[float]] = defaultdict(list)
    families: dict[str, list[float]] = defaultdict(list)
    told: dict[str, str] = {}
    for record in records:
        if record.is_done and record.cpu_seconds:
            key, (name, amount) = likeness(record.trial), family(record.trial)
            alike[key].append(record.cpu_seconds)
            families[name].append(record.cpu_seconds / amount)
            told.setdefault(key, f"{name}: {record.trial.step}")
    return {
        "alike": {
            key: {"step": told[key], "seconds": round(statistics.fmean(found), 1), "trials": len(found)}
            for key, found in sorted(alike.items(), key=lambda one: told[one[0]])
        },
        "families": {
            name: {"seconds": float(f"{statistics.fmean(found):.4g}"), "trials": len(found)}
            for name, found in sorted(families.items())
        },
    }


def known_times() -> dict[str, Any]:
    """Those that come with headprune."""
    found = resources.files("headprune.lab.experiments") / FILE
    content: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Estimate:
    """What is left of some presets, in hours of one thread."""

    trials: int
    left: int
    hours: float  # of one core
    longest: float  # chain of trials that need each other, in hours
    like: int  # trials whose own kind was measured
    kind_only: int  # whose family was
    unknown: Sequence[str]  # steps of which nothing alike was measured
    workers: int
    seconds: Mapping[str, float]
    version: ClassVar[int] = 1

    @property
    def wall(self) -> float:
        """With so many workers at a time, each on a core of its own."""
        return max(self.longest, self.hours / self.workers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "trials": self.trials, "left": self.left, "core_hours": self.hours, "longest_chain": self.longest,
            "workers": self.workers, "hours": self.wall, "measured": self.like, "by_kind": self.kind_only,
            "unknown": list(self.unknown), "seconds": dict(self.seconds),
        }  # fmt: skip

    def message(self) -> str:
        lines = [f"{seconds / 3600:8.2f} h  {name}" for name, seconds in self.seconds.items()]
        lines.append(
            f"{self.left} of {self.trials} trials are left: {self.hours:.1f} core-hours, {self.wall:.1f} hours with "
            f"{self.workers} at a time on a core each (longest chain {self.longest:.1f}). {self.like} were measured, "
            f"{self.kind_only} are taken for their kind"
            + (f", and nothing is known of {len(self.unknown)}: {', '.join(self.unknown[:8])}" if self.unknown else "")
            + "."
        )
        return "\n".join(lines)


def estimate(
    planned: Mapping[str, Sequence[Trial]], done: set[str], workers: int, times: Mapping[str, Any]
) -> Estimate:
    """Of the trials of presets; a trial that several share counts for the first. `done` are keys."""
    costs: dict[str, float] = {}
    by_preset: dict[str, float] = {}
    ends: dict[str, float] = {}
    like = kind_only = 0
    unknown: list[str] = []
    for preset, trials in planned.items():
        by_preset[preset] = 0.0
        for trial in trials:
            key = trial.key()
            if key in ends:
                continue
            cost = 0.0
            if key not in done:
                if (known := times["alike"].get(likeness(trial))) is not None:
                    like += 1
                    cost = float(known["seconds"])
                elif (known := times["families"].get(family(trial)[0])) is not None:
                    kind_only += 1
                    cost = family(trial)[1] * float(known["seconds"])
                else:
                    unknown.append(trial.step)
                costs[key] = cost
            by_preset[preset] += cost
            ends[key] = cost + max((ends.get(need, 0.0) for need in trial.needs.values()), default=0.0)
    hours = sum(costs.values()) / 3600
    longest = max(ends.values(), default=0.0) / 3600
    names = tuple(dict.fromkeys(unknown))
    return Estimate(len(ends), len(costs), hours, longest, like, kind_only, names, max(1, workers), by_preset)
