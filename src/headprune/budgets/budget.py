"""What a budget is: a rule that finds the best mask within an amount of something, under the name that users type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import nn

from headprune.budgets.allocation import Costs, Probe, site_costs, within
from headprune.errors import BudgetError, MaskError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize
from headprune.registry import NamedItems
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import temporarily_pruned

Evaluate = Callable[[HeadMask], float]  # how well the model does with only these heads; larger is better


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
            return mask
        share *= 0.999 * asked / real
