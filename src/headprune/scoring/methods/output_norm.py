"""`output-norm`: how much a head writes."""

from __future__ import annotations

import torch

from headprune.heads import HeadScores
from headprune.hooks import captured_inputs
from headprune.scoring.context import HeadSums, ScoringContext
from headprune.scoring.moments import example_means
from headprune.scoring.run import scorers
from headprune.structure import projections


@scorers.add("output-norm")
def output_norm(job: ScoringContext) -> HeadScores:
    """The mean length of what a head adds to its block's output: E_x mean_t ‖W_o^h c_t^h‖.

    Padding is left out. Cost: one forward per batch. Relations: needs no labels; unlike `magnitude` it sees how large
    values really are on the data, unlike `sensitivity` it does not see whether anybody downstream listens.
    """
    sums = HeadSums(job.heads)
    sites = [site for site in job.heads if site.num_heads]
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    for batch in job.batches:
        with torch.no_grad(), captured_inputs(job.model, modules) as contexts:
            job.answer(batch)
        for site in sites:
            columns = projections.matrix(modules[site.id]).unflatten(-1, (site.num_heads, -1))
            for context in contexts[site.id]:
                split = context.unflatten(-1, (site.num_heads, -1))  # (…, heads, width)
                if site.head_dim == 1:  # thousands of neurons: no vector for each of them
                    written = context.abs() * columns[..., 0].norm(dim=0)
                else:
                    written = torch.einsum("...hw,ohw->...ho", split, columns).norm(dim=-1)  # (…, heads)
                means = example_means(
                    batch, site, written, has_encoder=job.has_encoder, batch_axis=site.batch_axis
                )  # (batch, heads)
                sums.add(site.id, means)
    return sums.scores("output-norm")
