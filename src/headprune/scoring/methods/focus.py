"""`sensitivity-entropy`: what a head is worth to the loss, combined with how focused its attention is."""

from __future__ import annotations

from dataclasses import replace

from headprune.errors import HeadpruneError
from headprune.heads import HeadScores
from headprune.scoring.context import ScoringContext
from headprune.scoring.methods.attention import entropy
from headprune.scoring.methods.sensitivity import sensitivity
from headprune.scoring.run import scorers


@scorers.add("sensitivity-entropy", comparable=True, of_attention=True, needs_all=True)
def sensitivity_entropy(job: ScoringContext, *, weight: float = 0.3) -> HeadScores:
    """A mean of two opinions, each from 0 to 1 within a site: (1 - weight) * sensitivity + weight * focus.

    Sensitivity is divided by the largest of the site; focus is the negative entropy of attention, from the most spread
    head of the site to the most focused. Cost: of `sensitivity` and `entropy` together. Relations: `sensitivity` for
    weight 0, within a site; `entropy` for weight 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise HeadpruneError(f"The weight of entropy is {weight}; expected 0 to 1.")
    job = replace(job, batches=list(job.batches))
    worth, focus = sensitivity(job).scores, entropy(job).scores
    mixed = {}
    for site in job.heads:
        gains, focused = ([row[head] or 0.0 for head in site.kept] for row in (worth[site.id], focus[site.id]))
        top, low, high = (max(gains, default=0.0), min(focused, default=0.0), max(focused, default=0.0))
        mixed[site.id] = [
            (1 - weight) * (gain / top if top else 0.0) + weight * ((value - low) / (high - low) if high > low else 0.0)
            for gain, value in zip(gains, focused, strict=True)
        ]
    return HeadScores.from_values(job.heads, mixed, method="sensitivity-entropy", options={"weight": weight})
