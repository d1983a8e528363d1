"""What a budget is, by the name that users type; what the heads of each site cost, and how many each keeps for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from headprune.errors import BudgetError, MaskError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize, check_fit, units_of, units_of_site, worth
from headprune.registry import NamedItems
from headprune.structure import projections
from headprune.structure.projections import projection_at
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import temporarily_pruned

Table = Mapping[str, Sequence[float]]  # site -> what it costs with 0, 1, 2 … units
Evaluate = Callable[[HeadMask], float]  # how well the model does with only these heads; larger is better
Refine = Callable[[HeadMask, Table], HeadMask]  # a better mask at no higher cost, by what sites cost at every count


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is chosen from, and how: everything but the budget itself. Some budgets need `model`, some `evaluate`."""

    scores: HeadScores
    heads: HeadMap
    model: nn.Module | None = None
    evaluate: Evaluate | None = None
    unit: Unit = "head"
    at_least: int = 0
    normalize: Normalize | None = None
    uniform: bool = False  # the same number in every site
    gqa: Gqa | None = None
    batch: int = 1  # of a forward pass that is counted or timed: examples,
    length: int = 128  # and tokens an example
    progress: Callable[[str], None] = lambda what: None  # told what is being done
    refine: Refine | None = None  # looks for a better mask than that of the least sum of scores

    @property
    def view(self) -> Normalize:
        """How heads of different sites compare. What the loss loses with a head or with a neuron is the same thing, so
        that sites of both kinds are not normalised."""
        both = bool(self.heads.neurons) and bool(self.heads.attention)
        return self.normalize or ("none" if both else self.scores.view)

    def costs(self, probe: Probe) -> Costs:
        """What each site costs with 0, 1, 2 … of its units."""
        return site_costs(probe, self.heads, self.unit)

    def within(self, costs: Costs, share: float) -> HeadMask:
        """The mask that loses least of the model which then costs at most `share` of what it costs now."""
        if not 0.0 < share <= 1.0:
            raise MaskError(f"Found a budget of {share:.4g} of the model; expected more than 0 and at most 1.")
        limit = share * costs.total - costs.rest
        if limit < 0:
            what, other = ("heads and neurons", "neither") if self.heads.neurons else ("heads", "not attention")
            raise BudgetError(
                f"The budget cannot be met by pruning {what}: what is {other} is {costs.rest / costs.total:.1%} of the "
                f"model's {costs.kind}, the smallest share that can be left, and {share:.1%} was asked for."
            )
        return within(
            self.scores, self.heads, costs.sites, limit, unit=self.unit, at_least=self.at_least, normalize=self.view,
            uniform=self.uniform,
        )  # fmt: skip


@dataclass(frozen=True)
class BudgetMask:
    """A mask within a budget, and in words what was measured on the way, if anything was."""

    mask: HeadMask
    message: str = ""


Find = Callable[[Selection, Any], BudgetMask]  # the amount is as the budget takes it
Function = TypeVar("Function", bound=Find)


@dataclass(frozen=True)
class Budget:
    """A function that finds a mask, and what it says of itself."""

    find: Find
    about: str = ""  # for people: what an amount of it means
    takes: Literal["amount", "number"] = "amount"  # a share (float) or count (int), or just a number
    needs: Literal["model", "evaluate"] = "model"
    has_shape: bool = False  # whether it is of a forward pass of `batch` x `length`


class Budgets(NamedItems[Budget]):
    """Budgets by name. A package offers its own in the group `headprune.budgets`."""

    def add(
        self,
        name: str,
        about: str,
        *,
        takes: Literal["amount", "number"] = "amount",
        needs: Literal["model", "evaluate"] = "model",
        has_shape: bool = False,
    ) -> Callable[[Function], Function]:
        """Register a function of a Selection and an amount: `@budgets.add("mine", "What it is.")`."""

        def register(function: Function) -> Function:
            self._items[name] = Budget(function, about, takes, needs, has_shape)
            return function

        return register

    def put(self, name: str, item: Any) -> None:
        self._items[name] = item if isinstance(item, Budget) else Budget(item)


budgets = Budgets("budget", group="headprune.budgets")


def find_mask(name: str, amount: float | int, selection: Selection) -> BudgetMask:
    """The mask within a budget by name."""
    budget = budgets[name]
    if budget.needs == "model" and selection.model is None:
        raise MaskError(f"{name}={amount} is a budget of a model: pass it, select(…, {name}={amount}, model=model).")
    if budget.needs == "evaluate" and selection.evaluate is None:
        raise MaskError(
            f"{name}={amount} is a budget of how well the model does: pass a function that tells it, "
            f"select(…, {name}={amount}, evaluate=lambda mask: …); larger is better."
        )
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise MaskError(f"{name} is {amount!r}; expected a number, 0 or more. {budget.about}".rstrip())
    return budget.find(selection, amount)


