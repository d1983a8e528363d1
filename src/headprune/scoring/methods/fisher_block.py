"""`fisher-block`: squared gradients of the masks, and what heads of a site do together."""

from __future__ import annotations

import torch
from torch import Tensor

from headprune.heads import HeadScores
from headprune.scoring.context import HeadSums, ScoringContext, example_gradients
from headprune.scoring.run import scorers


@scorers.add("fisher-block", needs_all=True)
def fisher_block(job: ScoringContext) -> HeadScores:
    """What a head adds to E_x (Σ_h dL(x)/dξ_h)² over the heads of its site that have gone before it.

    The block of the empirical Fisher information that belongs to a site says what its heads cost together: two heads
    that push the same way cost more than each alone, two that push against each other less. Heads are taken one by
    one, the cheapest first; a score is what was added (or that of the one before, if that was larger).
    Cost: as `sensitivity`. Relations: `fisher` is its diagonal.
    """
    blocks: dict[str, Tensor] = {}
    examples = 0
    for batch in job.batches:
        for site, grad in example_gradients(job, batch).items():
            rows = grad.detach().cpu().double()  # (batch, heads)
            blocks[site] = blocks.get(site, 0) + rows.T @ rows
        examples += len(rows)
    sums = HeadSums(job.heads)
    for site, block in blocks.items():
        sums.add(site, cheapest_first(block / examples)[None])
    return sums.scores("fisher-block")


def cheapest_first(block: Tensor) -> Tensor:
    """What each head adds to the sum over all pairs of those taken, (heads,), always taking what adds least."""
    left: list[int] = list(range(len(block)))
    gone: list[int] = []
    added = torch.zeros(len(block), dtype=torch.float64)
    largest = float("-inf")
    while left:
        costs = {head: float(block[head, head] + 2 * block[head, gone].sum()) for head in left}
        head = min(left, key=lambda h: costs[h])
        largest = max(largest, costs[head])
        added[head] = largest
        left.remove(head)
        gone.append(head)
    return added
