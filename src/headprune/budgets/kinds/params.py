"""`params`: how many parameters the model may have left."""

from __future__ import annotations

from headprune.budgets.budget import BudgetMask, Selection, budgets, mask_for_count
from headprune.cost.macs import count_parameters


@budgets.add("params", "Parameters that the model may have left: a share (80%) or a count.")
def params(selection: Selection, amount: float | int) -> BudgetMask:
    """The mask that loses least among those that leave at most a share, or a number, of the model's parameters.

    Cost: a pruning, undone, for two numbers of heads of each kind of site; no forward pass. Relations: `macs` weighs
    what a forward pass computes instead, and `speedup` what it takes here.
    """
    return BudgetMask(
        mask_for_count(selection, "parameters", lambda model, heads: count_parameters(model, heads).total, amount)
    )
