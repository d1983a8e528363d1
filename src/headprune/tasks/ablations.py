"""Ablation of a metric, head by head, with paired tests and corrections for testing many heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headprune import stats
from headprune.files import WorkParts
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site
from headprune.scoring.ablation_engine import Ablations, ablate
from headprune.scoring.context import ROW, ExampleLoss, ScoringContext, evaluation, on_device
from headprune.scoring.resumable import work_key
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.tasks.metrics import Metric, accuracy, correct
from headprune.tasks.task import Evaluation, Task, evaluate
from headprune.types import Batch


@dataclass(frozen=True, kw_only=True)
class HeadChange:
    """The metric with one head changed: p-values raw and corrected for many tests, share of examples changed.

    `p_compare_mt` is by the bootstrap that Michel et al. used for BLEU; there is none where the test is a t-test.
    """

    score: float
    change: float
    p: float
    p_exact: float
    flipped: float
    p_holm: float
    p_bh: float
    p_compare_mt: float | None = None


@dataclass(frozen=True, kw_only=True)
class BestHead(HeadChange):
    """The head that does best alone in its site, chosen by its score on other examples."""

    head: int
    chosen_score: float


@dataclass(frozen=True)
class MetricAblation:
    """The metric with all heads, and with each head changed."""

    base: Evaluation
    rows: Mapping[HeadId, HeadChange]
    share_reused: float

    def scores(self, heads: HeadMap, data: str) -> HeadScores:
        """What the metric loses without each head: the order of Michel et al.'s "oracle" curve."""
        rows = {site.id: tuple(self._loss(site.id, head) for head in range(site.original_num_heads)) for site in heads}
        return HeadScores(
            method="metric-ablation",
            sums=rows,
            squares={site: tuple(None if x is None else x * x for x in row) for site, row in rows.items()},
            counts=dict.fromkeys(rows, 1.0),
            options={"metric": self.base.metric.name, "examples": len(self.base.rows)},
            data=data,
            comparable=True,  # a change of the metric
        )

    def _loss(self, site: str, head: int) -> float | None:
        row = self.rows.get(HeadId(site, head))
        return None if row is None else -self.base.metric.gain(self.base.score, row.score)


def ablate_metric(
    model: nn.Module,
    batches: Sequence[Batch],
    task: Task,
    *,
    all_but_one: bool = False,
    seed: int = 0,
    folder: Path | None = None,
    only: Collection[HeadId] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MetricAblation:
    """The metric without each head (or with only it in its layer), from per-example outcomes. `only` some heads.

    Accuracies are compared by the paired t-test on right and wrong (Michel et al. say "t-test"); other metrics by the
    paired bootstrap, and by compare-mt's beside it. Nobody in the field corrects for testing all heads: Holm and
    Benjamini-Hochberg stand beside p.
    With `folder`, batches finished before an interruption are kept there; remove it when the result is written.
    """
    model = unwrapped(model)
    heads = find_heads(model)
    full = HeadMask.full(heads)
    order = torch.cat([batch[ROW] for batch in batches]).argsort()

    def counted() -> Iterator[dict[str, Any]]:
        device = next(model.parameters()).device
        for batch in batches:
            progress("ablating")
            yield on_device(batch, device)

    def change(site: Site, head: int) -> HeadMask:
        others = [HeadId(site.id, other) for other in site.kept if other != head]
        return full.without(*others) if all_but_one else full.without(HeadId(site.id, head))

    with evaluation(model):
        job = ScoringContext(
            model=model, heads=heads, batches=counted(), loss=ExampleLoss(), run=task.answer, searches=task.searches
        )  # fmt: skip
        parts = None
        if folder is not None:
            asked = {} if only is None else {"only": sorted(map(str, only))}
            parts = WorkParts(
                folder, work_key(model, batches, {**task.settings(), "all_but_one": all_but_one, **asked})
            )
        if task.carries:
            found = _ablate_in_order(job, change, task, list(batches), parts, progress, only)
        else:
            found = ablate(job, change, task.outcome, parts=parts, only=only)
    if task.carries:
        order = torch.arange(len(order))  # `evaluate` has put its rows in order
    base = found.base_outcomes()[order].double().numpy()
    metric = task.metric
    compared = [_compared(base, found.outcomes(head)[order].double().numpy(), metric, seed) for head in found.changed]
    p_values = [row["p"] for row in compared]
    corrected = zip(stats.holm(p_values), stats.benjamini_hochberg(p_values), strict=True)
    rows = {
        head: HeadChange(**row, p_holm=strict, p_bh=loose)
        for head, row, (strict, loose) in zip(found.changed, compared, corrected, strict=True)
    }
    whole = Evaluation(metric, metric.of(base), base, np.full(len(base), np.nan))
    return MetricAblation(whole, rows, found.share_reused)


def _ablate_in_order(
    job: ScoringContext,
    change: Callable[[Site, int], HeadMask],
    task: Task,
    batches: list[Batch],
    parts: WorkParts | None,
    progress: Callable[[str], None],
    only: Collection[HeadId] | None = None,
) -> Ablations:
    """One pass through the data for every head: what a model remembers depends on the heads it had all along."""

    def rows(name: str, mask: HeadMask | None) -> torch.Tensor:
        kept = parts.get(name) if parts is not None else None
        if kept is None:
            kept = evaluate(job.model, batches, task, mask=mask, heads=job.heads).rows.tolist()
            if parts is not None:
                parts.put(name, kept)
        return torch.tensor(kept, dtype=torch.float64)

    every = [head for site in job.heads for index in site.kept
             if (head := HeadId(site.id, index)) and (only is None or head in only)]  # fmt: skip
    changed = {}
    for done, head in enumerate(every, start=1):
        changed[head] = rows(str(head), change(job.heads[head.site], head.index))
        for _ in range(done * len(batches) // len(every) - (done - 1) * len(batches) // len(every)):
            progress("ablating")
    found = Ablations()
    found.add(rows("whole", None), changed, 0.0)
    return found


def _compared(base: Any, changed: Any, metric: Metric, seed: int) -> dict[str, Any]:
    if metric is accuracy:
        result = stats.paired_t_test(correct(base), correct(changed))
        exact, compare_mt = stats.mcnemar(correct(base), correct(changed)).p_value, None
    else:
        result = stats.paired_bootstrap(base, changed, statistic=metric.of, seed=seed)
        exact = result.p_value
        compare_mt = stats.compare_mt_bootstrap(base, changed, statistic=metric.of, seed=seed).p_value
    score, before = metric.of(changed), metric.of(base)
    return {
        "score": score,
        "change": score - before,
        "p": result.p_value,
        "p_exact": exact,
        "flipped": float((base != changed).any(axis=1).mean()),
        "p_compare_mt": compare_mt,
    }


def best_single_heads(chosen_on: MetricAblation, told_on: MetricAblation) -> dict[str, BestHead]:
    """For each site the head that does best alone on one part of the data, and how it does on another.

    Choosing and telling on the same examples would flatter the head (Michel et al., Table 6, choose on 5,000 training
    examples). Both must be ablations with `all_but_one`. Ties go to the earlier head.
    """
    metric = chosen_on.base.metric
    best: dict[str, HeadId] = {}
    for head, row in chosen_on.rows.items():
        rival = best.get(head.site)
        if rival is None or metric.gain(chosen_on.rows[rival].score, row.score) > 0:
            best[head.site] = head
    return {
        site: BestHead(head=head.index, chosen_score=chosen_on.rows[head].score, **asdict(told_on.rows[head]))
        for site, head in best.items()
    }
