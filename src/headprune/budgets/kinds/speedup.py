"""`speedup`: how many times as fast a forward pass becomes on this machine."""

from __future__ import annotations

import copy
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headprune.budgets.budget import BudgetMask, Costs, Selection, budgets, equal_counts
from headprune.cost.measurement import interleaved, ratio, sized_example, waiting_for
from headprune.errors import BudgetError, MaskError
from headprune.heads import HeadMask
from headprune.heads.scores import select, units_of_site
from headprune.structure.find import model_structure
from headprune.structure.run import run, same_attributes, to_model
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import prune_with_report, temporarily_pruned
from headprune.types import Batch

SLOW = 0.3  # seconds of a forward pass from which on every time in the table is of a single one
TRY_SECONDS = 45.0  # to measure one mask for a speed-up, unless that would be too few rounds


@budgets.add(
    "speedup",
    "How many times as fast a forward pass becomes, measured on this machine.",
    takes="number",
    has_shape=True,
)
def speedup(selection: Selection, amount: float) -> BudgetMask:
    """The mask that loses least among those with which a forward pass of `batch` x `length` is so many times as fast.

    Cost: some hundred forward passes, more for models that take less than 0.3 s. Relations: `macs` is the same at any
    time and on any machine, but fewer MACs are not always faster.
    """
    found = mask_for_speedup(selection, amount)
    low, high = found.spread
    told = f"{amount} times as fast asked for, {found.speedup:.2f} measured ({low:.2f} to {high:.2f})"
    return BudgetMask(found.mask, told)


@dataclass(frozen=True)
class SpeedupMask:
    """A mask for a speed-up, and the speed-up that it was measured to have."""

    mask: HeadMask
    speedup: float
    spread: tuple[float, float]
    control: tuple[float, float]  # quartiles of the same model against itself

    def to_dict(self) -> dict[str, Any]:
        return {"speedup": self.speedup, "spread": list(self.spread), "control": list(self.control)}


