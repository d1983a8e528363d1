"""Score against share of heads pruned, over seeds: from curves, and from models trained with fewer heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headprune.experiments.store import Record
from headprune.experiments.values import ENOUGH
from headprune.stats import mean_interval
from headprune.tasks.metrics import metric_called

REFERENCE = "random"  # what other orders are compared with
SAME_SHARE = 0.011  # shares this near to each other are the same number of heads, as far as a comparison goes


@dataclass(frozen=True)
class Point:
    """What was found with one share of the heads pruned."""

    share: float
    by_seed: Mapping[int, tuple[float, ...]]

    @property
    def scores(self) -> list[float]:
        return [score for scores in self.by_seed.values() for score in scores]

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def band(self) -> tuple[float, float]:
        """The 95 % t interval of the mean with three or more; else from lowest to highest."""
        if len(self.scores) < ENOUGH:
            return min(self.scores), max(self.scores)
        found = mean_interval(self.scores)
        return found.low, found.high

    def mean_of(self, seed: int) -> float:
        return sum(self.by_seed[seed]) / len(self.by_seed[seed])


@dataclass(frozen=True)
class Line:
    """One way of choosing heads."""

    name: str
    points: tuple[Point, ...]

    def near(self, share: float) -> Point | None:
        found = min(self.points, key=lambda point: abs(point.share - share), default=None)
        return found if found is not None and abs(found.share - share) < SAME_SHARE else None


@dataclass(frozen=True)
class Comparison:
    """Two ways at an equal number of heads; with fewer than three common seeds there is no interval."""

    share: float
    name: str
    reference: str
    gap: float
    interval: tuple[float, float] | None
    seeds: int

    @property
    def is_significant(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]


@dataclass(frozen=True)
class Chart:
    """Lines that can be compared: one task, one metric."""

    title: str
    metric: str
    lines: tuple[Line, ...]

    def compared(self) -> list[Comparison]:
        """Every line against the random one (or the first), wherever both have a point."""
        reference = next((line for line in self.lines if line.name == REFERENCE), self.lines[0])
        found = []
        for line in self.lines:
            for point in line.points if line is not reference else ():
                other = reference.near(point.share)
                if other is not None and 0.0 < point.share < 1.0:
                    found.append(_compared(line.name, point, reference.name, other))
        return sorted(found, key=lambda one: one.share)

    def largest_share_within(self, points: float) -> tuple[Line, Point, Point] | None:
        """The most that can go while the mean stays within so many points: the line, where it begins, that point."""
        metric = metric_called(self.metric)
        best: tuple[Line, Point, Point] | None = None
        for line in self.lines:
            whole = line.near(0.0)
            if whole is None:
                continue
            for point in line.points:
                enough = metric.gain(whole.mean, point.mean) >= -points * metric.point
                if enough and point.share > 0 and (best is None or point.share > best[2].share):
                    best = line, whole, point
        return best


def charts_of(records: Iterable[Record]) -> list[Chart]:
    """One chart for every step of curves, and one for all models of a task that were trained with fewer heads."""
    done = [record for record in records if record.is_done]
    charts: dict[tuple[str, str], dict[str, dict[float, dict[int, list[float]]]]] = {}
    for record in done:
        for title, metric, line, share, score in _found(record):
            shares = charts.setdefault((title, metric), {}).setdefault(line, {})
            shares.setdefault(share, {}).setdefault(record.trial.seed, []).append(score)
    return [
        Chart(title, metric, tuple(_line(name, shares) for name, shares in sorted(lines.items())))
        for (title, metric), lines in charts.items()
        if any(len(shares) > 1 for shares in lines.values())
    ]


def _found(record: Record) -> Iterable[tuple[str, str, str, float, float]]:
    """Title of the chart, metric, line, share pruned, score."""
    command, result, step = record.trial.params.get("command"), record.result, record.trial.step
    try:
        if command == "curve":
            split = result.get("split", "")
            for order, runs in result["curves"].items():
                for run in runs:
                    for point in run["points"]:
                        yield f"{step}, {split}", run["metric"], order, round(point["share"], 4), float(point["score"])
        elif command == "gates":
            for one in result["results"]:
                yield _trained(step, one, 1 - one["heads"][1] / one["heads"][0])
        elif command in ("finetune", "train-mt", "train-lm"):
            yield _trained(step, result, 1 - _count(result["kept"]) / sum(result["original"].values()))
    except (KeyError, TypeError, AttributeError, ZeroDivisionError):
        return  # a result of another shape: the page does without


def _trained(step: str, result: Mapping[str, Any], share: float) -> tuple[str, str, str, float, float]:
    dev = result["dev"]
    title = f"Trained with fewer heads, {result.get('task', '')}, dev"
    return title, dev["metric"], step, round(share, 4), float(dev["score"])


def _count(kept: Mapping[str, Sequence[int]]) -> int:
    return sum(len(heads) for heads in kept.values())


def _line(name: str, shares: Mapping[float, Mapping[int, Sequence[float]]]) -> Line:
    return Line(
        name,
        tuple(
            Point(share, {seed: tuple(scores) for seed, scores in by_seed.items()})
            for share, by_seed in sorted(shares.items())
        ),
    )


def _compared(name: str, point: Point, reference: str, other: Point) -> Comparison:
    seeds = [seed for seed in point.by_seed if seed in other.by_seed]
    gap, interval = point.mean - other.mean, None
    if len(seeds) >= ENOUGH:
        found = mean_interval([point.mean_of(seed) - other.mean_of(seed) for seed in seeds])
        gap, interval = found.estimate, (found.low, found.high)
    return Comparison(point.share, name, reference, gap, interval, len(seeds))
