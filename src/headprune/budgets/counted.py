"""Masks for what can be counted: parameters, MACs, or anything that a function of a model and its heads tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from headprune.budgets.budget import Selection
from headprune.heads import HeadMap, HeadMask
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import temporarily_pruned

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
