"""What the heads of each site cost on the model at hand: parameters, MACs, or time on this machine.

A site's cost is found by taking heads away for real: all sites of one kind at a time keep fewer, and what the whole
model then costs less is divided among them.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

from headprune.budgets.allocation import equal_counts, within
from headprune.cost.macs import count_macs, count_parameters
from headprune.cost.measurement import interleaved, ratio, sized_example, waiting_for
from headprune.errors import BudgetError, MaskError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.ranking import select, units_of_site
from headprune.heads.scores import Normalize
from headprune.structure import projections
from headprune.structure.example import to_model
from headprune.structure.find import find_heads
from headprune.structure.run import run
from headprune.surgery.prune import perform, tried
from headprune.surgery.units import Gqa

Kind = Literal["parameters", "macs", "seconds"]
SLOW = 0.3  # seconds of a forward pass from which on every time in the table is of a single one
TRY_SECONDS = 45.0  # to measure one mask for a speed-up, unless that would be too few rounds


@dataclass(frozen=True)
class Costs:
    """The model's cost with all heads, and what each site costs with 0, 1, 2 … units."""

    kind: Kind
    total: float
    sites: Mapping[str, tuple[float, ...]]

    @property
    def rest(self) -> float:
        """What the model costs besides its sites."""
        return self.total - sum(row[-1] for row in self.sites.values())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "total": self.total, "sites": {site: list(row) for site, row in self.sites.items()}}


def site_costs(
    model: nn.Module,
    kind: Kind,
    *,
    heads: HeadMap | None = None,
    unit: Unit = "head",
    batch: int = 1,
    length: int = 128,
    example: Mapping[str, Any] | None = None,
    gqa: Gqa | None = None,
    repeats: int = 9,
) -> Costs:
    """Measure or count. Times are of a forward pass on a batch of the given shape (or `example`), medians of
    `repeats`, each between two of the whole model; at a few numbers of heads, with straight lines between them."""
    found = heads if heads is not None else find_heads(model, example)
    inputs = to_model(model, example if example is not None else sized_example(model, batch, length))
    probe: _Probe = _Timed(model, inputs, repeats) if kind == "seconds" else _Counted(model, found, kind, inputs)
    tables: dict[str, tuple[float, ...]] = {}
    for sites in _kinds(model, found):
        units = len(_units(sites[0], unit))
        points: dict[int, float] = {units: 0.0}
        for count in sorted(_grid(units, kind)):
            mask = _keeping(found, sites, count, unit)
            points[count] = (probe.cost(mask, gqa) - probe.total) / len(sites)  # how much less one of them costs
        line = _interpolated(points, units)
        cheapest = min(line)
        for site in sites:
            tables[site.id] = tuple(value - cheapest for value in line)
    return Costs(kind, probe.total, {site.id: tables.get(site.id, (0.0,)) for site in found})  # 0 for emptied ones


class _Probe(Protocol):
    """What the whole model costs, and what it would cost with only the heads of a mask."""

    total: float

    def cost(self, mask: HeadMask, gqa: Gqa | None) -> float: ...


class _Counted:
    """Parameters or MACs."""

    def __init__(self, model: nn.Module, heads: HeadMap, kind: Kind, inputs: Mapping[str, Any]) -> None:
        self.model, self.kind, self.inputs = model, kind, inputs
        self.total = self._count(heads)

    def cost(self, mask: HeadMask, gqa: Gqa | None) -> float:
        with tried(self.model, mask, gqa=gqa) as (_, after):
            return self._count(after)

    def _count(self, heads: HeadMap) -> float:
        if self.kind == "parameters":
            return float(count_parameters(self.model, heads).total)
        return float(count_macs(self.model, heads, self.inputs).total)


