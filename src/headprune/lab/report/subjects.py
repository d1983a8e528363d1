"""What stored results know of the heads of each model: scores, ablations, functions, and which are left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headprune import limits
from headprune.errors import HeadpruneError
from headprune.heads import HeadId, HeadScores
from headprune.heads.headmap import COMPONENTS, SiteName, counts, head_lists
from headprune.heads.scores import pruning_order
from headprune.jobs.ablate import Ablated
from headprune.jobs.curve import Curved
from headprune.jobs.functions import FunctionsResult
from headprune.jobs.gated import GatesResult
from headprune.jobs.prune import PruneResult
from headprune.lab.experiments.placeholders import names_in
from headprune.lab.experiments.trial import Trial
from headprune.lab.report.lines import marked
from headprune.lab.report.results import Results
from headprune.tasks.metrics import metric_called
from headprune.typed_json import FieldError

Cells = dict[str, list[Any]]  # site -> one entry per original head


@dataclass(frozen=True)
class Ranking:
    """Scores of heads, and the order in which they would go."""

    name: str
    values: Cells  # as they are compared: by site where the method says so
    errors: Cells  # half widths of 95 % intervals, in the same unit
    order: tuple[HeadId, ...]  # first to go first


@dataclass(frozen=True)
class Effect:
    """What the metric does without each head (or with only it)."""

    name: str
    metric: str
    change: Cells
    p: Cells


@dataclass(frozen=True)
class Measured:
    """A pruning curve of this very model."""

    metric: str
    points: tuple[tuple[float, float], ...]  # share pruned, score
    whole: Mapping[str, Sequence[int]]
    kept: tuple[Mapping[str, Sequence[int]], ...]  # at each point

    def follows(self, order: Sequence[HeadId]) -> bool:
        """Whether at every point just the first heads of an order were gone."""
        return all(gone == frozenset(order[: len(gone)]) for gone in map(self._gone, self.kept))

    def _gone(self, kept: Mapping[str, Sequence[int]]) -> frozenset[HeadId]:
        return frozenset(
            HeadId(site, head) for site, heads in self.whole.items() for head in heads if head not in kept[site]
        )


@dataclass
class Subject:
    """A model whose heads were looked at."""

    id: str
    name: str
    sites: dict[str, int] = field(default_factory=dict)  # original number of heads
    rankings: list[Ranking] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    curves: list[Measured] = field(default_factory=list)
    functions: Cells | None = None
    kept: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # what was done -> site -> heads left

    @property
    def heads(self) -> int:
        return sum(self.sites.values())

    def curve_of(self, ranking: Ranking) -> Measured | None:
        """A curve that was measured in just this order, whatever it was called."""
        return next((curve for curve in self.curves if curve.follows(ranking.order)), None)

    def sorted_sites(self) -> list[tuple[str, int]]:
        return sorted(self.sites.items(), key=lambda item: _place(item[0]))


def subjects_of(results: Results) -> list[Subject]:
    """Every model of which something is known, in the order of the records. What does not fit is noted."""
    labels = {record.trial.key(): record.trial.label for record, _ in results.known}
    found: dict[str, Subject] = {}
    for record, result in results.known:
        trial, reader = record.trial, _READERS.get(type(result))
        arguments = trial.params.get("arguments")
        if reader is None or not isinstance(arguments, list) or not arguments:
            continue
        name, place = _subject(trial, labels)
        try:
            reader(found.setdefault(place, Subject(place, name)), trial, result)
        except HeadpruneError as error:
            results.note(record, error)
    return [subject for subject in found.values() if subject.sites]


def component_of(site: str) -> str:
    return SiteName.parse(site).component


def layer_of(site: str) -> int:
    return SiteName.parse(site).layer


def _place(site: str) -> tuple[str, int, int, str]:
    """Where a site stands in the house's order."""
    name = SiteName.parse(site)
    order = COMPONENTS.index(name.component) if name.component in COMPONENTS else len(COMPONENTS)
    return name.tower or "", order, name.layer, site


def _subject(trial: Trial, labels: Mapping[str, str]) -> tuple[str, str]:
    """What the trial looked at: a name for people, and one that tells it from others."""
    shown, place = str(trial.params["arguments"][0]), marked(str(trial.params["arguments"][0]), trial.made_by)
    for name in names_in([shown]):
        key = trial.needs.get(name) or trial.params.get("inputs", {}).get(name, name)
        place = place.replace(f"{{{name}}}", key)
        shown = shown.replace(f"{{{name}}}", labels.get(key, name))
    return shown if marked("", trial.made_by) in shown else marked(shown, trial.made_by), place


