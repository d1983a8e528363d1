"""`macs`: how much a forward pass may compute."""

from __future__ import annotations

from headprune.budgets.budget import BudgetMask, Selection, budgets, mask_for_count
from headprune.cost.macs import count_macs
from headprune.cost.measurement import sized_example
from headprune.structure.run import to_model


@budgets.add("macs", "MACs that a forward pass may take: a share (80%) or a count; see --length.", has_shape=True)
def macs(selection: Selection, amount: float | int) -> BudgetMask:
    """The mask that loses least among those with which a forward pass takes at most a share, or a number, of MACs.

    Cost: a pruning, undone, and a forward pass of `batch` x `length` for two numbers of heads of each kind of site.
    Relations: `params` does not see that attention grows with the length; `speedup` measures instead of counting.
    """
    assert selection.model is not None, "a budget that needs a model is given one"
    inputs = to_model(selection.model, sized_example(selection.model, selection.batch, selection.length))
    return BudgetMask(
        mask_for_count(selection, "macs", lambda model, heads: count_macs(model, heads, inputs).total, amount)
    )
