"""What the heads of each site cost on the model at hand: parameters, MACs, time on this machine, or anything else.

A site's cost is found by taking heads away for real: all sites of one kind at a time keep fewer, and what the whole
model then costs less is divided among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from headprune.heads import HeadId, HeadMap, HeadMask, Site
from headprune.heads.mask import Unit
from headprune.heads.ranking import units_of_site
from headprune.hooks import projection_at
from headprune.structure import projections


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
