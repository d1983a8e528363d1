"""What cells lost, on average over fine-tunings and tasks, with an interval over fine-tunings and examples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Loss:
    """In points, or in nats where the metric is perplexity."""

    mean: float
    half: float  # of the 95 % interval
    cells: int

    def shown(self, digits: int = 2) -> str:
        return f"{self.mean:.{digits}f} ± {self.half:.{digits}f}"


def in_nats(cell: Cell) -> bool:
    return bool(cell["metric"] == "perplexity")


def lost(cell: Cell) -> tuple[float, float]:
    """What one cell lost, and the half width of its paired interval over examples."""
    change = cell["change"]
    low, high = (float(end) for end in change["interval"])
    if in_nats(cell):
        full = float(cell["full"])
        ends = [math.log(max(full + end, 1e-9) / full) for end in (low, high)]
        return float(cell["nll"]) - float(cell["nll_full"]), (ends[1] - ends[0]) / 2
    return -100 * float(change["difference"]), 100 * (high - low) / 2


def gained(cell: Cell) -> tuple[float, float]:
    """What `best` had more than this way at the same budget, and the half width of the interval over examples."""
    against = cell["against"]
    low, high = (float(end) for end in against["interval"])
    scale = -1 / float(cell["score"]) if in_nats(cell) else 100.0
    return scale * float(against["change"]), abs(scale) * (high - low) / 2


def over_both(tasks: Sequence[Sequence[tuple[float, float]]]) -> Loss:
    """The mean over tasks of the means over fine-tunings. The examples of a task are the same for all its fine-tunings,
    so that their part of the width does not shrink with more of them: it is added, squared, to that of Student's t over
    fine-tunings."""
    means, squares = [], []
    for found in tasks:
        values = [value for value, _ in found]
        between = 0.0
        if len(values) > 1:
            between = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        means.append(statistics.mean(values))
        squares.append(between * between + statistics.mean(half * half for _, half in found))
    return Loss(statistics.mean(means), math.sqrt(sum(squares)) / len(tasks), sum(map(len, tasks)))


def _student(freedom: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom))


def loss_of(cells: Sequence[Cell]) -> Loss | None:
    """Over tasks, each with its fine-tunings; None for no cells."""
    tasks: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        tasks.setdefault(str(cell["data"]), []).append(lost(cell))
    return over_both(list(tasks.values())) if tasks else None


def lead_of(cells: Sequence[Cell]) -> Loss | None:
    """By how much `best` is ahead of these cells at their budgets."""
    tasks: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        if cell.get("against"):
            tasks.setdefault(str(cell["data"]), []).append(gained(cell))
    return over_both(list(tasks.values())) if tasks else None
