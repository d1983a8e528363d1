"""From raw answers to figures: medians, ratios to headprune round by round, accuracies with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from headprune.cost.measurement import ratio
from headprune.stats import bootstrap_interval, paired_bootstrap

OURS = "headprune"


def figures(times: dict[str, dict[str, list[float]]], again: str) -> dict[str, Any]:
    """For each kind of time and tool the median, and the ratio to headprune's with its quartiles.

    `forward` is one pass of the pruned model; `speedup` the whole model's time over the pruned one's in the same
    process and round.
    """
    series = {kind: dict(rows) for kind, rows in times.items() if kind not in ("whole", "pruned")}
    if "score" in series and "prune" in series:
        # A tool that scores and prunes in one call has no time of its own for pruning.
        series["score_and_prune"] = {
            name: [a + b for a, b in zip(rows, series["prune"].get(name, [0.0] * len(rows)), strict=True)]
            for name, rows in series["score"].items()
        }
    # The worker runs each model twice a round.
    series["forward"] = {name: [seconds / 2 for seconds in rows] for name, rows in times.get("pruned", {}).items()}
    series["speedup"] = {
        name: [a / b for a, b in zip(rows, times["pruned"][name], strict=True)]
        for name, rows in times.get("whole", {}).items()
    }
    return {
        kind: {name: _figure(row, rows.get(OURS)) for name, row in rows.items()} | _control(rows, again)
        for kind, rows in series.items()
    }


def _figure(row: Sequence[float], ours: Sequence[float] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"median": statistics.median(row)}
    if ours is not None and len(row) == len(ours):
        found["ratio"] = list(ratio(row, ours))
    return found


def _control(rows: dict[str, list[float]], again: str) -> dict[str, Any]:
    """How far headprune's time is from its own, in a second process: median and quartiles."""
    if OURS not in rows or again not in rows or len(rows[OURS]) != len(rows[again]):
        return {}
    return {"control": list(ratio(rows[again], rows[OURS]))}


def quality_figures(whole: dict[str, Any], ways: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Accuracies with 95 % intervals, and differences from headprune's first way, paired over sentences.

    headprune has its first way, fixed beforehand; a peer has its best one on these very sentences, which favours it.
    """
    if "error" in whole:
        return {"error": whole["error"]}
    found: dict[str, Any] = {"whole": _accuracy(whole), "tools": {}}
    ours = next(iter(ways[OURS].values()))
    for name, answers in ways.items():
        rows = {way: answer if "error" in answer else _accuracy(answer) for way, answer in answers.items()}
        for way, answer in answers.items():
            if "right" in answer and "right" in ours:
                gap = paired_bootstrap(_bits(ours), _bits(answer))
                assert gap.interval is not None
                rows[way]["against"] = [gap.difference, gap.interval.low, gap.interval.high]
        fit = [way for way, row in rows.items() if "accuracy" in row]
        best = next(iter(rows)) if name == OURS else max(fit, key=lambda way: rows[way]["accuracy"][0], default=None)
        found["tools"][name] = {"ways": rows, "counts": best}
    return found


def _accuracy(answer: dict[str, Any]) -> dict[str, Any]:
    interval = bootstrap_interval(_bits(answer))
    return {**answer, "accuracy": [interval.estimate, interval.low, interval.high]}


def _bits(answer: dict[str, Any]) -> Any:
    return np.array([float(mark) for mark in answer["right"]])
