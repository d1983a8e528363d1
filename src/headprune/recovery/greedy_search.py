"""`search`: which heads go, looked for in rounds, with the model repaired between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from headprune.errors import DataError, MaskError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, heads_to_prune
from headprune.heads.mask import Unit, refuse_nothing
from headprune.heads.scores import Normalize, select, units_of, worth
from headprune.masking import masked
from headprune.recovery.level_search import Shifter
from headprune.recovery.recover import Repair, repair, repaired
from headprune.recovery.sequential import recoveries
from headprune.scoring import score
from headprune.scoring.context import ExampleLoss, ScoringContext, batch_rows, batches_of, evaluation, on_device
from headprune.scoring.run import scorers, unit_options
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.surgery.prune import refuse_unfit_models, refuse_unpruned_repair
from headprune.types import Batch


@dataclass(frozen=True)
class SearchConfig:
    """How heads and neurons are chosen. `BEST` is what lost least on average on development tasks (leaderboard.md)."""

    method: str = "curvature"
    recover: str | None = "least-squares"
    shifts: float = 0.0  # passes over the data to shift levels between sites (`Shifter`); 0: scores are added up
    ridge: float | None = None  # how strongly the repair stays near the original; none: chosen for each site
    rounds: int = 1
    swaps: int = 0
    normalize: Normalize | None = None
    options: Mapping[str, object] = field(default_factory=dict)  # of the method

    @classmethod
    def named(cls, method: str, recover: str | None = None, shifts: float | None = None) -> SearchConfig:
        """What users type: `best`, or the name of a score; the name of a repair, or none (see `named_repair`); how long
        levels are shifted, unless as the method says."""
        found = BEST if method == "best" else cls(method=method)
        passes = found.shifts if shifts is None else shifts
        if not 0 <= passes < math.inf:
            raise MaskError(f"shifts is {passes}; expected a number of passes over the data, 0 or more.")
        return replace(found, recover=named_repair(method, recover), shifts=passes)

    @property
    def repair_options(self) -> dict[str, Any]:
        """What the repair is told."""
        return {} if self.ridge is None else {"ridge": self.ridge}

    @property
    def is_choice_by_score(self) -> bool:
        """Whether nothing is looked for after the first scoring."""
        return self.rounds == 1 and not self.swaps and not self.shifts


def named_repair(method: str | None, recover: str | None) -> str | None:
    """The repair that is meant: the one that comes with the method unless another is named; "none" is none."""
    if recover is None:
        return BEST.recover if method == "best" else COMES_WITH.get(method or "")
    return None if recover == "none" else recover


BEST = SearchConfig()
COMES_WITH = {"kwon": "mask-tuning", "flap": "bias"}  # published as one with the method


def search(
    model: nn.Module,
    data: Any,
    *,
    prune: float | int | None = None,
    keep: float | int | None = None,
    way: SearchConfig = BEST,
    unit: Unit = "head",
    at_least: int = 0,
    heads: HeadMap | None = None,
    collator: Any = None,
    batch_size: int = 16,
    loss: Any = "mean",
    seed: int = 0,
    tell: Callable[[str], None] = lambda what: None,
) -> HeadMask:
    """The heads that stay in a model that is to be repaired and pruned with `recover_` and `prune_`.

    In each of the way's rounds an equal part of the heads goes: those that score lowest in the model as it is then,
    without the heads that went before, and repaired for that. At the end, up to `swaps` times, the kept unit that
    scores lowest changes places with the removed one that scored highest, as long as the loss on the data falls. Before
    that, a way with `shifts` looks whether other numbers of heads in each site keep the answers nearer to the whole
    model's (see `Shifter`). The model is left as it was.

    `data` are batches with labels (see `score`), `prune`, `keep`, `unit` and `at_least` as in `select`.
    Cost: a scoring a round and a repair between rounds; for swaps a repair and a pass over the data each, and one more.

    Example:
        >>> mask = hp.search(model, batches, prune=0.5)
        >>> len(mask)
        4
    """
    if not isinstance(way, SearchConfig):
        raise MaskError(f"way is {way!r}; expected a SearchConfig of headprune.recovery, or none for the best.")
    scorers[way.method].check_options(way.method, way.options)
    if way.rounds < 1 or way.swaps < 0:
        raise MaskError(f"Found {way.rounds} rounds and {way.swaps} swaps; expected at least one round and no fewer.")
    if way.recover is not None:
        recoveries[way.recover]  # a hint for a wrong name, before anything is done
    model = unwrapped(model)
    found = heads if heads is not None else find_heads(model)
    device = next(model.parameters()).device
    batches = list(batches_of(data, device, collator=collator, batch_size=batch_size))
    if not batches:
        raise DataError("The data has no batch: there is nothing to score on. Check the file and its filters.")
    refuse_unfit_models(model)
    refuse_unpruned_repair(model)
    context = ScoringContext(model=model, heads=found, batches=batches, loss=ExampleLoss(loss), seed=seed)
    with torch.inference_mode(False), evaluation(model):  # gradients are wanted
        return _Search(context, way, unit, at_least).result(prune, keep, tell)


@dataclass
class _Search:
    context: ScoringContext
    way: SearchConfig
    unit: Unit
    at_least: int
    scores: HeadScores | None = None  # of the last round: of heads that were still there

    def result(self, prune: float | int | None, keep: float | int | None, tell: Callable[[str], None]) -> HeadMask:
        mask = HeadMask.full(self.context.heads)
        goal, before = 0, mask
        for number in range(1, self.way.rounds + 1):
            tell(f"round {number} of {self.way.rounds}")
            self.scores = self._scored(mask)
            if number == 1:
                goal = heads_to_prune(len(self._units()), prune=prune, keep=keep)
                if not goal:
                    refuse_nothing([len(self._units())], prune=prune, keep=keep)
            before = mask
            mask = select(
                self.scores, self.context.heads, prune=goal * number // self.way.rounds, start=mask, unit=self.unit,
                at_least=self.at_least, normalize=self._view,
            )  # fmt: skip
        return self._swapped(self._shifted(mask, tell), before, tell)

    def _shifted(self, mask: HeadMask, tell: Callable[[str], None]) -> HeadMask:
        """As many units in all, and perhaps others of each site."""
        assert self.scores is not None, "scored first"
        shifter = Shifter.of(
            self.context, self.scores, self.way.recover, passes=self.way.shifts, unit=self.unit, view=self._view,
            at_least=self.at_least, tell=tell,
        )  # fmt: skip
        return mask if shifter is None else shifter.refined(mask, shifter.levels.unit_costs())

    @property
    def _view(self) -> Normalize:
        assert self.scores is not None, "scored first"
        return self.way.normalize or self.scores.view

    def _units(self) -> list[tuple[HeadId, ...]]:
        assert self.scores is not None, "scored first"
        return units_of(self.context.heads, self.unit, self.scores, self._view)

    def _scored(self, mask: HeadMask) -> HeadScores:
        with self._as_pruned(mask):
            options = {**unit_options(self.way.method, self.unit), **self.way.options}
            return scorers[self.way.method](self.context, **options)

    @contextmanager
    def _as_pruned(self, mask: HeadMask) -> Iterator[None]:
        """The model without the heads that are gone, repaired for that."""
        if mask == HeadMask.full(self.context.heads):
            yield
        elif self.way.recover is None:
            with masked(self.context.model, mask, heads=self.context.heads):
                yield
        else:
            with (
                repaired(self.context, mask, self.way.recover, **self.way.repair_options),
                masked(self.context.model, mask, heads=self.context.heads),
            ):
                yield

    def _swapped(self, mask: HeadMask, before: HeadMask, tell: Callable[[str], None]) -> HeadMask:
        """Swaps between heads of the last round, of which every one was scored in the same model."""
        if not self.way.swaps:
            return mask
        assert self.scores is not None, "scored first"
        values = self.scores.normalized(self._view)
        loss = self._loss(mask)
        for number in range(1, self.way.swaps + 1):
            tell(f"swap {number} of {self.way.swaps}")
            ranked = sorted(self._units(), key=lambda unit: worth(unit, values))
            gone = [unit for unit in ranked if all(head in before and head not in mask for head in unit)]
            kept = [unit for unit in ranked if all(head in mask for head in unit)]
            lowest = next((unit for unit in kept if gone and self._can_spare(unit, gone[-1], mask)), None)
            if lowest is None:
                break
            tried = HeadMask.full(self.context.heads).without(
                *(head for head in HeadMask.full(self.context.heads) if head not in mask and head not in gone[-1]),
                *lowest,
            )
            if (new := self._loss(tried)) >= loss:
                break
            mask, loss = tried, new
        return mask

    def _can_spare(self, unit: tuple[HeadId, ...], back: tuple[HeadId, ...], mask: HeadMask) -> bool:
        """Whether a site keeps as many heads as it must when this unit leaves it and the other comes back."""
        site = unit[0].site
        returning = len(back) if back[0].site == site else 0
        return len(mask.kept(site)) - len(unit) + returning >= self.at_least

    def _loss(self, mask: HeadMask) -> float:
        with self._as_pruned(mask), torch.no_grad():
            losses = [self.context.example_losses(batch) for batch in self.context.batches]
        return float(torch.cat(losses).double().mean())


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

    def shifter(
        self, method: str, scores: HeadScores, *, recover: str | None, unit: Unit, view: Normalize, at_least: int
    ) -> Shifter | None:
        """What shifts levels between sites, where the method does so."""
        passes = SearchConfig.named(method).shifts
        return Shifter.of(self._context(), scores, recover, passes=passes, unit=unit, view=view, at_least=at_least)

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
        return ScoringContext(
            model=self.model, heads=self.heads, batches=batches, loss=ExampleLoss("mean"), seed=self.seed
        )