Count = Callable[[nn.Module, HeadMap], float]


@dataclass
class Counted:
    """Counts the model as it is, and with heads taken away for a moment."""

    kind: str
    model: nn.Module
    heads: HeadMap
    count: Count
    gqa: Gqa | None = None
    straight: bool = True
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.total = float(self.count(self.model, self.heads))

    def cost(self, mask: HeadMask) -> float:
        with temporarily_pruned(self.model, mask, gqa=self.gqa) as (_, after):
            return float(self.count(self.model, after))


def mask_for_count(selection: Selection, kind: str, count: Count, budget: float | int) -> HeadMask:
    """The mask with which the model has at most a share (float) or a number (int) of what is counted.

    Sites of one kind may cost differently after all (towers that see inputs of other lengths): what the mask makes of
    the model is counted, and the budget of the table lowered as long as it is too much.
    """
    assert selection.model is not None, "a budget that needs a model is given one"
    counted = Counted(kind, selection.model, selection.heads, count, selection.gqa)
    costs = selection.costs(counted)
    asked = budget * costs.total if isinstance(budget, float) else float(budget)
    share = asked / costs.total
    while True:
        mask = selection.within(costs, share)
        real = counted.cost(mask)
        if real <= asked * (1 + 1e-9):
            return _refined(selection, mask, costs, lambda better: counted.cost(better) <= asked * (1 + 1e-9))
        share *= 0.999 * asked / real


def _refined(selection: Selection, mask: HeadMask, costs: Costs, fits: Callable[[HeadMask], bool]) -> HeadMask:
    """A better mask that is within the budget, too, where one is looked for and found."""
    if selection.refine is None or selection.uniform:
        return mask
    better = selection.refine(mask, costs.sites)
    return better if better != mask and fits(better) else mask


@dataclass(frozen=True)
class Costs:
    """The model's cost with all heads, and what each site costs with 0, 1, 2 … units."""

    kind: str
    total: float
    sites: Mapping[str, tuple[float, ...]]

    @property
    def rest(self) -> float:
        """What the model costs besides its sites."""
        return self.total - sum(row[-1] for row in self.sites.values())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "total": self.total, "sites": {site: list(row) for site, row in self.sites.items()}}


class Probe(Protocol):
    """Finds out what a model costs whole, and what it would cost with only the heads of a mask."""

    kind: str  # what is counted, in words
    model: nn.Module
    total: float
    straight: bool  # whether every unit of a site costs as much as the next

    def cost(self, mask: HeadMask) -> float: ...


def site_costs(probe: Probe, heads: HeadMap, unit: Unit = "head") -> Costs:
    """Count or measure at a few numbers of heads, with straight lines between them."""
    tables: dict[str, tuple[float, ...]] = {}
    for sites in _kinds(probe.model, heads):
        units = len(_units(sites[0], unit))
        points: dict[int, float] = {units: 0.0}
        for count in sorted(_grid(units, probe.straight)):
            mask = _keeping(heads, sites, count, unit)
            points[count] = (probe.cost(mask) - probe.total) / len(sites)  # how much less one of them costs
        line = _interpolated(points, units)
        cheapest = min(line)
        for site in sites:
            tables[site.id] = tuple(value - cheapest for value in line)
    return Costs(probe.kind, probe.total, {site.id: tables.get(site.id, (0.0,)) for site in heads})  # 0: emptied


def _kinds(model: nn.Module, heads: HeadMap) -> list[list[Site]]:
    """Sites of one shape and class together."""
    kinds: dict[tuple[object, ...], list[Site]] = {}
    for site in heads:
        if site.num_heads:
            block = type(model.get_submodule(site.path)).__name__
            shape = projections.matrix(projection_at(model, site.output)).shape
            key = (block, site.tower, site.component, site.num_kv_heads, site.head_dim, len(site.layers), shape)
            kinds.setdefault(key, []).append(site)
    return list(kinds.values())


def _units(site: Site, unit: Unit) -> list[tuple[HeadId, ...]]:
    """Any units do: those of a site cost alike."""
    return units_of_site(site, unit, (0.0,) * site.original_num_heads)


