"""`ablation` and `all-but-one`: what really happens without the head, and with nothing but the head."""

from __future__ import annotations

import torch

from headprune.heads import HeadId, HeadMask, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import units_of_site
from headprune.scoring.ablation_engine import Ablations, ablate, losses
from headprune.scoring.context import HeadSums, ScoringContext
from headprune.scoring.run import scorers


@scorers.add("ablation", comparable=True)
def ablation(job: ScoringContext, *, reuse: bool = True, unit: Unit = "head") -> HeadScores:
    """How much the loss of an example rises when the head alone is masked: E_x [L without h - L].

    With `unit="group"` the heads of a group go together, and each has an equal part of what that costs.
    Cost: for every head (or group) a forward from its site on (about half a pass on average), no backward.
    Relations: what `sensitivity` and `fisher` estimate; the order of Michel et al.'s "oracle" curve.
    Paper: Michel et al. 2019, section 3.2.
    """
    full = HeadMask.full(job.heads)
    found = ablate(job, lambda site, head: full.without(*_together(site, unit)[head]), losses(job), reuse=reuse)
    return _risen(job, found, "ablation", unit, sign=1.0)


@scorers.add("all-but-one")
def all_but_one(job: ScoringContext, *, reuse: bool = True, unit: Unit = "head") -> HeadScores:
    """How little the loss suffers when the site keeps only this head: E_x [L - L with h alone].

    With `unit="group"` a group stays alone, and each of its heads has an equal part of its score.
    Cost: as `ablation`. Relations: asks whether one head is enough for its layer, not whether it can be spared.
    Paper: Michel et al. 2019, section 3.3.
    """
    full = HeadMask.full(job.heads)

    def alone(site: Site, head: int) -> HeadMask:
        stay = _together(site, unit)[head]
        return full.without(*(other for other in site.heads() if other not in stay))

    return _risen(job, ablate(job, alone, losses(job), reuse=reuse), "all-but-one", unit, sign=-1.0)


def _together(site: Site, unit: Unit) -> dict[int, tuple[HeadId, ...]]:
    """For every head of a site, those that go with it, and itself."""
    units = units_of_site(site, unit, (0.0,) * site.original_num_heads)
    return {head.index: members for members in units for head in members}


def _risen(job: ScoringContext, found: Ablations, method: str, unit: Unit, sign: float) -> HeadScores:
    base = found.base_outcomes()
    sums = HeadSums(job.heads)
    for site in job.heads:
        if site.num_heads:
            sizes = {head: len(members) for head, members in _together(site, unit).items()}
            rows = [(found.outcomes(HeadId(site.id, head)) - base) / sizes[head] for head in site.kept]
            sums.add(site.id, sign * torch.stack(rows, dim=1))  # (examples, heads)
    return sums.scores(method, share_reused=round(found.share_reused, 4), unit=unit)
