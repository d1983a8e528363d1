"""Examples to score on and to repair with: some of the training split, chosen by the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from torch import nn

from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.recovery.greedy_search import SearchConfig, search
from headprune.recovery.recover import Repair, repair, repaired
from headprune.scoring import score, unit_options
from headprune.scoring.context import ExampleLoss, ScoringContext, batch_rows, on_device
from headprune.types import Batch


@dataclass(frozen=True)
class Calibration:
    """A model, its heads, and batches with labels."""

    model: nn.Module
    heads: HeadMap
    batches: Sequence[Batch]
    name: str
    seed: int = 0

    @property
    def rows(self) -> range:
        """One for each example."""
        return range(sum(map(batch_rows, self.batches)))

    def scores(self, method: str, unit: str = "head") -> HeadScores:
        method = SearchConfig.named(method).method
        return score(
            self.model, self.batches, method=method, heads=self.heads, name=self.name, seed=self.seed,
            **unit_options(method, unit),
        )  # fmt: skip

    def search(
        self,
        method: str,
        recover: str | None,
        *,
        prune: float | int | None = None,
        keep: float | int | None = None,
        unit: Unit = "head",
        at_least: int = 0,
    ) -> HeadMask:
        way = SearchConfig.named(method, recover)
        return search(
            self.model, self.batches, way=way, heads=self.heads, seed=self.seed,
            prune=prune, keep=keep, unit=unit, at_least=at_least,
        )  # fmt: skip

    def repair(self, mask: HeadMask, method: str) -> Repair:
        return repair(self._context(), mask, method)

    @contextmanager
    def repaired(self, mask: HeadMask, method: str | None) -> Iterator[None]:
        """The model repaired for a mask until the block ends; untouched where nothing goes or no method is given."""
        untouched = method is None or mask == HeadMask.full(self.heads)
        with nullcontext() if untouched else repaired(self._context(), mask, str(method)):
            yield

    def _context(self) -> ScoringContext:
        device = next(self.model.parameters()).device
        batches = [on_device(batch, device) for batch in self.batches]
        return ScoringContext(model=self.model, heads=self.heads, batches=batches, loss=ExampleLoss("mean"))