def _grid(units: int, straight: bool) -> set[int]:
    """Numbers of units to look at: counts are straight lines down to one unit; times need not be."""
    points = {0, 1} if straight else {0, 1, units // 4, units // 2, 3 * units // 4}
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


BINS = 4096  # into which a budget is divided: a solution is within one of them per site


def within(
    scores: HeadScores,
    heads: HeadMap,
    costs: Table,
    limit: float,
    *,
    unit: Unit = "head",
    at_least: int = 0,
    normalize: Normalize | None = None,
    uniform: bool = False,
) -> HeadMask:
    """The mask whose sites cost at most `limit` together and whose removed units have the smallest scores in sum.

    `costs` has for every site what it costs with 0, 1, 2 … of its units. `uniform` keeps the same number in every
    site, as plain checkpoints need.
    """
    check_fit(scores, heads)
    view = normalize or scores.view
    values = scores.normalized(view)
    ranked: dict[str, list[tuple[HeadId, ...]]] = {site.id: [] for site in heads}
    for members in units_of(heads, unit, scores, view):
        ranked[members[0].site].append(members)
    for members_of_site in ranked.values():
        members_of_site.sort(key=lambda members: worth(members, values), reverse=True)
    # Where scores are below 0, worths are counted from the lowest: no unit should go for its own sake.
    lowest = min((0.0, *(worth(unit_, values) for units in ranked.values() for unit_ in units)))
    losses = {site: _lost([worth(unit_, values) - lowest for unit_ in units]) for site, units in ranked.items()}
    for site, units in ranked.items():
        if len(costs[site]) != len(units) + 1:
            raise MaskError(f"The costs of {site} are for {len(costs[site]) - 1} units; it has {len(units)}.")
        kept_by_count = itertools.accumulate(map(len, units), initial=0)
        floor = next((n for n, kept in enumerate(kept_by_count) if kept >= at_least), len(units))
        losses[site] = [math.inf if n < floor else loss for n, loss in enumerate(losses[site])]
    counts = _same_everywhere(losses, costs, limit) if uniform else _cheapest(losses, costs, limit)
    kept = {
        site: sorted(head.index for unit_ in units[: counts.get(site, 0)] for head in unit_)
        for site, units in ranked.items()
    }
    return HeadMask.from_dict(heads, kept)


def _lost(worths: Sequence[float]) -> list[float]:
    """The sum of what goes when the first 0, 1, 2 … stay."""
    return [*itertools.accumulate(reversed(worths), initial=0.0)][::-1]


def _cheapest(losses: Table, costs: Table, limit: float) -> dict[str, int]:
    """One count for each site with the least loss in all: dynamic programming over a budget in equal bins."""
    least = sum(min(c for c, loss in zip(costs[site], losses[site], strict=True) if loss < math.inf) for site in losses)
    if least > limit:
        raise BudgetError(
            f"The budget cannot be met: with as few heads as allowed the sites still cost {least:.4g}, and "
            f"{limit:.4g} is left for them."
        )
    if sum(costs[site][-1] for site in losses) <= limit:
        return {site: len(row) - 1 for site, row in losses.items()}
    fewest = {site: next(n for n, loss in enumerate(row) if loss < math.inf) for site, row in losses.items()}
    if limit <= 0:
        return fewest
    size = limit / BINS
    best = np.zeros(BINS + 1)  # least loss of the sites so far, within so many bins
    choices: list[NDArray[np.int64]] = []
    for site, site_losses in losses.items():
        new, chosen = np.full(BINS + 1, np.inf), np.full(BINS + 1, -1)
        for count, (cost, loss) in enumerate(zip(costs[site], site_losses, strict=True)):
            bins = _bins(cost, size)
            if bins > BINS or loss == math.inf:
                continue
            total = best[: BINS + 1 - bins] + loss
            better = total < new[bins:]
            new[bins:][better], chosen[bins:][better] = total[better], count
        best = new
        choices.append(chosen)
    if best[BINS] == math.inf:  # rounding up each site's cost to whole bins was too much
        return fewest
    counts, room = {}, BINS
    for site, chosen in reversed(list(zip(losses, choices, strict=True))):
        counts[site] = int(chosen[room])
        room -= _bins(costs[site][counts[site]], size)
    return counts


def _bins(cost: float, size: float) -> int:
    return max(0, math.ceil(cost / size - 1e-9))


def _same_everywhere(losses: Table, costs: Table, limit: float) -> dict[str, int]:
    """The largest number of units that every site can keep."""
    losses = {site: row for site, row in losses.items() if len(row) > 1}  # emptied sites have nothing to keep
    for count in range(equal_counts({site: len(row) - 1 for site, row in losses.items()}), -1, -1):
        allowed = all(row[count] < math.inf for row in losses.values())
        if allowed and sum(costs[site][count] for site in losses) <= limit:
            return dict.fromkeys(losses, count)
    raise BudgetError("The budget cannot be met with the same number of heads in every site.")


def equal_counts(counts: Mapping[str, int]) -> int:
    """How many units every site has, where all have equally many."""
    if not counts:
        raise MaskError("No site has heads left to choose from.")
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[least] != counts[most]:
        raise MaskError(
            f"The sites do not have equally many heads to begin with ({least} has {counts[least]}, {most} "
            f"{counts[most]}): they cannot keep the same number."
        )
    return counts[least]
