"""How much a pruned model loses, where heads were chosen and where the choice never looked: the two halves of dev."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headprune.errors import DataError
from headprune.heads import HeadMask
from headprune.masking import EmptySite
from headprune.recovery.greedy_search import Calibration
from headprune.stats import paired_bootstrap
from headprune.tasks.data import TaskData
from headprune.tasks.metrics import metric_called
from headprune.tasks.task import Evaluation, ScoreSummary, evaluate
from headprune.types import Batch


@dataclass(frozen=True)
class HalfScores:
    full: ScoreSummary
    pruned: ScoreSummary


@dataclass(frozen=True)
class ScoreChange:
    change: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class DropReport:
    """The whole and the pruned model on both halves, and the change on the one that the choice never saw."""

    max_drop: float
    validation: HalfScores
    test: HalfScores
    test_change: ScoreChange

    def message(self) -> str:
        metric, change = metric_called(self.test.full.metric), self.test_change
        seen, unseen = (f"{half.full.score:.4f} -> {half.pruned.score:.4f}" for half in (self.validation, self.test))
        low, high = change.interval
        told = (
            f"{metric.name} on the half of dev that heads were chosen on: {seen}; on the other half: {unseen} (change "
            f"{change.change:+.4f}, {low:+.4f} to {high:+.4f})"
        )
        if -metric.gain(0.0, change.change) <= self.max_drop * metric.point:
            return told
        return (
            f"{told}. That is more than the {self.max_drop:g} asked for, which holds where heads were chosen: give "
            "more dev examples or a smaller --max-drop, repair (--method best), or train a little (headprune finetune)"
        )


@dataclass
class HeldOut:
    """The dev examples in two halves: one to choose on, one that the choice never saw."""

    data: TaskData
    calibration: Calibration  # the model, and how it is repaired for a mask
    recover: str | None
    empty_site: EmptySite
    validation: Sequence[Batch] = field(init=False)
    test: Sequence[Batch] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.data.examples("dev")
        if len(rows) < 2:
            raise DataError(
                f"--max-drop needs dev examples for two halves; found {len(rows)} of {self.data.task.name}."
            )
        order = np.random.default_rng(self.calibration.seed).permutation(len(rows)).tolist()
        if self.data.task.carries:
            order = list(range(len(rows)))  # a text stays in order: its first and its second half
        halves = (sorted(order[: len(rows) // 2]), sorted(order[len(rows) // 2 :]))
        self.validation, self.test = (self.data.batches(rows.subset(half)) for half in halves)

    def drop(self, points: float) -> float:
        """So many points, as `worth` counts."""
        return points * self.data.task.metric.point

    def worth(self, mask: HeadMask) -> float:
        """How well the model does with only these heads, on the half to choose on; larger is better."""
        return self.data.task.metric.gain(0.0, self._evaluated(mask, self.validation).score)

    def report(self, points: float, chosen: HeadMask) -> DropReport:
        """What was asked for, and what came of it."""
        masks = (HeadMask.full(self.calibration.heads), chosen)
        seen = [self._evaluated(mask, self.validation).summary() for mask in masks]
        before, after = (self._evaluated(mask, self.test) for mask in masks)
        gap = paired_bootstrap(before.rows, after.rows, statistic=before.metric.of)
        assert gap.interval is not None, "a bootstrap has one"
        return DropReport(
            points,
            HalfScores(*seen),
            HalfScores(before.summary(), after.summary()),
            ScoreChange(gap.difference, (gap.interval.low, gap.interval.high), gap.p_value),
        )

    def _evaluated(self, mask: HeadMask, half: Sequence[Batch]) -> Evaluation:
        model, heads = self.calibration.model, self.calibration.heads
        with self.calibration.repaired(mask, self.recover):
            return evaluate(model, half, self.data.task, mask=mask, heads=heads, empty_site=self.empty_site)
