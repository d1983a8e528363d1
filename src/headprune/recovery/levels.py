"""A library of refitted weights: for each site and each number of units that it may keep, fitted once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from headprune.heads import HeadId, HeadMask, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import Normalize, units_of_site, worth
from headprune.recovery.recover import projection_of, write_projection_
from headprune.recovery.sequential import Fit, SequentialMoments, columns_of, fitted
from headprune.recovery.walks import held_batches
from headprune.scoring.context import ScoringContext
from headprune.scoring.moments import Moments

MEMORY = 2**29  # bytes of fits that are kept


@dataclass
class Levels:
    """The sites of a model, with what each keeps at every level and what its projection is then.

    A site's units go in the order of their scores. Weights are fitted to what the site receives in the model that is
    repaired for one allocation, so that they are right there and good near it, and a site's fit does not depend on the
    others' levels.
    """

    context: ScoringContext
    recover: str | None  # none: nothing is refitted
    ranked: Mapping[str, Sequence[tuple[HeadId, ...]]]  # the units of each site, best first
    whole: Mapping[str, Fit]
    moments: dict[str, Moments] = field(default_factory=dict)
    fits: dict[tuple[str, int], Fit] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        context: ScoringContext,
        scores: HeadScores,
        recover: str | None,
        *,
        unit: Unit = "head",
        view: Normalize | None = None,
    ) -> Levels:
        values = scores.normalized(view or scores.view)
        ranked = {
            site.id: sorted(
                units_of_site(site, unit, tuple(values[site.id])), key=lambda unit: worth(unit, values), reverse=True
            )
            for site in context.heads
        }
        whole = {site.id: projection_of(context.model, site) for site in context.heads if site.num_heads}
        return cls(context, recover, ranked, whole)

    def around_(self, counts: Mapping[str, int]) -> None:
        """Refit for this allocation, one site after another, in the model."""
        self.moments.clear()
        self.fits.clear()
        if self.recover is None:
            return
        sites = [site for site in self.context.heads if site.num_heads]
        batches = list(self.context.batches)
        sequence = SequentialMoments(self.context, sites, batches, self.mask(counts), held=held_batches(len(batches)))
        for site in sequence.sites:
            self.moments[site.id] = sequence.moments(site).checked(site)
            write_projection_(self.context.model, site, self.fit(site, counts[site.id]))

    def counts(self, mask: HeadMask) -> dict[str, int]:
        """The level of each site under a mask that takes units in their order."""
        return {site: sum(all(head in mask for head in unit) for unit in units) for site, units in self.ranked.items()}

    def mask(self, counts: Mapping[str, int]) -> HeadMask:
        kept = {
            site: sorted(head.index for unit in units[: counts[site]] for head in unit)
            for site, units in self.ranked.items()
        }
        return HeadMask.from_dict(self.context.heads, kept)

    def unit_costs(self) -> dict[str, list[float]]:
        """Where units are counted: every one costs as much as the next."""
        return {site: [float(count) for count in range(len(units) + 1)] for site, units in self.ranked.items()}

    def floors(self, at_least: int) -> dict[str, int]:
        """The fewest units of each site that have so many heads, or all."""
        found = {}
        for site, units in self.ranked.items():
            kept = itertools.accumulate(map(len, units), initial=0)
            found[site] = next((count for count, heads in enumerate(kept) if heads >= at_least), len(units))
        return found

    def write(self, counts: Mapping[str, int]) -> None:
        """Put every site on its level: what it loses is nowhere in its projection."""
        for site in self.context.heads:
            if site.num_heads:
                write_projection_(self.context.model, site, self.fit(site, counts[site.id]))

    def fit(self, site: Site, count: int) -> Fit:
        if count == len(self.ranked[site.id]):
            return self.whole[site.id]
        key = (site.id, count)
        if key not in self.fits:
            places = {head: place for place, head in enumerate(site.kept)}
            kept = sorted(places[head.index] for unit in self.ranked[site.id][:count] for head in unit)
            full = self.whole[site.id]
            fit = full
            if self.recover is not None:
                fit = fitted(self.recover, full, self.moments[site.id], kept, site.head_dim)
            columns = columns_of(kept, site.head_dim)
            weight = torch.zeros(full.weight.shape)
            weight[:, columns] = fit.weight[:, columns].float()
            if weight.numel() * weight.element_size() * len(self.fits) > MEMORY:
                self.fits.clear()
            self.fits[key] = Fit(weight, fit.bias)
        return self.fits[key]

    @contextmanager
    def undone(self) -> Iterator[None]:
        """The model as it was when the block ends."""
        try:
            yield
        finally:
            for site in self.context.heads:
                if site.num_heads:
                    write_projection_(self.context.model, site, self.whole[site.id])
