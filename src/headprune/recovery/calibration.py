"""Examples to score on and to repair with: some of the training split, chosen by the seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headprune.heads import HeadMap, HeadMask, HeadScores
    from headprune.recovery import Repair


@dataclass(frozen=True)
class Calibration:
    """A model, its heads, and batches with labels."""

    model: Any
    heads: HeadMap
    batches: list[dict[str, Any]]
    name: str
    seed: int = 0

    @property
    def rows(self) -> range:
        """One for each example."""
        from headprune.scoring.context import batch_rows

        return range(sum(map(batch_rows, self.batches)))

    def scores(self, method: str, unit: str = "head") -> HeadScores:
        from headprune.recovery import BEST
        from headprune.scoring import score, unit_options

        method = BEST.method if method == "best" else method
        return score(
            self.model, self.batches, method=method, heads=self.heads, name=self.name, seed=self.seed,
            **unit_options(method, unit),
        )  # fmt: skip

    def search(self, method: str, recover: str | None, **how: Any) -> HeadMask:
        from headprune.recovery import BEST, SearchConfig, search

        way = BEST if method == "best" else SearchConfig(method=method, recover=recover)
        return search(self.model, self.batches, way=way, heads=self.heads, seed=self.seed, **how)

    def repair(self, mask: HeadMask, method: str) -> Repair:
        from headprune.recovery import repair

        return repair(self._job(), mask, method)

    @contextmanager
    def repaired(self, mask: HeadMask, method: str | None) -> Iterator[None]:
        """The model repaired for a mask until the block ends; untouched where nothing goes or no method is given."""
        from headprune.heads import HeadMask
        from headprune.recovery import repaired

        untouched = method is None or mask == HeadMask.full(self.heads)
        with nullcontext() if untouched else repaired(self._job(), mask, str(method)):
            yield

    def _job(self) -> Any:
        from headprune.scoring.context import ScoringContext, on_device
        from headprune.scoring.losses import ExampleLoss

        device = next(self.model.parameters()).device
        batches = [on_device(batch, device) for batch in self.batches]
        return ScoringContext(model=self.model, heads=self.heads, batches=batches, loss=ExampleLoss("mean"))