def mask_for_speedup(selection: Selection, speedup: float, *, repeats: int = 9, tries: int = 4) -> SpeedupMask:
    """The mask with which a forward pass is `speedup` times as fast on this machine, at the least loss of score.

    A table of times gives a first answer; it is then measured against the whole model, and the table's error corrected
    for, until it is within 2 % or `tries` are used up. Where the table says that no mask is fast enough, the smallest
    model is measured before it is believed.
    """
    if speedup <= 1.0:
        raise MaskError(f"Found a speed-up of {speedup}; expected more than 1.")
    if selection.uniform:
        heads = [site for site in selection.heads if site.num_heads]
        equal_counts({s.id: len(units_of_site(s, selection.unit, (0.0,) * s.original_num_heads)) for s in heads})
    assert selection.model is not None, "a budget that needs a model is given one"
    inputs = to_model(selection.model, sized_example(selection.model, selection.batch, selection.length))
    selection.progress("measuring what heads cost")
    costs = selection.costs(Timed(selection.model, inputs, repeats, selection.gqa))
    rounds = max(2 * repeats // 3, min(3 * repeats, round(TRY_SECONDS / (3 * costs.total))))
    share, best = 1.0 / speedup, None
    for _ in range(tries):
        selection.progress("measuring the speed-up")
        try:
            mask = selection.within(costs, share)
        except BudgetError:
            if best is not None:
                break  # no more to take away: what was measured is the answer
            best = _smallest(selection, speedup, inputs, rounds)
            costs = _evenly(costs, costs.total * (1 - 1 / best.speedup))
            continue
        hit = _measured(selection.model, mask, selection.gqa, inputs, rounds)
        if best is None or abs(hit.speedup / speedup - 1) < abs(best.speedup / speedup - 1):
            best = hit
        if abs(hit.speedup / speedup - 1) <= 0.02:
            break
        share = min(1.0, max(1e-3, share * hit.speedup / speedup))
    assert best is not None, "at least one try"
    if selection.refine is None or selection.uniform:
        return best
    selection.progress("measuring the speed-up again")
    refined = _measured(selection.model, selection.refine(best.mask, costs.sites), selection.gqa, inputs, rounds)
    return refined if refined.speedup >= 0.98 * min(speedup, best.speedup) else best


class Timed:
    """Seconds of a forward pass, medians of `repeats`, each between two of the whole model, so that a machine that
    slows down slows both."""

    kind, straight = "seconds", False

    def __init__(self, model: nn.Module, inputs: Batch, repeats: int, gqa: Gqa | None) -> None:
        self.model, self.inputs, self.repeats, self.gqa = model, inputs, 1, gqa
        self.total = self._seconds(repeats)
        if self.total < SLOW:
            self.repeats = max(1, repeats // 3)

    def cost(self, mask: HeadMask) -> float:
        ratios = []
        for _ in range(3):
            before = self._seconds(self.repeats)
            with temporarily_pruned(self.model, mask, gqa=self.gqa):
                pruned = self._seconds(self.repeats)
            ratios.append(pruned / statistics.mean((before, self._seconds(self.repeats))))
        return self.total * statistics.median(ratios)

    def _seconds(self, count: int) -> float:
        after = waiting_for(next(self.model.parameters()).device)
        with torch.inference_mode(), same_attributes(self.model):
            tasks = [lambda: run(self.model, self.inputs, keep_state=False)]
            return statistics.median(interleaved(tasks, count, 1, after)[0])


def _smallest(selection: Selection, speedup: float, inputs: Batch, rounds: int) -> SpeedupMask:
    """The model with as few heads as allowed, if it is fast enough."""
    assert selection.model is not None, "a budget that needs a model is given one"
    mask = select(
        selection.scores, selection.heads, prune=1.0, at_least=selection.at_least, unit=selection.unit,
        normalize=selection.view,
    )  # fmt: skip
    found = _measured(selection.model, mask, selection.gqa, inputs, rounds)
    if found.speedup < speedup:
        has_both = bool(selection.heads.neurons) and bool(selection.heads.attention)
        what = "heads and neurons" if has_both else "neurons" if selection.heads.neurons else "heads"
        advice = (
            "." if has_both else f", or prune {'heads' if selection.heads.neurons else 'feed-forward neurons'} as well."
        )
        raise BudgetError(
            f"A speed-up of {speedup:g} cannot be had by pruning {what}: with as few as allowed, {len(mask)} of "
            f"{len(selection.heads)}, the model was measured to be {found.speedup:.3g} times as fast. Ask for "
            f"less{advice}"
        ) from None
    return found


def _evenly(costs: Costs, together: float) -> Costs:
    """What all sites cost together, divided evenly among their units: for a table that a measurement has refuted."""
    unit = together / sum(len(row) - 1 for row in costs.sites.values())
    sites = {site: tuple(n * unit for n in range(len(row))) for site, row in costs.sites.items()}
    return Costs(costs.kind, costs.total, sites)


def _measured(model: nn.Module, mask: HeadMask, gqa: Gqa | None, inputs: Batch, rounds: int) -> SpeedupMask:
    """The model without these heads against the whole one, and that against itself, in interleaved rounds."""
    structure = model_structure(model, neurons=mask.has_neurons)
    pruned = copy.deepcopy(model)
    prune_with_report(pruned, mask, gqa=gqa, verify=False, structure=structure)
    after = waiting_for(next(model.parameters()).device)
    tasks = [lambda m=m: run(m, inputs, keep_state=False) for m in (model, model, pruned)]
    with torch.inference_mode(), same_attributes(model):
        whole, again, smaller = interleaved(tasks, rounds, 1, after)
    middle, low, high = ratio(whole, smaller)
    _, control_low, control_high = ratio(whole, again)
    return SpeedupMask(mask, middle, (low, high), (control_low, control_high))
