"""Score against share of heads pruned, over seeds: from curves, and from models trained with fewer heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headprune.jobs.curve import Curved
from headprune.jobs.gated import GatedModel, GatesResult
from headprune.jobs.trained import Trained
from headprune.lab.experiments.trial import Trial
from headprune.lab.experiments.values import ENOUGH
from headprune.lab.report.results import Results
from headprune.stats import holm, mean_interval, paired_t_test
from headprune.tasks.metrics import metric_called
from headprune.typed_json import FieldError

REFERENCE = "random"  # what other orders are compared with
MOST_PAIRS = 60  # of lines at equal heads, where there is no reference: more is no table


@dataclass(frozen=True)
class Point:
    """What was found with so many heads left: a mean for every seed (of several random orders, for instance)."""

    left: int
    share: float
    by_seed: Mapping[int, tuple[float, ...]]

    def mean_of(self, seed: int) -> float:
        return sum(self.by_seed[seed]) / len(self.by_seed[seed])

    @property
    def mean(self) -> float:
        return sum(map(self.mean_of, self.by_seed)) / len(self.by_seed)

    @property
    def band(self) -> tuple[float, float]:
        """The 95 % t interval over seeds with three or more; else from lowest to highest."""
        if len(self.by_seed) >= ENOUGH:
            found = mean_interval([self.mean_of(seed) for seed in self.by_seed])
            return found.low, found.high
        every = [score for scores in self.by_seed.values() for score in scores]
        return min(every), max(every)


@dataclass(frozen=True)
class Line:
    """One way of choosing heads."""

    name: str
    points: tuple[Point, ...]
    order: str = ""  # how heads were chosen, without the component
    group: tuple[str, str] = ("", "")  # component and values of the step's parameters: compared within it

    def at(self, left: int, share: float | None = None) -> Point | None:
        """The point with so many heads left; of components of unequal size, also the share tells."""
        found = (point for point in self.points if point.left == left and share in (None, point.share))
        return next(found, None)


@dataclass(frozen=True)
class Comparison:
    """Two ways at an equal number of heads; with fewer than three common seeds there is no interval."""

    share: float
    name: str
    other: str
    gap: float
    seeds: int
    interval: tuple[float, float] | None = None
    p: float | None = None  # of the paired t-test over seeds, after Holm over the comparisons of a chart


@dataclass(frozen=True)
class Within:
    """A point whose score is near that of the whole model."""

    line: Line
    point: Point
    whole: float


@dataclass(frozen=True)
class Chart:
    """Lines that can be compared: one model, one task, one metric."""

    title: str
    metric: str
    lines: tuple[Line, ...]
    of_component: bool = False  # shares are of one component's heads, not of all
    made_by: str = ""  # which headprune computed it, if not such a one as this

    def compared(self) -> list[Comparison]:
        """Every line against the random one of its component; where there is none, every two lines. Holm's correction
        is over all of them."""
        found = [_compared(*pair) for pair in self._pairs()]
        tested = {place: one.p for place, one in enumerate(found) if one.p is not None}
        for place, p in zip(tested, holm(list(tested.values())) if tested else (), strict=True):
            found[place] = replace(found[place], p=p)
        return found

    def _pairs(self) -> Iterator[tuple[str, Point, str, Point]]:
        references = [line for line in self.lines if line.order == REFERENCE]
        if references:
            lines = [
                (line, reference)
                for reference in references
                for line in self.lines
                if line is not reference and line.group == reference.group
            ]
        else:
            lines = list(itertools.combinations(self.lines, 2))
        met = [
            (line.name, point, other.name, their)
            for line, other in lines
            for point in line.points
            if 0.0 < point.share < 1.0
            and (their := other.at(point.left)) is not None
            and point.by_seed.keys() & their.by_seed.keys()
        ]
        if len(met) <= MOST_PAIRS or references:
            yield from sorted(met, key=lambda pair: pair[1].share)

    @property
    def tells(self) -> bool:
        """Whether it has a score with all heads of the model, and one without some."""
        shares = {point.share for line in self.lines for point in line.points}
        return not self.of_component and 0.0 in shares and len(shares) > 1

    def most_within(self, points: float) -> Within | None:
        """The most heads that go while the mean stays within so many points, with no worse point before it.

        A line without a point of its own for all heads goes by the best that others have."""
        metric = metric_called(self.metric)
        every = [line.points[0].mean for line in self.lines if line.points and line.points[0].share == 0.0]
        best: Within | None = None
        for line in self.lines if self.tells else ():
            own = line.points[0].mean if line.points and line.points[0].share == 0.0 else None
            whole = own if own is not None else max(every) if metric.larger_is_better else min(every)
            for point in line.points:
                if metric.gain(whole, point.mean) < -points * metric.point - 1e-12:
                    break
                if point.share > 0 and (best is None or point.share > best.point.share):
                    best = Within(line, point, whole)
        return best


@dataclass(frozen=True)
class _Sample:
    """One score, and where it belongs."""

    chart: str
    metric: str
    line: str
    values: str  # of the step's parameters: part of the line's name where they do not tell points apart
    left: int
    share: float
    seed: int
    score: float
    of_component: bool = False


def charts_of(results: Results) -> list[Chart]:
    """Of one preset: a chart for every step of curves, and one for all models of a task trained with fewer heads."""
    charts: dict[tuple[str, str, bool, str], list[_Sample]] = {}
    for record, found in results.known:
        trial = record.trial
        try:
            samples = list(_samples(trial, found))
        except FieldError as error:
            results.note(record, error)
            continue
        for sample in samples:
            # A model that lost everything may have no perplexity.
            if math.isfinite(sample.score) and math.isfinite(sample.share):
                key = (sample.chart, sample.metric, sample.of_component, trial.made_by)
                charts.setdefault(key, []).append(sample)
    made = [
        Chart(marked(title, made_by), metric, tuple(_lines(samples)), of_component, made_by)
        for (title, metric, of_component, made_by), samples in charts.items()
    ]
    return [chart for chart in made if len({point.left for line in chart.lines for point in line.points}) > 1]


def _lines(samples: Sequence[_Sample]) -> Iterator[Line]:
    by_name: dict[str, list[_Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.line, []).append(sample)
    for name, mine in sorted(by_name.items()):
        values = {(sample.left, sample.values) for sample in mine}
        if len(values) == len({left for left, _ in values}):
            yield _line(name, mine)
            continue
        for value in dict.fromkeys(sample.values for sample in mine):  # such as top:3 and bottom:3
            yield _line(name, [sample for sample in mine if sample.values == value], value)


def _line(name: str, samples: Sequence[_Sample], values: str = "") -> Line:
    places: dict[tuple[float, int], dict[int, list[float]]] = {}
    for sample in samples:
        places.setdefault((sample.share, sample.left), {}).setdefault(sample.seed, []).append(sample.score)
    points = tuple(
        Point(left, share, {seed: tuple(scores) for seed, scores in by_seed.items()})
        for (share, left), by_seed in sorted(places.items())
    )
    component, _, order = name.rpartition(", ")  # as `headprune curve` names them
    return Line(f"{name} [{values}]" if values else name, points, order, (component, values))


def _samples(trial: Trial, found: object) -> Iterator[_Sample]:
    if isinstance(found, Curved):
        yield from _of_curves(trial, found)
    elif isinstance(found, GatesResult):
        yield from (_trained(trial, one) for one in found.models)
    elif isinstance(found, Trained):
        yield _trained(trial, found)


def _of_curves(trial: Trial, found: Curved) -> Iterator[_Sample]:
    for order, runs in found.curves.items():
        for run in runs:
            for point in run.points:
                left = sum(map(len, point.kept.values()))
                yield _Sample(
                    f"{trial.step}, {found.split}", run.metric, order, _values(trial), left, round(point.share, 4),
                    trial.seed, point.score, run.heads != left + point.pruned,
                )  # fmt: skip


def _trained(trial: Trial, found: Trained | GatedModel) -> _Sample:
    left, every = sum(map(len, found.kept.values())), sum(found.original.values())
    if every < 1:
        raise FieldError("original", f"{every} heads", "those that the model had")
    title, share = f"Trained with fewer heads, {found.task}, dev", round(1 - left / every, 4)
    return _Sample(title, found.dev.metric, trial.step, _values(trial), left, share, trial.seed, found.dev.score)


def _values(trial: Trial) -> str:
    return ", ".join(f"{name} {value}" for name, value in trial.params.get("values", {}).items())


def marked(text: str, made_by: str) -> str:
    """A name for people, which says if another version of headprune is behind it."""
    return f"{text}, made by {made_by}" if made_by else text


def _compared(name: str, point: Point, other: str, their: Point) -> Comparison:
    seeds = [seed for seed in point.by_seed if seed in their.by_seed]
    ours, theirs = ([one.mean_of(seed) for seed in seeds] for one in (point, their))
    if len(seeds) < ENOUGH:
        gap = sum(ours) / len(seeds) - sum(theirs) / len(seeds)
        return Comparison(point.share, name, other, gap, len(seeds))
    found = paired_t_test(theirs, ours)
    assert found.interval is not None, "a t-test has one"
    interval = (found.interval.low, found.interval.high)
    return Comparison(point.share, name, other, found.difference, len(seeds), interval, found.p_value)
