"""`shrink_`: heads and neurons are chosen for a budget, what is left is repaired, the rest removed, the price told."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from headprune.budgets import Selection, budgets, find_mask
from headprune.cost.measurement import Measurement, measure
from headprune.errors import BudgetError, DataError, MaskError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize
from headprune.masking import masked
from headprune.recovery.greedy_search import SearchConfig
from headprune.recovery.level_search import Shifter
from headprune.recovery.recover import repair, repaired
from headprune.registry import known_name
from headprune.scoring.answers import first_answer, has_labels
from headprune.scoring.closeness import Closeness, WholeAnswers
from headprune.scoring.context import ExampleLoss, ScoringContext, batch_rows, batches_of, evaluation
from headprune.scoring.own_answers import with_own_labels
from headprune.scoring.run import scorers, unit_options
from headprune.shrink.hold_out import held_out
from headprune.shrink.shrunk import Shrunk, Size, Speed
from headprune.structure.find import find_parts
from headprune.structure.run import unwrapped
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import prune_with_report, refuse_unfit_models, refuse_unpruned_repair, temporarily_pruned

Parts = Literal["auto", "heads", "neurons", "both"]
TRIES = 6  # models that a budget of points looks at: its share of MACs is then known to 1.5 %


def shrink_(
    model: nn.Module,
    data: object,
    *,
    macs: float | int | None = None,
    params: float | int | None = None,
    speedup: float | None = None,
    max_drop: float | None = None,
    prune: float | int | None = None,
    parts: Parts = "auto",
    method: str = "best",
    recover: str | None = None,
    shifts: float | None = None,
    ridge: float | None = None,
    unit: Unit | None = None,
    gqa: Gqa | None = None,
    at_least: int = 0,
    batch: int = 1,
    length: int = 128,
    evaluate: Callable[[nn.Module], float] | None = None,
    collator: object = None,
    batch_size: int = 16,
    loss: object = "mean",
    seed: int = 0,
    repeats: int = 15,
    tell: Callable[[str], None] = lambda what: None,
) -> Shrunk:
    """Make a model several times cheaper without training, in place, and tell what that cost.

    One budget: `macs` or `params` (a share of the whole model that is left, or a count), `speedup` (times as fast,
    measured here), `max_drop` (points of `evaluate`, or of agreement with the whole model), or `prune` (a share of the
    heads). `parts="auto"` takes heads and neurons where a cost is the budget, heads where heads are counted.

    `method` and `recover` say how heads and neurons are scored and what is left is repaired; `shifts` how many passes
    over the data may be taken to shift levels between sites (0: none), and `ridge` how strongly the repair stays near
    the original (chosen for each site unless given). The defaults are `best`.

    `data` are a few hundred examples of what the model will see, as for `score`; labels are used where there are any,
    and otherwise the model's own answers. A quarter is held out: the price is told on it.

    Cost: a scoring, a repair, some forward passes. Memory: see `recover_`.

    Example:
        >>> shrunk = hp.shrink_(model, batches * 8, macs=0.6, length=16, repeats=0)
        >>> shrunk.macs_left < 0.6
        True
        >>> model.save_pretrained("small")
    """
    given = {"macs": macs, "params": params, "speedup": speedup, "max_drop": max_drop, "prune": prune}
    budget, amount = one_budget(given)
    check_sizes(repeats=(repeats, 0))
    shrinker = Shrinker.of(
        model, data, parts=parts_meant(parts, budget), method=method, recover=recover, shifts=shifts, ridge=ridge,
        unit=unit,
        gqa=gqa, at_least=at_least, batch=batch, length=length, evaluate=evaluate, collator=collator,
        batch_size=batch_size, loss=loss, seed=seed, tell=tell,
    )  # fmt: skip
    return shrinker.shrink_(budget, amount, repeats=repeats)


def one_budget(given: dict[str, float | int | None]) -> tuple[str, float | int]:
    """The budget that was given, which is one."""
    asked = [(name, value) for name, value in given.items() if value is not None]
    if len(asked) == 1:
        return asked[0]
    found = "You gave two budgets" if asked else "No budget was given"
    named = f" ({' and '.join(name for name, _ in asked)})" if asked else ""
    raise MaskError(f"{found}{named}; expected one of {', '.join(given)}.")


def check_sizes(**given: tuple[int, int]) -> None:
    """Each a whole number that is not too small, told before anything is done."""
    for name, (found, least) in given.items():
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise MaskError(f"{name} is {found!r}; expected a whole number, {least} or more.")


def parts_meant(parts: Parts, budget: str) -> str:
    if parts not in ("auto", "heads", "neurons", "both"):
        raise MaskError(f"parts is {parts!r}; expected 'auto', 'heads', 'neurons' or 'both'.")
    if parts != "auto":
        return parts
    return "heads" if budget == "prune" else "both"


@dataclass
class Shrinker:
    """A model, what may go, and the data that says what it is worth. One serves many budgets."""

    model: nn.Module
    every: HeadMap  # all that a mask names
    heads: HeadMap  # all that may go
    context: ScoringContext  # with the batches that are fitted on
    whole: WholeAnswers  # on the held-out ones
    way: SearchConfig
    unit: Unit
    gqa: Gqa | None
    at_least: int
    batch: int
    length: int
    evaluate: Callable[[nn.Module], float] | None
    tell: Callable[[str], None]
    notes: tuple[str, ...] = ()
    by: str = ""
    known_scores: HeadScores | None = None  # where somebody has them already
    _before: Measurement | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        *,
        parts: str = "both",
        method: str = "best",
        recover: str | None = None,
        shifts: float | None = None,
        ridge: float | None = None,
        unit: Unit | None = None,
        gqa: Gqa | None = None,
        at_least: int = 0,
        batch: int = 1,
        length: int = 128,
        evaluate: Callable[[nn.Module], float] | None = None,
        collator: Any = None,
        batch_size: int = 16,
        loss: Any = "mean",
        seed: int = 0,
        tell: Callable[[str], None] = lambda what: None,
    ) -> Shrinker:
        """Everything that is the same for all budgets. The model is looked at, not changed."""
        model = unwrapped(model)
        refuse_unfit_models(model)
        refuse_unpruned_repair(model)
        check_sizes(batch=(batch, 1), length=(length, 1), batch_size=(batch_size, 1), at_least=(at_least, 0))
        way = replace(SearchConfig.named(method, recover, shifts), ridge=ridge)
        if ridge is not None and not 0 <= ridge < math.inf:
            raise MaskError(f"ridge is {ridge}; expected 0 or more.")
        known_name("method", way.method, ("best", *scorers))
        tell("looking at the model")
        every, found, notes = _found(model, parts)
        device = next(model.parameters()).device
        fitted, held = held_out(list(batches_of(data, device, collator=collator, batch_size=batch_size)))
        context = ScoringContext(model=model, heads=found, batches=fitted, loss=ExampleLoss(loss), seed=seed)
        grouped = any(site.num_kv_heads < site.num_heads for site in found.attention)
        examples = sum(map(batch_rows, fitted))
        with torch.inference_mode(False), evaluation(model):
            first_answer(context, fitted[0])
            if not has_labels(fitted[0]):
                own, own_loss = with_own_labels(context, fitted, seed)
                context = replace(context, batches=own, loss=own_loss)
                notes = (*notes, "no labels: chosen by the model's own answers")
            whole = WholeAnswers.of(replace(context, loss=ExampleLoss(loss)), held)
        return cls(
            model=model, every=every, heads=found, context=context, whole=whole, way=way, gqa=gqa, at_least=at_least,
            unit=unit or ("group" if grouped else "head"), batch=batch, length=length, evaluate=evaluate, tell=tell,
            notes=notes, by=f"{method} on {examples} examples",
        )  # fmt: skip

    def copied(self) -> Shrinker:
        """For one more budget: the same choice and data, and a model of its own to change."""
        scores = self.scores  # before the copy, so that they are computed once
        model = copy.deepcopy(self.model)
        whole = replace(self.whole, context=replace(self.whole.context, model=model))
        return replace(self, model=model, context=replace(self.context, model=model), whole=whole, known_scores=scores)

    @property
    def scores(self) -> HeadScores:
        """Computed once, for all budgets."""
        if self.known_scores is None:
            self.tell("scoring heads and neurons" if self.heads.neurons else "scoring heads")
            options = {**unit_options(self.way.method, self.unit), **self.way.options}
            with torch.inference_mode(False), evaluation(self.model):
                self.known_scores = scorers[self.way.method](self.context, **options)
        return self.known_scores

    def mask(self, budget: str, amount: float | int, *, shifts: bool = True) -> HeadMask:
        """What stays within a budget. Without `shifts` scores are added up, and nothing is tried out."""
        self.tell(f"choosing what stays for {budget} {amount}")
        if budget == "max_drop":
            return self._within_drop(float(amount))
        selection = Selection(
            scores=self.scores, heads=self.heads, model=self.model, unit=self.unit, at_least=self.at_least,
            gqa=self.gqa, batch=self.batch, length=self.length, progress=self.tell,
        )  # fmt: skip
        shifter = self._shifter(selection.view) if shifts else None
        if budget == "prune":
            from headprune.budgets.select import select

            mask = select(self.scores, self.heads, prune=amount, unit=self.unit, at_least=self.at_least)
            return mask if shifter is None else shifter.refined(mask, shifter.levels.unit_costs())
        if budget not in budgets:
            raise MaskError(f"No budget called '{budget}'.")
        refine = None if shifter is None else shifter.refined
        return self._rearranged(find_mask(budget, amount, replace(selection, refine=refine)).mask)

    def _rearranged(self, mask: HeadMask) -> HeadMask:
        """As the method itself would choose at the same number of units in every site, where it has a say in that."""
        rearranges = scorers[self.way.method].rearranges
        if rearranges is None:
            return mask
        with torch.inference_mode(False), evaluation(self.model):
            return rearranges(self.context, mask, self.unit)

    def _shifter(self, view: Normalize) -> Shifter | None:
        return Shifter.of(
            self.context, self.scores, self.way.recover, passes=self.way.shifts, unit=self.unit, view=view,
            at_least=self.at_least, tell=self.tell,
        )  # fmt: skip

    def _within_drop(self, points: float) -> HeadMask:
        """As few MACs as go without losing more points, looked for by halving."""
        if not 0 <= points < math.inf:
            raise MaskError(f"max_drop is {points}; expected 0 or more points.")
        low, high, best = 0.0, 1.0, HeadMask.full(self.heads)
        full = self._worth()
        for _ in range(TRIES):
            share = (low + high) / 2
            try:
                mask = self.mask("macs", share, shifts=False)
            except BudgetError:
                low = share
                continue
            with self.as_shrunk(mask):
                lost = full - self._worth()
            self.tell(f"{share:.0%} of the MACs: {lost:+.2f} points lost")
            low, high, best = (low, share, mask) if lost <= points else (share, high, best)
        return best

    def _worth(self) -> float:
        """Points of the model as it is: by `evaluate`, or its agreement with the whole model."""
        if self.evaluate is not None:
            return float(self.evaluate(self.model))
        close = self.whole.closeness_now()
        if close.agreement is None:
            raise DataError("The model has no classes or words to agree on: pass evaluate=, a function of the model.")
        return 100 * close.agreement

    @contextmanager
    def as_shrunk(self, mask: HeadMask) -> Iterator[None]:
        """The model as it would answer, repaired and masked, until the block ends."""
        with torch.inference_mode(False), evaluation(self.model):
            if self.way.recover is None or mask == HeadMask.full(self.heads):
                with masked(self.model, mask, heads=self.heads):
                    yield
            else:
                with (
                    repaired(self.context, mask, self.way.recover, **self.way.repair_options),
                    masked(self.model, mask, heads=self.heads),
                ):
                    yield

    def price(self, mask: HeadMask) -> Closeness:
        """What it would cost, without doing it."""
        self.tell("telling the price")
        with self.as_shrunk(mask):
            return self.whole.closeness_now()

    def planned(self, budget: str, amount: float | int) -> Shrunk:
        """What `shrink_` would do: everything but removing and timing."""
        mask = self.mask(budget, amount)
        price = self.price(mask)
        with temporarily_pruned(self.model, mask_of_all(self.every, mask), gqa=self.gqa) as (_, after):
            size = Size.of(after, self._measured(self.model))
        return self._shrunk(budget, amount, mask, size, price)

    def shrink_(self, budget: str, amount: float | int, *, repeats: int = 15) -> Shrunk:
        """Choose, repair, remove, check and measure. The model is another one afterwards; the shrinker is used up."""
        mask = self.mask(budget, amount)
        before = self._measured(self.model) if self._before is None else self._before
        self._before = before
        original = copy.deepcopy(self.model) if repeats else None
        chosen = mask_of_all(self.every, mask)
        if self.way.recover is not None and mask != HeadMask.full(self.heads):
            self.tell("repairing what stays")
            repair(self.context, mask, self.way.recover, **self.way.repair_options)
        self.tell("removing the rest")
        pruning = prune_with_report(self.model, chosen, gqa=self.gqa, about={"by": f"{budget} {amount}, {self.by}"})
        self.tell("measuring")
        after = measure(self.model, batch=self.batch, length=self.length, against=original, repeats=repeats)
        with torch.inference_mode(False), evaluation(self.model):
            price = self.whole.closeness_now()
        done = self._shrunk(budget, amount, mask, Size.of(pruning.after, after), price)
        timing, gap = after.timing, pruning.difference
        speed = None
        if timing is not None and timing.speedup is not None and timing.speedup_spread is not None:
            speed = Speed(timing.speedup, timing.speedup_spread, timing.control, timing.control_spread)
        return replace(done, speed=speed, difference=gap.largest if gap is not None else 0.0)

    def _shrunk(self, budget: str, amount: float | int, mask: HeadMask, after: Size, price: Closeness) -> Shrunk:
        if self._before is None:
            self._before = self._measured(self.model)
        notes = self.notes
        if budget == "max_drop" and self.evaluate is None:
            notes = (*notes, "how small: by the agreement on the same examples that the price is told on")
        asked = f"{amount:.0%}" if isinstance(amount, float) and budget in ("macs", "params", "prune") else f"{amount}"
        return Shrunk(
            before=Size.of(self.every, self._before), after=after, price=(self.whole.closeness, price),
            budget=f"{budget} {asked}", by=self.by, batch=self.batch, length=self.length, notes=notes,
            kept=mask.to_dict(),
        )  # fmt: skip

    def _measured(self, model: nn.Module) -> Measurement:
        return measure(model, batch=self.batch, length=self.length, repeats=0)


def mask_of_all(every: HeadMap, mask: HeadMask) -> HeadMask:
    return HeadMask.from_dict(every, mask.to_dict())


def _found(model: nn.Module, parts: str) -> tuple[HeadMap, HeadMap, tuple[str, ...]]:
    """What there is and what may go; where feed-forward parts are not understood, heads alone, and that is said."""
    every, found = find_parts(model, parts)
    if parts == "both" and not found.neurons:
        return every, found, ("no feed-forward part of this model is understood: heads alone",)
    if parts == "both" and not found.attention:
        return every, found, ("no attention of this model is understood: neurons alone",)
    return every, found, ()