def _scored(subject: Subject, trial: Trial, scores: HeadScores) -> None:
    view = scores.view
    values = {site: list(row) for site, row in scores.normalized(view).items()}
    raw = scores.scores
    errors: Cells = {}
    for site, row in scores.standard_errors.items():
        unit = [
            (shown / mean if mean else 0.0) if shown is not None and mean is not None else 0.0
            for shown, mean in zip(values[site], raw[site], strict=True)
        ]
        errors[site] = [None if e is None else 1.96 * e * abs(u) for e, u in zip(row, unit, strict=True)]
    told = f"{scores.method} on {scores.data}" if scores.data else scores.method
    _add_sites(subject, {site: len(row) for site, row in values.items()}, first=True)
    subject.rankings.append(Ranking(told, values, errors, pruning_order(scores, normalize=view)))


def _ablated(subject: Subject, trial: Trial, found: Ablated) -> None:
    rows = {HeadId.parse(head): row for head, row in found.heads.items()}
    sizes = _sizes(rows)
    metric = found.base.metric
    kind = "with only it in its layer" if found.all_but_one else "without it"
    change: Cells = {site: [None] * n for site, n in sizes.items()}
    p: Cells = {site: [None] * n for site, n in sizes.items()}
    for head, row in rows.items():
        change[head.site][head.index], p[head.site][head.index] = row.change, row.p_holm
    _add_sites(subject, sizes)
    subject.effects.append(Effect(f"{metric} {kind}, {found.split}", metric, change, p))
    if not found.all_but_one:
        larger = metric_called(metric).larger_is_better
        worth = {site: tuple(None if x is None else -x if larger else x for x in row) for site, row in change.items()}
        scores = HeadScores(
            method="metric-ablation", comparable=True, sums=worth, squares=worth, counts=dict.fromkeys(worth, 1.0),
            data=found.split,
        )  # fmt: skip
        blank: Cells = {site: [None] * n for site, n in sizes.items()}
        order = pruning_order(scores, normalize=scores.view)
        values = {site: list(row) for site, row in worth.items()}
        subject.rankings.append(Ranking(f"metric-ablation on {found.split}", values, blank, order))


def _looked_into(subject: Subject, trial: Trial, found: FunctionsResult) -> None:
    rows = {HeadId.parse(head): row.functions for head, row in found.heads.items()}
    sizes = _sizes(rows)
    cells: Cells = {site: [None] * count for site, count in sizes.items()}
    for head, names in rows.items():
        cells[head.site][head.index] = sorted(names)
    _add_sites(subject, sizes)
    subject.functions = cells


def _followed(subject: Subject, trial: Trial, found: Curved) -> None:
    for order, runs in found.curves.items():
        for run in runs:
            finite = [point for point in run.points if math.isfinite(point.score)]
            if any(point.kept.keys() != run.points[0].kept.keys() for point in finite):
                raise FieldError(f"curves.{order}", "points of different sites", "the same sites at every point")
            points = tuple((point.share, point.score) for point in finite)
            kept = tuple(point.kept for point in finite)
            subject.curves.append(Measured(run.metric, points, run.points[0].kept if kept else {}, kept))


def _gated(subject: Subject, trial: Trial, found: GatesResult) -> None:
    for one in found.models:
        _add_sites(subject, one.original)
        subject.kept[f"{one.gate} gates, {one.setting}, seed {trial.seed}"] = head_lists(one.kept, "kept")


def _pruned(subject: Subject, trial: Trial, found: PruneResult) -> None:
    kept = head_lists(found.kept, "kept")
    _add_sites(subject, found.original)
    subject.kept[trial.label] = kept


_READERS: dict[type[Any], Any] = {  # what is known of a model after each job
    HeadScores: _scored, Ablated: _ablated, FunctionsResult: _looked_into, Curved: _followed, GatesResult: _gated,
    PruneResult: _pruned,
}  # fmt: skip


def _sizes(heads: Iterable[HeadId]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for head in heads:
        sizes[head.site] = max(sizes.get(head.site, 0), head.index + 1)
    return _checked(sizes)


def _add_sites(subject: Subject, sizes: Mapping[str, int], *, first: bool = False) -> None:
    """Sites with their numbers of heads; what scores say goes `first`, since they name heads that are gone, too."""
    known = _checked(sizes)
    subject.sites = {**subject.sites, **known} if first else {**known, **subject.sites}


def _checked(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sites that there can be, of a model that there can be: a table has a row for each head."""
    known = counts(sizes, "original")
    for site in known:
        SiteName.parse(site)  # names from a file may be anything
    if sum(known.values()) > limits.SHOWN_HEADS:
        raise FieldError("original", f"{sum(known.values())} heads", f"at most {limits.SHOWN_HEADS}")
    return known


def left_by_site(subject: Subject, order: Sequence[HeadId], share: float) -> dict[str, int]:
    """Heads left at each site when a share has gone in an order."""
    gone = Counter(head.site for head in order[: int(share * len(order) + 1e-9)])
    return {site: count - gone[site] for site, count in subject.sorted_sites()}
