"""`random`: the score that every other score must beat."""

from __future__ import annotations

import random as python_random

from headprune.heads import HeadScores
from headprune.scoring.context import ScoringContext
from headprune.scoring.run import scorers


@scorers.add("random", comparable=True, data_free=True)
def random(job: ScoringContext) -> HeadScores:
    """Numbers from 0 to 1 by the job's seed, the same on every machine.

    Cost: none; no data is read. Relations: the baseline of Budhraja et al. 2020.
    """
    generator = python_random.Random(job.seed)
    values = {site.id: [generator.random() for _ in range(site.num_heads)] for site in job.heads}
    return HeadScores.from_values(job.heads, values, method="random", options={"seed": job.seed})
