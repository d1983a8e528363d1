"""Stored results as the typed values that they were: each is understood, or what is wrong with it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headprune.errors import HeadpruneError
from headprune.heads import HeadScores
from headprune.jobs.ablate import Ablated
from headprune.jobs.curve import Curved
from headprune.jobs.functions import FunctionsResult
from headprune.jobs.gated import GatedModel, GatesResult
from headprune.jobs.prune import PruneResult
from headprune.jobs.trained import Trained
from headprune.lab.experiments.measures import MeasuredSpeed
from headprune.lab.experiments.store import Record
from headprune.tasks import ScoreSummary
from headprune.typed_json import FieldError, from_plain, prepare

Shown = HeadScores | Ablated | Curved | FunctionsResult | GatesResult | PruneResult | Trained | MeasuredSpeed
READERS: dict[str, Callable[[Mapping[str, Any]], Shown]] = {
    "score": HeadScores.from_dict,
    "ablate": lambda stored: Ablated.from_dict(dict(stored)),
    "curve": lambda stored: Curved.from_dict(dict(stored)),
    "functions": FunctionsResult.from_dict,
    "gates": lambda stored: GatesResult.from_dict(stored.get("results")),
    "prune": lambda stored: from_plain(PruneResult, stored),
    "finetune": Trained.from_dict,
    "train-mt": Trained.from_dict,
    "train-lm": Trained.from_dict,
    "speed": lambda stored: from_plain(MeasuredSpeed, stored),
}
prepare(Ablated, Curved, FunctionsResult, tuple[GatedModel, ...], PruneResult, Trained, ScoreSummary, MeasuredSpeed)


@dataclass(frozen=True)
class Problem:
    """Something stored that the page cannot show: where, what was found, what was expected."""

    trial: str
    field: str
    found: str
    expected: str

    @classmethod
    def of(cls, trial: str, error: HeadpruneError) -> Problem:
        if isinstance(error, FieldError):
            return cls(trial, error.field or "–", error.found, error.expected)
        return cls(trial, "–", str(error), "what this headprune stores")


@dataclass
class Results:
    """Records of finished trials with what they found, and what was wrong on the way."""

    known: list[tuple[Record, Shown]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def note(self, record: Record, error: HeadpruneError) -> None:
        problem = Problem.of(record.trial.label or record.trial.kind, error)
        if problem not in self.problems:  # a trial may be looked at from several sides
            self.problems.append(problem)


def read_results(records: Iterable[Record], cache: dict[str, Shown | HeadpruneError] | None = None) -> Results:
    """What is known of each trial that a page can show; of other kinds of work it tells values alone. Presets share
    trials: with a `cache`, each is read once."""
    results, cache = Results(), {} if cache is None else cache
    for record in records:
        reader = READERS.get(record.trial.kind) if record.is_done else None
        if reader is None:
            continue
        key = record.trial.key()
        if key not in cache:
            try:
                cache[key] = reader(record.result)
            except HeadpruneError as error:
                cache[key] = error
        found = cache[key]
        if isinstance(found, HeadpruneError):
            results.note(record, found)
        else:
            results.known.append((record, found))
    return results
