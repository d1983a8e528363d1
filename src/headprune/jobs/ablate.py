"""`ablate`: the metric without each head, with honest error bars."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError
from headprune.files import bounded_text, loads, write_text
from headprune.heads import HeadId, HeadMap
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.ablate import AblateOptions
from headprune.jobs.task_result import TaskResult
from headprune.lab.analysis.pictures import heat_map, histogram, scatter, write_picture
from headprune.stats import correlation, p_text
from headprune.structure.find import find_heads
from headprune.tasks.ablations import BestHead, HeadChange, MetricAblation, ablate_metric, best_single_heads
from headprune.tasks.data import TaskData, open_task
from headprune.tasks.task import ScoreSummary

SIGNIFICANT = 0.01  # Michel et al.'s threshold


@dataclass(frozen=True)
class SignificantHeads:
    """How many changes are more than chance: raw, after Holm, after Benjamini-Hochberg."""

    p: int
    p_holm: int
    p_bh: int
    p_compare_mt: int | None = None  # of translations: by the bootstrap of Michel et al.
    raised: int = 0  # of those with p: without them, the metric is higher

    @classmethod
    def among(cls, rows: Iterable[HeadChange]) -> Self:
        rows = list(rows)
        counted = [(row.p < SIGNIFICANT, row.p_holm < SIGNIFICANT, row.p_bh < SIGNIFICANT) for row in rows]
        by_paper = [row.p_compare_mt < SIGNIFICANT for row in rows if row.p_compare_mt is not None]
        raised = sum(row.p < SIGNIFICANT and row.change > 0 for row in rows)
        p, p_holm, p_bh = (sum(column) for column in zip(*counted, strict=True)) if counted else (0, 0, 0)
        return cls(p, p_holm, p_bh, sum(by_paper) if by_paper else None, raised)

    def message(self, heads: int) -> str:
        return (
            f"p < {SIGNIFICANT} for {self.p} of {heads} heads ({self.p_holm} after Holm, {self.p_bh} after "
            "Benjamini-Hochberg)"
        )


@dataclass(frozen=True)
class ComponentChanges:
    """The heads of a component, and the range of changes without one of them."""

    heads: int
    lowest: float
    highest: float
    significant: SignificantHeads


@dataclass(frozen=True)
class Comparison:
    """The same heads on another part of the data (Michel et al., Figure 2). No head may change the metric there: then
    there is nothing to correlate."""

    split: str
    base: ScoreSummary
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None
    n: int
    scores: Mapping[str, float]  # by head

    def message(self) -> str:
        if self.pearson is None:
            return "no head changes the metric on one of them"
        rho = f"Spearman {self.spearman:.2f} (p {self.spearman_p:.1e})"
        return f"Pearson r {self.pearson:.2f} (p {self.pearson_p:.1e}), {rho} over {self.n} heads"


@dataclass(frozen=True)
class BestSingle:
    """The head of each site that does best alone: `chosen`, as it was on the examples that it was chosen on, and on
    others (`sites`); for how many sites the change is significant on either."""

    chosen_on: str
    examples: int
    sites: Mapping[str, BestHead]
    chosen: Mapping[str, BestHead] = field(default_factory=dict)
    significant: SignificantHeads | None = None
    significant_chosen: SignificantHeads | None = None

    @classmethod
    def of(cls, part: str, chooser: MetricAblation, told: MetricAblation) -> Self:
        sites, chosen = best_single_heads(chooser, told), best_single_heads(chooser, chooser)
        counts = (SignificantHeads.among(best.values()) for best in (sites, chosen))
        return cls(part, len(chooser.base.rows), sites, chosen, *counts)


@dataclass(frozen=True, kw_only=True)
class Ablated(TaskResult):
    """The metric with all heads and with each of them changed. `share_reused` is the work that was saved; JSON calls
    it encoder_passes_saved where an answer takes many passes."""

    split: str
    all_but_one: bool
    seed: int
    base: ScoreSummary
    share_reused: float | None = None
    encoder_passes_saved: float | None = None
    components: Mapping[str, ComponentChanges]
    heads: Mapping[str, HeadChange]
    against: Comparison | None = None
    best_single: BestSingle | None = None
    page: Path | None = None
    unstored = ("page",)
    version: ClassVar[int] = 2

    def message(self) -> str:
        lines = []
        if self.against is not None:
            lines.append(f"{self.split} and {self.against.split}: {self.against.message()}")
        for site, best in self.best_single.sites.items() if self.best_single is not None else ():
            lines.append(f"{site} with only head {best.head}: {best.score:.4f} ({best.change:+.4f}, {p_text(best.p)})")
        for component, row in self.components.items() if len(self.components) > 1 else ():
            told = row.significant.message(row.heads)
            lines.append(f"{component}: changes {row.lowest:+.4f} to {row.highest:+.4f}; {told}")
        scores = [row.score for row in self.heads.values()]
        changed = "with one head in its layer" if self.all_but_one else "without one"
        lines.append(
            f"{self.base.metric} {self.base.score:.4f} with all heads; {changed}: {min(scores):.4f} to "
            f"{max(scores):.4f}; {SignificantHeads.among(self.heads.values()).message(len(scores))}; {self.page}"
        )
        return "\n".join(lines)


def ablate(options: AblateOptions, progress: Progress = SILENT) -> Ablated:
    """Mask every head in turn and tell which changes of the metric are more than chance."""
    out = open_out("ablate", options).path
    if options.choose_on is not None and not options.all_but_one:
        raise DataError("--choose-on looks for the one head that a layer can do with: give --all-but-one as well.")
    if options.compare_with is not None and (options.against is not None or options.all_but_one):
        raise DataError("--compare-with is instead of --against, and for heads masked one at a time.")
    known = None if options.compare_with is None else _known(options.compare_with)
    opened = open_task(options.data, options.model)
    task, model = opened.task, opened.load_model(options.model, options.device)
    ablations, heads = _ablations(options, opened, model, progress), find_heads(model)
    found = ablations["split"]
    result = Ablated(
        settings=task.settings(), split=options.split, all_but_one=options.all_but_one, seed=options.seed,
        base=found.base.summary(), components=_by_component(found, heads),
share_reused=None if task.searches else found.share_reused,
        encoder_passes_saved=found.share_reused if task.searches else None,
        heads={str(head): row for head, row in found.rows.items()},
    )  # fmt: skip
    if options.against is not None:
        result = replace(result, against=compared(found, ablations["against"], options.against))
    if known is not None:
        result = replace(result, against=_compared_with(found, known))
    if options.choose_on is not None:
        best = BestSingle.of(options.choose_on, ablations["choose"], found)
        result = replace(result, best_single=best)
    write_text(out / "ablation.json", json.dumps(result.to_dict(), indent=1))
    data = f"{task.name} {options.split}"
    if not options.all_but_one:
        write_text(out / "scores.json", found.scores(heads, data).to_json())
    page = _draw(result, heads, f"{data}: change of {task.metric.name}", out, options.picture)
    shutil.rmtree(out / "unfinished", ignore_errors=True)
    return replace(result, page=page)


def _ablations(
    options: AblateOptions, opened: TaskData, model: nn.Module, progress: Progress
) -> dict[str, MetricAblation]:
    """Of each part of the data that is asked for. What is chosen on a part is not chosen again: on the part to report,
    only the chosen heads are tried, and nothing where both are the same examples."""
    parts = {"split": opened.examples(options.split, options.examples, options.seed)}
    if options.against is not None:
        parts["against"] = opened.examples(options.against)
    same = (options.choose_on, options.choose_examples) == (options.split, options.examples)
    if options.choose_on is not None and not same:
        parts = {"choose": opened.examples(options.choose_on, options.choose_examples, options.seed), **parts}
    batches = {name: opened.batches(rows) for name, rows in parts.items()}
    found: dict[str, MetricAblation] = {}
    with progress.steps(sum(map(len, batches.values()))) as step:
        for name, part in batches.items():
            only = None
            if name == "split" and "choose" in found:
                best = best_single_heads(found["choose"], found["choose"])
                only = {HeadId(site, row.head) for site, row in best.items()}
            found[name] = ablate_metric(
                model, part, opened.task, all_but_one=options.all_but_one, seed=options.seed,
                folder=options.out / "unfinished", only=only, progress=step,
            )  # fmt: skip
    return {**found, "choose": found["split"]} if options.choose_on is not None and same else found


def _known(path: Path) -> Ablated:
    """What was found on another part of the data before."""
    try:
        known = Ablated.from_dict(loads(bounded_text(path)))
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error
    if known.all_but_one:
        raise DataError(f"'{path}' keeps one head alone; expected one with each head masked.")
    return known


def _compared_with(found: MetricAblation, known: Ablated) -> Comparison:
    """With an ablation of the same heads by the same metric."""
    lacking = [str(head) for head in found.rows if str(head) not in known.heads]
    if lacking or known.base.metric != found.base.metric.name:
        raise DataError(
            f"The stored ablation is of {known.base.metric} and lacks {', '.join(lacking[:3]) or 'no head'}; expected "
            f"{found.base.metric.name} of every head of this model."
        )
    scores = {str(head): known.heads[str(head)].score for head in found.rows}
    return _comparison([row.score for row in found.rows.values()], scores, known.base, known.split)


def _by_component(found: MetricAblation, heads: HeadMap) -> dict[str, ComponentChanges]:
    """For each component of which a head is left."""
    rows = {
        component: [row for head, row in found.rows.items() if heads[head.site].component == component]
        for component in heads.components
    }
    changes = {component: [row.change for row in some] for component, some in rows.items() if some}
    return {
        name: ComponentChanges(len(some), min(some), max(some), SignificantHeads.among(rows[name]))
        for name, some in changes.items()
    }


def compared(first: MetricAblation, second: MetricAblation, split: str) -> Comparison:
    """How alike the ablations on two parts of the data are, and every head's score on the second."""
    scores = {str(head): second.rows[head].score for head in first.rows}
    return _comparison([row.score for row in first.rows.values()], scores, second.base.summary(), split)


