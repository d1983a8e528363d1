"""`flap`: how much of what a head or neuron writes a constant could not replace."""

from __future__ import annotations

from headprune.heads import HeadScores
from headprune.scoring.channels import channels_of
from headprune.scoring.context import ScoringContext
from headprune.scoring.densities import by_density, standardised
from headprune.scoring.run import scorers
from headprune.structure import projections


@scorers.add("flap", comparable=True, needs_all=True)
def flap(job: ScoringContext) -> HeadScores:
    """The fluctuation of a channel, seen through its weights: Var(c_j) · ‖W_j‖², standardised over the site's channels
    and averaged over the channels of a head.

    What a removed channel writes on average goes into the bias (the repair `bias`, which comes with it), so only its
    variance is lost. Sites are compared by the standardised numbers, and heads and neurons by what a weight of them is
    worth. Cost: one forward per batch. Relations: `reconstruction` with a constant in place of the heads that are left.
    Paper: An et al. 2024, Fluctuation-based Adaptive Structured Pruning for Large Language Models, section 3.
    """
    found = channels_of(job)
    densities = {}
    for site in job.heads:
        if site.num_heads:
            norms = projections.matrix(job.model.get_submodule(site.output)).detach().cpu().double().square().sum(0)
            fluctuation = standardised(found[site.id].variance * norms)  # (heads * width,)
            densities[site.id] = fluctuation.unflatten(0, (site.num_heads, -1)).mean(1)  # (heads,)
    return by_density(job.model, job.heads, densities, "flap")
