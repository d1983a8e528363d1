"""`select`: from scores to a mask, by a share of the heads or within a budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

from headprune.budgets import kinds as kinds
from headprune.budgets.budget import Evaluate, Selection, budgets, equal_counts, find_mask
from headprune.errors import MaskError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize, Per, plain_map
from headprune.heads.scores import select as select_by_count
from headprune.registry import hint
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.surgery.edits import Gqa


def select(
    scores: HeadScores,
    heads: HeadMap | None = None,
    *,
    prune: float | int | None = None,
    keep: float | int | None = None,
    per: Per = "model",
    components: str | Iterable[str] | None = None,
    at_least: int = 0,
    unit: Unit = "head",
    normalize: Normalize | None = None,
    rounding: Literal["floor", "ceil"] = "floor",
    start: HeadMask | None = None,
    uniform: bool = False,
    model: nn.Module | None = None,
    evaluate: Evaluate | None = None,
    gqa: Gqa | None = None,
    batch: int = 1,
    length: int = 128,
    **budget: float | int,
) -> HeadMask:
    """Keep the best heads: so many, or as many as a budget allows.

    `prune` or `keep` is a share (float) or a count (int) of the model's heads, or of each component's or each site's
    with `per`. `components` leaves the others whole. `at_least` protects the best n heads of every site, so that
    fewer may go than asked for. `unit="group"` or `"query"` makes masks that fit grouped-query attention (it needs
    `heads`); a unit's score is the sum of its heads', and a count counts units. `uniform` keeps the same number in
    every site, as plain checkpoints need. Heads of different sites are compared as the scores say (`scores.view`);
    `normalize="site"` divides each site by its L2 norm (Michel et al.), `"none"` does not. Ties: the earlier head goes
    first, as in Michel et al.'s code. Heads that `start` has off already stay off and count among those pruned (for
    re-scoring).

    A budget instead: `params=` or `macs=` is a share or a number of them that the model may have left, `speedup=` how
    many times as fast a forward pass becomes, measured on this machine; each needs the `model`. MACs and time are of
    `batch` examples of `length` tokens; `gqa` is how `prune_` will be told to shrink grouped-query attention.
    `max_drop=` is how much `evaluate(mask)` may fall. The mask is the one that loses the least scores in sum. Any
    budget that is registered can be named (`headprune.budgets.budgets`).

    Cost: none for a share; a budget prunes and undoes a few times, for MACs and time with forward passes.

    Example:
        >>> scores = hp.score(model, batches, method="sensitivity")
        >>> len(hp.select(scores, prune=0.5))
        4
        >>> mask = hp.select(scores, hp.find_heads(model), macs=0.9, model=model, length=16)
        >>> plan = hp.plan(model, mask)
        >>> plan.macs_after.total < plan.macs_before.total
        True
    """
    if not budget:
        if uniform:
            per = _same_everywhere(heads, per)
        return select_by_count(
            scores, heads, prune=prune, keep=keep, per=per, components=components, at_least=at_least, unit=unit,
            normalize=normalize, rounding=rounding, start=start, refuse_none=True,
        )  # fmt: skip
    unknown = [name for name in budget if name not in budgets]
    if unknown:
        raise TypeError(f"select() has no option and no budget called '{unknown[0]}'. {hint(unknown[0], budgets)}")
    (name, amount), *others = budget.items()
    given = {"prune": prune, "keep": keep, "per": None if per == "model" else per, "components": components,
             "start": start, **dict(others)}  # fmt: skip
    idle = [option for option, value in given.items() if value is not None]
    if idle:
        raise MaskError(f"{idle[0]} has no effect with {name}={amount}: a budget says how many heads go. Give one.")
    if model is not None:
        model = unwrapped(model)
        heads = heads if heads is not None else find_heads(model)
    return find_mask(
        name,
        amount,
        Selection(
            scores=scores, heads=heads if heads is not None else plain_map(scores), model=model,
            evaluate=evaluate, unit=unit, at_least=at_least, normalize=normalize, uniform=uniform, gqa=gqa,
            batch=batch, length=length,
        ),
    ).mask  # fmt: skip


def _same_everywhere(heads: HeadMap | None, per: Per) -> Per:
    """A share of each site is the same number everywhere, if all sites have equally many to begin with."""
    if heads is None:
        raise MaskError("uniform=True needs to know how many heads the sites have: pass heads=find_heads(model).")
    if per == "component":
        raise MaskError("per='component' has no effect with uniform=True: leave one of them out.")
    equal_counts({site.id: len(site.groups) for site in heads if site.num_heads})
    return "site"
