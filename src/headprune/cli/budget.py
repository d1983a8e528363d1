"""`--max-drop`: as far as it goes without losing more than so many points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headprune.errors import DataError
from headprune.tasks.data import TaskData
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    from headprune.heads import HeadMask, HeadScores
    from headprune.masking import EmptySite
    from headprune.recovery.calibration import Calibration

SHARES = [step / 20 for step in range(20)]  # 0 to 95 %


class Halves:
    """The dev examples in two halves: one to choose on, one that the choice never saw."""

    def __init__(self, data: TaskData, seed: int) -> None:
        import numpy as np

        rows = data.examples("dev")
        if len(rows) < 2:
            raise DataError(f"--max-drop needs dev examples for two halves; found {len(rows)} of {data.task.name}.")
        shuffled = np.random.default_rng(seed).permutation(len(rows)).tolist()
        if data.task.carries:
            shuffled = list(range(len(rows)))  # a text stays in order: its first and its second half
        parts = [sorted(shuffled[: len(rows) // 2]), sorted(shuffled[len(rows) // 2 :])]
        self.task = data.task
        self.validation, self.test = (data.batches(rows.subset(part)) for part in parts)


class Budget:
    """Finds the furthest point within the drop on the validation half, and tells what it is on the test half."""

    def __init__(
        self,
        calibration: Calibration,
        examples: Halves,
        max_drop: float,
        *,
        at_least: int,
        unit: str,
        recover: str | None,
        empty_site: EmptySite,
    ) -> None:
        self.calibration, self.examples, self.recover = calibration, examples, recover
        self.model, self.heads = calibration.model, calibration.heads
        self.max_drop, self.at_least, self.unit, self.empty_site = max_drop, at_least, unit, empty_site

    def __call__(self, scores: HeadScores) -> HeadMask:
        from headprune.budgets.curves import furthest_within, pruning_curve
        from headprune.heads import HeadMask

        metric = self.examples.task.metric
        found = pruning_curve(
            self.heads, scores, lambda mask: self._score(mask, self.examples.validation).score, shares=SHARES,
            metric=metric.name, at_least=self.at_least, unit=self.unit,  # type: ignore[arg-type]
        )  # fmt: skip
        best = furthest_within(found, self.max_drop * metric.point, larger_is_better=metric.larger_is_better)
        return HeadMask.from_dict(self.heads, best.kept)

    def _score(self, mask: HeadMask, part: Any) -> Any:
        from headprune.tasks import evaluate

        with self.calibration.repaired(mask, self.recover):
            return evaluate(
                self.model, part, self.examples.task, mask=mask, heads=self.heads, empty_site=self.empty_site
            )

    def report(self, chosen: HeadMask) -> dict[str, Any]:
        from headprune.heads import HeadMask
        from headprune.stats import paired_bootstrap

        full = HeadMask.full(self.heads)
        parts = {"validation": self.examples.validation, "test": self.examples.test}
        found = {name: [self._score(mask, part) for mask in (full, chosen)] for name, part in parts.items()}
        before, after = found["test"]
        gap = paired_bootstrap(before.rows, after.rows, statistic=before.metric.of)
        assert gap.interval is not None
        return {
            "max_drop": self.max_drop,
            **{
                name: {"full": to_plain(a.summary()), "pruned": to_plain(b.summary())} for name, (a, b) in found.items()
            },
            "test_change": {
                "change": gap.difference,
                "interval": [gap.interval.low, gap.interval.high],
                "p": gap.p_value,
            },
        }

    def told(self, report: dict[str, Any]) -> str:
        metric, change = self.examples.task.metric, report["test_change"]
        seen, unseen = (
            f"{report[half]['full']['score']:.4f} -> {report[half]['pruned']['score']:.4f}"
            for half in ("validation", "test")
        )
        low, high = change["interval"]
        told = (
            f"{metric.name} on the half of dev that heads were chosen on: {seen}; on the other half: {unseen} (change "
            f"{change['change']:+.4f}, {low:+.4f} to {high:+.4f})"
        )
        lost = -change["change"] if metric.larger_is_better else change["change"]
        if lost <= self.max_drop * metric.point:
            return told
        return (
            f"{told}. That is more than the {self.max_drop:g} asked for, which holds where heads were chosen: give "
            "more dev examples or a smaller --max-drop, repair (--method best), or train a little (headprune finetune)"
        )
