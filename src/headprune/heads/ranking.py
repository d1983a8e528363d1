"""From scores to a mask: which heads go first, and how many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from headprune.errors import MaskError, UnknownNameError
from headprune.heads import HeadId, HeadMap, HeadMask, HeadScores, Site, canonical_component, heads_to_prune
from headprune.heads.headmap import SiteName
from headprune.heads.mask import Unit, refuse_nothing
from headprune.heads.scores import Normalize, Row
from headprune.registry import hint

Per = Literal["model", "component", "site"]


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
    refuse_none: bool = False,
) -> HeadMask:
    """Keep the best heads: `hp.select` without its budgets, and explained there.

    `refuse_none`: a share of which nothing comes is an error. On a curve it is a point.
    """
    if per not in ("model", "component", "site"):
        raise UnknownNameError(f"No way of counting called '{per}'. {hint(per, ('model', 'component', 'site'))}")
    if heads is None:
        if unit != "head":
            raise MaskError(f"unit='{unit}' needs to know the groups: pass heads=find_heads(model).")
        heads = plain_map(scores)
    check_fit(scores, heads)
    wanted = _wanted(components, heads)
    values = scores.normalized(normalize)
    gone: list[HeadId] = []
    sizes: list[int] = []
    for sites in _pools([site for site in heads if wanted is None or site.component in wanted], per):
        pool = [members for site in sites for members in units_of_site(site, unit, values[site.id])]
        sizes.append(len(pool))
        amount = heads_to_prune(len(pool), prune=prune, keep=keep, rounding=rounding)
        off = [members for members in pool if start is not None and not any(head in start for head in members)]
        gone_before = set(off)
        left = [members for members in pool if members not in gone_before]
        spared = _protected(sites, left, values, at_least)
        ranked = sorted((m for m in left if m not in spared), key=lambda members: worth(members, values))
        gone += [head for members in [*off, *ranked[: max(0, amount - len(off))]] for head in members]
    if refuse_none and not gone:
        why = f" with at_least={at_least}" if at_least else ""
        refuse_nothing(sizes, prune=prune, keep=keep, why=why + ("" if unit == "head" else f" (unit {unit})"))
    return HeadMask.full(heads).without(*gone)


def _wanted(components: str | Iterable[str] | None, heads: HeadMap) -> set[str] | None:
    """The components whose heads may go; None for all."""
    if components is None:
        return None
    names = [components] if isinstance(components, str) else components
    wanted, there = {canonical_component(name) for name in names}, {site.component for site in heads}
    if wanted - there:
        raise MaskError(f"This model has no {min(wanted - there)} heads; its heads are {', '.join(sorted(there))}.")
    return wanted


def units_of(heads: HeadMap, unit: Unit, scores: HeadScores, normalize: Normalize | None) -> list[tuple[HeadId, ...]]:
    """What can go by itself: heads, groups that share keys and values, or one head of each group."""
    values = scores.normalized(normalize)
    return [members for site in heads for members in units_of_site(site, unit, values[site.id])]


def pruning_order(scores: HeadScores, *, normalize: Normalize | None = None) -> tuple[HeadId, ...]:
    """Every head, first to go first: `select(scores, prune=n)` takes the first n."""
    values = scores.normalized(normalize)
    heads = [(head,) for site in plain_map(scores) for head in site.heads()]
    return tuple(head for (head,) in sorted(heads, key=lambda members: worth(members, values)))


def _pools(sites: list[Site], per: Per) -> list[list[Site]]:
    """Sites among whose heads one ranking decides."""
    if per == "site":
        return [[site] for site in sites]
    if per == "model":
        return [sites]
    return [[site for site in sites if site.component == name] for name in dict.fromkeys(s.component for s in sites)]


def units_of_site(site: Site, unit: Unit, values: Row) -> list[tuple[HeadId, ...]]:
    """What can go by itself in one site; where one head of every group goes, the lowest go together."""
    if unit == "head":
        return [(head,) for head in site.heads()]
    if unit in ("group", "query") and site.num_kv_heads == site.num_heads:
        return [(head,) for head in site.heads()]  # without groups, heads stand alone
    if unit == "group":
        return [tuple(HeadId(site.id, index) for index in group) for group in site.groups]
    if unit != "query":
        raise UnknownNameError(f"No unit called '{unit}'. {hint(unit, ('head', 'group', 'query'))}")
    # One head of every group goes at a time: the worst of each first.
    ranked = [sorted(group, key=lambda index: (values[index] or 0.0, index)) for group in site.groups]
    return [tuple(HeadId(site.id, index) for index in sorted(row)) for row in zip(*ranked, strict=True)]


def worth(members: tuple[HeadId, ...], values: Mapping[str, Row]) -> float:
    """The score of a unit: the sum of its heads'."""
    return sum(values[head.site][head.index] or 0.0 for head in members)


def _protected(
    sites: list[Site],
    pool: list[tuple[HeadId, ...]],
    values: dict[str, Row],
    at_least: int,
) -> set[tuple[HeadId, ...]]:
    """The best units of every site, as many as it takes to keep `at_least` heads there."""
    spared: set[tuple[HeadId, ...]] = set()
    for site in sites:
        mine = sorted((m for m in pool if m[0].site == site.id), key=lambda members: worth(members, values))
        kept = 0
        for members in reversed(mine):
            if kept >= at_least:
                break
            spared.add(members)
            kept += len(members)
    return spared


def plain_map(scores: HeadScores) -> HeadMap:
    """Sites as far as scores know them: enough where heads stand alone."""
    sites = []
    for site_id, row in scores.sums.items():
        kept = tuple(index for index, value in enumerate(row) if value is not None)
        name = SiteName.parse(site_id)
        sites.append(
            Site(
                id=site_id,
                component=name.component,
                layer=name.layer,
                layers=(name.layer,),
                tower=name.tower,
                num_heads=len(kept),
                num_kv_heads=len(kept),
                head_dim=0,
                path="",
                output="",
                original_num_heads=len(row),
                kept=kept,
                groups=tuple((index,) for index in kept),
            )
        )
    return HeadMap(tuple(sites))


def check_fit(scores: HeadScores, heads: HeadMap) -> None:
    """Scores must be of these heads, and finite numbers."""
    for site in heads:
        row = scores.sums.get(site.id)
        if row is None or len(row) != site.original_num_heads:
            raise MaskError(
                f"These scores are of another model: they do not have the {site.original_num_heads} heads of {site.id}."
                + (" Score neurons, too: find_heads(model, neurons=True), or --parts." if site.is_neurons else "")
            )
        missing = [index for index in site.kept if row[index] is None]
        if missing:
            raise MaskError(f"{HeadId(site.id, missing[0])} has no score. Score the model that you select heads of.")
        odd = [index for index in site.kept if not math.isfinite(row[index] or 0.0)]
        if odd:
            raise MaskError(f"The score of {HeadId(site.id, odd[0])} is {row[odd[0]]}; expected a finite number.")
