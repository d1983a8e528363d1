"""Ablation of a metric, head by head, with paired tests and corrections for testing many heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headprune import stats
from headprune.heads import HeadId, HeadMask, Site
from headprune.resuming import Parts, work_key
from headprune.scoring.engine import ablate
from headprune.scoring.job import Job, evaluation
from headprune.scoring.losses import ExampleLoss
from headprune.sites.find import find_heads, unwrapped
from headprune.tasks.classification import Evaluation, statistic_of


@dataclass(frozen=True)
class MetricAblation:
    """The metric with all heads, and per head: score, change, p-values raw and corrected, share of examples changed."""

    base: Evaluation
    rows: Mapping[HeadId, Mapping[str, float]]
    share_reused: float

    def change(self, site: str, head: int) -> float | None:
        row = self.rows.get(HeadId(site, head))
        return None if row is None else row["change"]


def ablate_metric(
    model: nn.Module,
    batches: Sequence[Mapping[str, torch.Tensor]],
    metric: str,
    *,
    all_but_one: bool = False,
    seed: int = 0,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MetricAblation:
    """The metric without each head (or with only it in its layer), from per-example outcomes.

    Accuracies are compared by the paired t-test on right and wrong (Michel et al. say "t-test"); other metrics by the
    paired bootstrap. Nobody in the field corrects for testing all heads: Holm and Benjamini-Hochberg stand beside p.
    With `folder`, batches finished before an interruption are kept there; remove it when the result is written.
    """
    model = unwrapped(model)
    heads = find_heads(model)
    full = HeadMask.full(heads)
    order = torch.cat([batch["row"] for batch in batches]).argsort()

    def counted() -> Iterator[dict[str, Any]]:
        device = next(model.parameters()).device
        for batch in batches:
            progress("ablating")
            yield {name: value.to(device) for name, value in batch.items() if name != "row"}

    def change(site: Site, head: int) -> HeadMask:
        others = [HeadId(site.id, other) for other in site.kept if other != head]
        return full.without(*others) if all_but_one else full.without(HeadId(site.id, head))

    def outcome(outputs: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        logits = outputs.logits.float()
        guess = logits[:, 0] if logits.shape[1] == 1 else logits.argmax(1).float()
        return torch.stack([guess, batch["labels"].float()], dim=1)  # (batch, 2): prediction and label

    with evaluation(model):
        job = Job(model=model, heads=heads, batches=counted(), loss=ExampleLoss())
        parts = None
        if folder is not None:
            parts = Parts(folder, work_key(model, batches, {"metric": metric, "all_but_one": all_but_one}))
        found = ablate(job, change, outcome, parts=parts)
    base = found.base_outcomes()[order].double().numpy()
    statistic = statistic_of(metric)
    rows: dict[HeadId, dict[str, float]] = {}
    for head in found.changed:
        rows[head] = _compared(base, found.outcomes(head)[order].double().numpy(), metric, statistic, seed)
    p_values = [row["p"] for row in rows.values()]
    for row, strict, loose in zip(rows.values(), stats.holm(p_values), stats.benjamini_hochberg(p_values), strict=True):
        row |= {"p_holm": strict, "p_bh": loose}
    whole = Evaluation(metric, float(statistic(base)), base[:, 0], base[:, 1], np.zeros(len(base)))
    return MetricAblation(whole, rows, found.share_reused)


def _compared(base: Any, changed: Any, metric: str, statistic: Any, seed: int) -> dict[str, float]:
    if metric == "accuracy":
        right = [(rows[:, 0] == rows[:, 1]).astype(float) for rows in (base, changed)]
        result = stats.paired_t_test(*right)
        exact = stats.mcnemar(*right).p_value
    else:
        result = stats.paired_bootstrap(base, changed, statistic=statistic, seed=seed)
        exact = result.p_value
    return {
        "score": float(statistic(changed)),
        "change": float(statistic(changed) - statistic(base)),
        "p": result.p_value,
        "p_exact": exact,
        "flipped": float(np.mean(base[:, 0] != changed[:, 0])),
    }
