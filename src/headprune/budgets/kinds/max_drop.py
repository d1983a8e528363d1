"""`max_drop`: as far as it goes without losing more than so much."""

from __future__ import annotations

from headprune.budgets.budget import BudgetMask, Selection, budgets
from headprune.budgets.curves import furthest_within, pruning_curve
from headprune.heads import HeadMask

SHARES = [step / 20 for step in range(20)]  # 0 to 95 %


@budgets.add(
    "max_drop", "As many heads as go without losing more points than this on --task.", takes="number", needs="evaluate"
)
def max_drop(selection: Selection, amount: float) -> BudgetMask:
    """The smallest model on the curve of `scores`, in steps of 5 %, that does at most so much worse than the whole one.

    Cost: `evaluate` twenty times. Relations: `params`, `macs` and `speedup` say what the model may cost, this says what
    it may lose. The drop is held where heads were chosen: tell it again on data that the choice never saw.
    """
    assert selection.evaluate is not None, "a budget that needs to evaluate can"
    curve = pruning_curve(
        selection.heads, selection.scores, selection.evaluate, shares=SHARES, metric="", normalize=selection.normalize,
        at_least=selection.at_least, unit=selection.unit, progress=selection.progress,
    )  # fmt: skip
    return BudgetMask(HeadMask.from_dict(selection.heads, furthest_within(curve, amount).kept))
