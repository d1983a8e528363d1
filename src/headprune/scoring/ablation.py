"""`ablation` and `all-but-one`: what really happens without the head, and with nothing but the head."""

from __future__ import annotations

import torch

from headprune.heads import HeadId, HeadMask, HeadScores, Site
from headprune.scoring.engine import Ablations, ablate, losses
from headprune.scoring.job import HeadSums, Job
from headprune.scoring.registry import scorers


@scorers.add("ablation")
def ablation(job: Job, *, reuse: bool = True) -> HeadScores:
    """How much the loss of an example rises when the head alone is masked: E_x [L without h - L].

    Cost: for every head a forward from its site on (about half a pass on average), no backward.
    Relations: what `sensitivity` and `fisher` estimate; the order of Michel et al.'s "oracle" curve.
    Paper: Michel et al. 2019, section 3.2.
    """
    full = HeadMask.full(job.heads)
    found = ablate(job, lambda site, head: full.without(HeadId(site.id, head)), losses(job), reuse=reuse)
    return _risen(job, found, "ablation", sign=1.0)


@scorers.add("all-but-one")
def all_but_one(job: Job, *, reuse: bool = True) -> HeadScores:
    """How little the loss suffers when the site keeps only this head: E_x [L - L with h alone].

    Cost: as `ablation`. Relations: asks whether one head is enough for its layer, not whether it can be spared.
    Paper: Michel et al. 2019, section 3.3.
    """
    full = HeadMask.full(job.heads)

    def alone(site: Site, head: int) -> HeadMask:
        return full.without(*(HeadId(site.id, other) for other in site.kept if other != head))

    return _risen(job, ablate(job, alone, losses(job), reuse=reuse), "all-but-one", sign=-1.0)


def _risen(job: Job, found: Ablations, method: str, sign: float) -> HeadScores:
    base = found.base_outcomes()
    sums = HeadSums(job.heads)
    for site in job.heads:
        if site.num_heads:
            rows = torch.stack([found.outcomes(HeadId(site.id, head)) - base for head in site.kept], dim=1)
            sums.add(site.id, sign * rows)  # (examples, heads)
    return sums.scores(method, share_reused=round(found.share_reused, 4))
