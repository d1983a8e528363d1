"""What may leave a site together: the rules of grouped-query attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headprune.errors import MaskError
from headprune.heads import Site

Gqa = Literal["group", "query", "expand"]


@dataclass(frozen=True)
class Cut:
    """What stays of one site, in original indices."""

    site: Site
    kept: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of the pruned site
    expand: bool = False

    @property
    def removed(self) -> tuple[int, ...]:
        kept = set(self.kept)
        return tuple(head for head in self.site.kept if head not in kept)

    @property
    def is_empty(self) -> bool:
        return not self.kept

    @property
    def positions(self) -> list[int]:
        """Kept heads by their present place in the site; an emptied site keeps its first as a placeholder."""
        places = {head: place for place, head in enumerate(self.site.kept)}
        return [places[head] for head in self.kept] or [0]

    @property
    def num_kv_heads(self) -> int:
        return len(self.groups) or 1


def cut_site(site: Site, kept: Sequence[int], gqa: Gqa | None) -> Cut:
    """Check that these heads can be all that is left; never changes the choice."""
    keep = tuple(kept)
    grouped = site.num_kv_heads < site.num_heads
    if not grouped or not keep:
        return Cut(site, keep, tuple((head,) for head in keep))
    left = [tuple(head for head in group if head in keep) for group in site.groups]
    if gqa == "expand":
        return Cut(site, keep, tuple((head,) for head in keep), expand=True)
    whole = all(len(part) in (0, len(group)) for part, group in zip(left, site.groups, strict=True))
    even = len({len(part) for part in left}) == 1
    level = len({len(part) for part in left if part}) == 1
    fits = {"group": whole, "query": even, None: level}[gqa]
    if not fits:
        raise MaskError(_misfit(site, left, gqa))
    return Cut(site, keep, tuple(part for part in left if part))


def _misfit(site: Site, left: list[tuple[int, ...]], gqa: Gqa | None) -> str:
    sizes = [len(part) for part in left]
    counts = ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    whole = [h for part, group in zip(left, site.groups, strict=True) if 2 * len(part) >= len(group) for h in group]
    each = max(1, round(sum(sizes) / len(sizes)))
    even = [h for part, group in zip(left, site.groups, strict=True) for h in _nearest(part, group, each)]
    asked = f" gqa='{gqa}' was asked for." if gqa else ""
    return (
        f"{site.id} uses grouped-query attention ({site.num_heads} heads, {site.num_kv_heads} groups) and this mask "
        f"keeps {counts} heads of its groups.{asked} Nearest masks that fit: whole groups {_all(whole, site)}, or the "
        f'same number from each {_all(even, site)}. Remove whole groups (select(..., unit="group"), --unit group), the '
        'same number from each (unit="query", --unit query), or pass gqa="expand" (--gqa expand).'
    )


def _all(kept: list[int], site: Site) -> str:
    return f"{sorted(kept)}{' (all of them: nothing goes)' if len(kept) == site.num_heads else ''}"


def _nearest(part: tuple[int, ...], group: tuple[int, ...], size: int) -> list[int]:
    return sorted(sorted(group, key=lambda head: (head not in part, head))[:size])