class _Timed:
    """Seconds, each between two of the whole model, so that a machine that slows down slows both."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], repeats: int) -> None:
        self.model, self.inputs, self.repeats = model, inputs, 1
        self.total = self._seconds(repeats)
        if self.total < SLOW:
            self.repeats = max(1, repeats // 3)

    def cost(self, mask: HeadMask, gqa: Gqa | None) -> float:
        ratios = []
        for _ in range(3):
            before = self._seconds(self.repeats)
            with tried(self.model, mask, gqa=gqa):
                pruned = self._seconds(self.repeats)
            ratios.append(pruned / statistics.mean((before, self._seconds(self.repeats))))
        return self.total * statistics.median(ratios)

    def _seconds(self, count: int) -> float:
        after = waiting_for(next(self.model.parameters()).device)
        with torch.inference_mode():
            return statistics.median(interleaved([lambda: run(self.model, self.inputs)], count, 1, after)[0])


def _kinds(model: nn.Module, heads: HeadMap) -> list[list[Site]]:
    """Sites of one shape and class together."""
    kinds: dict[tuple[Any, ...], list[Site]] = {}
    for site in heads:
        if site.num_heads:
            block = type(model.get_submodule(site.path)).__name__
            shape = projections.matrix(model.get_submodule(site.output)).shape
            key = (block, site.tower, site.component, site.num_kv_heads, site.head_dim, len(site.layers), shape)
            kinds.setdefault(key, []).append(site)
    return list(kinds.values())


def _units(site: Site, unit: Unit) -> list[tuple[HeadId, ...]]:
    """Any units do: those of a site cost alike."""
    return units_of_site(site, unit, (0.0,) * site.original_num_heads)


def _grid(units: int, kind: Kind) -> set[int]:
    """Numbers of units to look at: counts are straight lines down to one unit; times need not be."""
    points = {0, 1} if kind != "seconds" else {0, 1, units // 4, units // 2, 3 * units // 4}
    return {point for point in points if point < units}


def _keeping(heads: HeadMap, sites: Sequence[Site], count: int, unit: Unit) -> HeadMask:
    gone = [head for site in sites for members in _units(site, unit)[count:] for head in members]
    return HeadMask.full(heads).without(*gone)


def _interpolated(points: Mapping[int, float], units: int) -> list[float]:
    """Straight lines between the points, never falling with more units: noise apart, a head is not free."""
    line = []
    for count in range(units + 1):
        low = max(point for point in points if point <= count)
        high = min(point for point in points if point >= count)
        share = 0.0 if high == low else (count - low) / (high - low)
        line.append(points[low] + share * (points[high] - points[low]))
    for count in range(1, units + 1):
        line[count] = max(line[count], line[count - 1])
    return line


def mask_within(
    scores: HeadScores,
    heads: HeadMap,
    costs: Costs,
    share: float,
    *,
    unit: Unit = "head",
    at_least: int = 0,
    normalize: Normalize | None = None,
    uniform: bool = False,
) -> HeadMask:
    """The mask with which the model costs at most `share` of what it costs now."""
    if not 0.0 < share <= 1.0:
        raise MaskError(f"Found a budget of {share:.4g} of the model; expected more than 0 and at most 1.")
    limit = share * costs.total - costs.rest
    if limit < 0:
        raise BudgetError(
            f"The budget cannot be met by pruning heads: what is not attention is {costs.rest / costs.total:.1%} of "
            f"the model's {costs.kind}, and {share:.1%} was asked for."
        )
    return within(scores, heads, costs.sites, limit, unit=unit, at_least=at_least, normalize=normalize, uniform=uniform)


def mask_for_budget(
    model: nn.Module,
    scores: HeadScores,
    heads: HeadMap,
    kind: Literal["parameters", "macs"],
    budget: float | int,
    *,
    unit: Unit = "head",
    gqa: Gqa | None = None,
    at_least: int = 0,
    normalize: Normalize | None = None,
    uniform: bool = False,
    batch: int = 1,
    length: int = 128,
) -> HeadMask:
    """The mask with which the model has at most a share (float) or a number (int) of its parameters or MACs.

    Sites of one kind may cost differently after all (towers that see inputs of other lengths): what the mask makes of
    the model is counted, and the budget of the table lowered as long as it is too much.
    """
    costs = site_costs(model, kind, heads=heads, unit=unit, batch=batch, length=length, gqa=gqa)
    asked = budget * costs.total if isinstance(budget, float) else float(budget)
    counted = _Counted(model, heads, kind, to_model(model, sized_example(model, batch, length)))
    share = asked / costs.total
    while True:
        mask = mask_within(
            scores, heads, costs, share, unit=unit, at_least=at_least, normalize=normalize, uniform=uniform
        )
        real = counted.cost(mask, gqa)
        if real <= asked * (1 + 1e-9):
            return mask
        share *= 0.999 * asked / real


@dataclass(frozen=True)
class SpeedupMask:
    """A mask for a speed-up, and the speed-up that it was measured to have."""

    mask: HeadMask
    speedup: float
    spread: tuple[float, float]
    control: tuple[float, float]  # quartiles of the same model against itself

    def to_dict(self) -> dict[str, Any]:
        return {"speedup": self.speedup, "spread": list(self.spread), "control": list(self.control)}


def mask_for_speedup(
    model: nn.Module,
    scores: HeadScores,
    heads: HeadMap,
    speedup: float,
    *,
    unit: Unit = "head",
    gqa: Gqa | None = None,
    at_least: int = 0,
    normalize: Normalize | None = None,
    uniform: bool = False,
    batch: int = 1,
    length: int = 128,
    repeats: int = 9,
    tries: int = 4,
    tell: Callable[[str], None] = lambda what: None,
) -> SpeedupMask:
    """The mask with which a forward pass is `speedup` times as fast on this machine, at the least loss of score.

    A table of times gives a first answer; it is then measured against the whole model, and the table's error corrected
    for, until it is within 2 % or `tries` are used up. Where the table says that no mask is fast enough, the smallest
    model is measured before it is believed.
    """
    if speedup <= 1.0:
        raise MaskError(f"Found a speed-up of {speedup}; expected more than 1.")
    if uniform:
        equal_counts({site.id: len(_units(site, unit)) for site in heads if site.num_heads})
    tell("measuring what heads cost")
    costs = site_costs(model, "seconds", heads=heads, unit=unit, batch=batch, length=length, gqa=gqa, repeats=repeats)
    inputs = to_model(model, sized_example(model, batch, length))
    rounds = max(2 * repeats // 3, min(3 * repeats, round(TRY_SECONDS / (3 * costs.total))))
    share, best = 1.0 / speedup, None
    for _ in range(tries):
        tell("measuring the speed-up")
        try:
            mask = mask_within(
                scores, heads, costs, share, unit=unit, at_least=at_least, normalize=normalize, uniform=uniform
            )
        except BudgetError:
            if best is not None:
                break  # no more to take away: what was measured is the answer
            mask = select(scores, heads, prune=1.0, at_least=at_least, unit=unit, normalize=normalize or scores.view)
            best = _measured(model, mask, gqa, inputs, rounds)
            if best.speedup < speedup:
                raise BudgetError(
                    f"A speed-up of {speedup:g} cannot be had by pruning heads: with as few as allowed, {len(mask)} of "
                    f"{len(heads)}, the model was measured to be {best.speedup:.3g} times as fast. Ask for less, or "
                    "prune feed-forward neurons as well."
                ) from None
            costs = _evenly(costs, costs.total * (1 - 1 / best.speedup))
            continue
        hit = _measured(model, mask, gqa, inputs, rounds)
        if best is None or abs(hit.speedup / speedup - 1) < abs(best.speedup / speedup - 1):
            best = hit
        if abs(hit.speedup / speedup - 1) <= 0.02:
            break
        share = min(1.0, max(1e-3, share * hit.speedup / speedup))
    assert best is not None, "at least one try"
    return best


def _evenly(costs: Costs, together: float) -> Costs:
    """What all sites cost together, divided evenly among their units: for a table that a measurement has refuted."""
    unit = together / sum(len(row) - 1 for row in costs.sites.values())
    sites = {site: tuple(n * unit for n in range(len(row))) for site, row in costs.sites.items()}
    return Costs(costs.kind, costs.total, sites)


def _measured(model: nn.Module, mask: HeadMask, gqa: Gqa | None, inputs: Mapping[str, Any], rounds: int) -> SpeedupMask:
    """The model without these heads against the whole one, and that against itself, in interleaved rounds."""
    pruned = copy.deepcopy(model)
    perform(pruned, mask, gqa=gqa, verify=False)
    after = waiting_for(next(model.parameters()).device)
    tasks = [lambda m=m: run(m, inputs) for m in (model, model, pruned)]
    with torch.inference_mode():
        whole, again, smaller = interleaved(tasks, rounds, 1, after)
    middle, low, high = ratio(whole, smaller)
    _, control_low, control_high = ratio(whole, again)
    return SpeedupMask(mask, middle, (low, high), (control_low, control_high))