def _comparison(mine: list[float], theirs: Mapping[str, float], base: ScoreSummary, split: str) -> Comparison:
    alike: dict[str, Any] = dict.fromkeys(("pearson", "pearson_p", "spearman", "spearman_p"))
    try:
        alike |= asdict(correlation(mine, list(theirs.values())))
    except DataError:  # no head changes the metric on one of them
        alike["n"] = len(mine)
    return Comparison(split=split, base=base, **alike, scores=theirs)


def _draw(result: Ablated, heads: HeadMap, title: str, out: Path, kind: str) -> Path:
    """The change by head, how many heads have which score (Michel et al., Figure 1), and both parts of the data."""
    scores = {name: row.score for name, row in result.heads.items()}
    if result.against is not None:
        pairs = list(scores.values()), [result.against.scores[name] for name in scores]
        both = f"{result.base.metric} without each head"
        drawn = scatter(*pairs, list(scores), title=both, x=result.split, y=result.against.split)
        write_picture(drawn, out / "scatter", kind)
    bars = histogram(list(scores.values()), title=title, name=result.base.metric, reference=result.base.score)
    write_picture(bars, out / "histogram", kind)
    changes = {
        site.id: [
            row.change if (row := result.heads.get(f"{site.id}:{head}")) is not None else None
            for head in range(site.original_num_heads)
        ]
        for site in heads
    }
    return write_picture(heat_map(heads, changes, title=title, name="change"), out / "ablation", kind)
