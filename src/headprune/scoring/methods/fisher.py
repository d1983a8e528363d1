"""`fisher`: squared gradients of the masks."""

from __future__ import annotations

from headprune.heads import HeadScores
from headprune.scoring.context import HeadSums, ScoringContext, example_gradients
from headprune.scoring.run import scorers


@scorers.add("fisher")
def fisher(job: ScoringContext) -> HeadScores:
    """The diagonal of the empirical Fisher information of the masks: E_x (dL(x)/dξ)² at ξ = 1.

    Cost: as `sensitivity`. Relations: a second-order estimate of `ablation` for a model whose gradient vanishes;
    squares, so that a head which matters much for few examples counts more than under `sensitivity`.
    """
    sums = HeadSums(job.heads)
    for batch in job.batches:
        for site, grad in example_gradients(job, batch).items():
            sums.add(site, grad.square())
    return sums.scores("fisher")
