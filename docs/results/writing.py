"""What the results pages share: tables, means with intervals, and what so many seeds allow to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headprune.stats import mean_interval

NOTE = "<!-- Written by `make results` from docs/results/data; edit nothing here. -->"
ENOUGH = 3  # seeds that a claim needs
Runs = dict[int, dict[str, Any]]  # seed -> what collect.py gathered


def label(runs: Runs) -> str:
    """What may be concluded from so many seeds."""
    seeds = ", ".join(str(seed) for seed in sorted(runs))
    if len(runs) < ENOUGH:
        return f"**{'One seed' if len(runs) == 1 else 'Two seeds'}, no claim** (seed {seeds})."
    return f"Seeds {seeds}; ± is the half width of the 95 % t interval over seeds."


def scored(evaluation: dict[str, Any]) -> str:
    low, high = evaluation["interval"]
    return f"{evaluation['score']:.4f} ({low:.4f} to {high:.4f})"


def spread(values: Sequence[float], digits: int = 4, sign: str = "") -> str:
    """A mean over seeds with its interval, or the plain number of a seed; with as many digits as mean something."""
    mean = float(np.mean(values))
    if len(values) < ENOUGH:
        return f"{mean:{sign}.{digits}f}"
    interval = mean_interval(list(values))
    return f"{mean:{sign}.{digits}f} ± {interval.high - mean:.{digits}f}"


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    line: Callable[[Sequence[Any]], str] = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"  # noqa: E731
    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]
