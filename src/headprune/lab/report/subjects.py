"""What stored results know of the heads of each model: scores, ablations, functions, and which are left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headprune.errors import FileFormatError, HeadpruneError, UnknownNameError
from headprune.heads import HeadId, HeadScores
from headprune.heads.headmap import COMPONENTS, SiteName, counts, head_lists
from headprune.heads.ranking import pruning_order
from headprune.lab.experiments.placeholders import names_in
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.trial import Trial
from headprune.tasks.metrics import metric_called

MOST_HEADS = 1 << 19  # of one model, or neurons
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
    gone: tuple[frozenset[HeadId], ...]  # at each point

    def follows(self, order: Sequence[HeadId]) -> bool:
        """Whether at every point just the first heads of an order were gone."""
        return all(gone == frozenset(order[: len(gone)]) for gone in self.gone)


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


def subjects_of(records: Iterable[Record]) -> list[Subject]:
    """Every model of which something is known, in the order of the records."""
    known = [record for record in records if record.is_done]
    labels = {record.trial.key(): record.trial.label for record in known}
    found: dict[str, Subject] = {}
    for record in known:
        reader = _READERS.get(str(record.trial.params.get("command", "")))
        arguments = record.trial.params.get("arguments")
        if reader is None or not isinstance(arguments, list) or not arguments:
            continue
        name, place = _subject(record.trial, labels)
        subject = found.setdefault(place, Subject(place, name))
        try:
            reader(subject, record)
        except (HeadpruneError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            continue  # a result of another shape, as a preset of somebody's own may have: the page does without
    return [subject for subject in found.values() if subject.sites and _has_real_sites(subject)]


def _has_real_sites(subject: Subject) -> bool:
    """Names from a file may be anything."""
    try:
        return bool(subject.sorted_sites())
    except UnknownNameError:
        return False


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
    shown = place = str(trial.params["arguments"][0])
    for name in names_in([shown]):
        key = trial.needs.get(name) or trial.params.get("inputs", {}).get(name, name)
        place = place.replace(f"{{{name}}}", key)
        shown = shown.replace(f"{{{name}}}", labels.get(key, name))
    return shown, place


def _scored(subject: Subject, record: Record) -> None:
    scores = HeadScores.from_dict(record.result)
    values = {site: list(row) for site, row in scores.normalized().items()}
    raw = scores.scores
    errors: Cells = {}
    for site, row in scores.standard_errors.items():
        unit = [
            (shown / mean if mean else 0.0) if shown is not None and mean is not None else 0.0
            for shown, mean in zip(values[site], raw[site], strict=True)
        ]
        errors[site] = [None if e is None else 1.96 * e * abs(u) for e, u in zip(row, unit, strict=True)]
    told = f"{scores.method} on {scores.data}" if scores.data else scores.method
    subject.sites |= {site: len(row) for site, row in values.items()}
    subject.rankings.append(Ranking(told, values, errors, pruning_order(scores)))


def _ablated(subject: Subject, record: Record) -> None:
    result = record.result
    rows = {HeadId.parse(head): row for head, row in result["heads"].items()}
    sizes = _sizes(rows)
    alone = bool(result.get("all_but_one"))
    metric, split = str(result["base"]["metric"]), result.get("split", "")
    name = f"{metric} with only it in its layer, {split}" if alone else f"{metric} without it, {split}"
    change: Cells = {site: [None] * n for site, n in sizes.items()}
    p: Cells = {site: [None] * n for site, n in sizes.items()}
    for head, row in rows.items():
        change[head.site][head.index], p[head.site][head.index] = float(row["change"]), float(row["p_holm"])
    subject.sites = {**sizes, **subject.sites}
    subject.effects.append(Effect(name, metric, change, p))
    if not alone:
        larger = metric_called(metric).larger_is_better
        worth = {site: tuple(None if x is None else -x if larger else x for x in row) for site, row in change.items()}
        scores = HeadScores(
            method="metric-ablation", sums=worth, squares=worth, counts=dict.fromkeys(worth, 1.0), data=str(split),
            comparable=True,
        )  # fmt: skip
        blank: Cells = {site: [None] * n for site, n in sizes.items()}
        order = pruning_order(scores)
        values = {site: list(row) for site, row in worth.items()}
        subject.rankings.append(Ranking(f"metric-ablation on {split}", values, blank, order))


def _looked_into(subject: Subject, record: Record) -> None:
    rows = {HeadId.parse(head): row["functions"] for head, row in record.result["heads"].items()}
    sizes = _sizes(rows)
    cells: Cells = {site: [None] * count for site, count in sizes.items()}
    for head, names in rows.items():
        cells[head.site][head.index] = sorted(map(str, names))
    subject.sites = {**sizes, **subject.sites}
    subject.functions = cells


def _followed(subject: Subject, record: Record) -> None:
    for runs in record.result["curves"].values():
        for run in runs:
            whole = run["points"][0]["kept"]
            points, gone = [], []
            for point in run["points"]:
                if math.isfinite(float(point["score"])):
                    points.append((float(point["share"]), float(point["score"])))
                    gone.append(frozenset(_missing(whole, point["kept"])))
            subject.curves.append(Measured(str(run["metric"]), tuple(points), tuple(gone)))


def _missing(whole: Mapping[str, Sequence[int]], kept: Mapping[str, Sequence[int]]) -> Iterable[HeadId]:
    return (HeadId(site, head) for site, heads in whole.items() for head in heads if head not in kept[site])


def _gated(subject: Subject, record: Record) -> None:
    for result in record.result["results"]:
        sizes = {site: len(row) for site, row in (result["trajectory"] or [{}])[-1].get("prob_open", {}).items()}
        name, kept = f"{result['gate']} gates, {result['setting']}, seed {record.trial.seed}", _kept(result["kept"])
        subject.sites = {**_counts(result.get("original", sizes)), **subject.sites}
        subject.kept[name] = kept


def _pruned(subject: Subject, record: Record) -> None:
    result = record.result
    counts, subject.kept[record.trial.label] = _counts(result["original"]), _kept(result["kept"])
    subject.sites = {**counts, **subject.sites}


_READERS = {
    "score": _scored, "ablate": _ablated, "functions": _looked_into, "curve": _followed, "gates": _gated,
    "prune": _pruned,
}  # fmt: skip


def _sizes(heads: Iterable[HeadId]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for head in heads:
        sizes[head.site] = max(sizes.get(head.site, 0), head.index + 1)
    return _counts(sizes)


def _kept(value: Any) -> dict[str, list[int]]:
    return head_lists(value, "kept")


def _counts(value: Any) -> dict[str, int]:
    """Numbers of heads, of a model that there can be: a table has a row for each."""
    found = counts(value, "original")
    if sum(found.values()) > MOST_HEADS:
        raise FileFormatError(f"{sum(found.values())} heads; expected at most {MOST_HEADS}.")
    return found


def left_by_site(subject: Subject, order: Sequence[HeadId], share: float) -> dict[str, int]:
    """Heads left at each site when a share has gone in an order."""
    gone = order[: int(share * len(order) + 1e-9)]
    return {site: count - sum(head.site == site for head in gone) for site, count in subject.sorted_sites()}
