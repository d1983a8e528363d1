"""`sensitivity`: Michel et al.'s importance."""

from __future__ import annotations

import torch

from headprune.errors import UnknownNameError
from headprune.heads import HeadScores
from headprune.hooks import captured_inputs
from headprune.registry import hint
from headprune.scoring.context import (
    HeadSums,
    ScoringContext,
    batch_gradients,
    batch_rows,
    example_gradients,
    with_gradients,
)
from headprune.scoring.run import scorers

REDUCTIONS = ("example", "token", "batch")


@scorers.add("sensitivity")
def sensitivity(job: ScoringContext, *, reduction: str = "example") -> HeadScores:
    """How much the loss of an example moves with a head's mask: E_x |dL(x)/dξ| at ξ = 1.

    `reduction="example"` is the paper's formula, exact at any batch size. `"token"` is the paper's code: the absolute
    value is taken at every position, sum_t |c_t · dL/dc_t|, of the batch's mean loss, over the number of tokens.
    `"batch"` is the later port's: the absolute value of each batch's gradient.

    Cost: one forward and one backward per batch, whatever the number of heads; weights need no gradient.
    Relations: first-order estimate of `ablation`; `fisher` squares where this takes |.|.
    Paper: Michel et al. 2019, section 4.1.
    """
    if reduction not in REDUCTIONS:
        raise UnknownNameError(f"No reduction called '{reduction}'. {hint(reduction, REDUCTIONS)}")
    if reduction == "token":
        return _by_token(job)
    gradients = example_gradients if reduction == "example" else batch_gradients
    sums = HeadSums(job.heads)
    for batch in job.batches:
        for site, grad in gradients(job, batch).items():
            sums.add(site, grad.abs())
    return sums.scores("sensitivity", reduction=reduction)


def _by_token(job: ScoringContext) -> HeadScores:
    """Absolute dot product of context and its gradient at every position.

    Padded positions get no gradient. Where only one position per example receives any (the last layer of a
    classifier that reads its first token), the sum is over examples, as in the code.
    """
    sums = HeadSums(job.heads)
    sites = [site for site in job.heads if site.num_heads]
    for batch in job.batches:
        modules = {site.id: job.model.get_submodule(site.output) for site in sites}
        with torch.enable_grad(), captured_inputs(job.model, modules) as contexts:
            loss = job.example_losses(batch).sum() / batch_rows(batch)
        for site, pairs in with_gradients(loss, contexts, sites).items():
            for context, grad in pairs:
                dots = (context * grad).unflatten(-1, (job.heads[site].num_heads, -1)).sum(-1)  # (…, heads)
                moved = dots.flatten(0, -2)
                sums.add(site, moved[moved.abs().sum(-1) > 0].abs())
    return sums.scores("sensitivity", reduction="token")
