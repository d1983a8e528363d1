"""`wanda`: weights times activations, of whole heads and neurons."""

from __future__ import annotations

from headprune.heads import HeadScores
from headprune.heads.mask import Unit
from headprune.scoring.channels import channels_of
from headprune.scoring.context import ScoringContext
from headprune.scoring.densities import by_density, ranks
from headprune.scoring.run import scorers
from headprune.structure import projections


@scorers.add("wanda", comparable=True, needs_all=True)
def wanda(job: ScoringContext, *, unit: Unit = "head") -> HeadScores:
    """|W_ij| · ‖c_j‖ summed over the weights of a unit in the output projection, as its place within its site.

    Wanda compares weights within a layer alone, so that every site loses the same share of its units. Cost: one forward
    per batch. Relations: `output-norm` channel by channel, without what channels of a head do together; `flap` takes
    the variance in place of the norm and compares sites.
    Paper: Sun et al. 2024, A Simple and Effective Pruning Approach for Large Language Models; structured as in An et
    al. 2024 (Wanda-sp).
    """
    found = channels_of(job)
    densities = {}
    for site in job.heads:
        if site.num_heads:
            sizes = projections.matrix(job.model.get_submodule(site.output)).detach().cpu().double().abs().sum(0)
            values = (sizes * found[site.id].norm).unflatten(0, (site.num_heads, -1)).sum(1)  # (heads,)
            densities[site.id] = ranks(site, values.tolist(), unit)
    return by_density(job.model, job.heads, densities, "wanda", unit=unit)
