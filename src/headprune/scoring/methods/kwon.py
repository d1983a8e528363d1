"""`kwon`: squared gradients of masks decide how many go from each site, their blocks which."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headprune.heads import HeadMask, HeadScores, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import units_of_site
from headprune.scoring.context import HeadSums, ScoringContext, example_gradients
from headprune.scoring.run import scorers


def rearranged(job: ScoringContext, mask: HeadMask, unit: Unit = "head") -> HeadMask:
    """As many units of every site as `mask` keeps, those whose absence costs least together: E_x (Σ dL(x)/dξ)² over
    the units of a site that go, a block of the empirical Fisher information."""
    gradients: dict[str, list[Tensor]] = {}
    for batch in job.batches:
        for name, grad in example_gradients(job, batch).items():
            gradients.setdefault(name, []).append(grad.detach().cpu().double())
    kept = mask.to_dict()
    for site in job.heads:
        if site.num_heads:
            units = units_of_site(site, unit, (0.0,) * site.original_num_heads)
            members = [[head.index for head in one] for one in units]
            stays = set(kept[site.id])
            count = sum(not stays.issuperset(heads) for heads in members)
            gone = cheapest_together(_block(site, members, torch.cat(gradients[site.id])), count)
            lost = {head for number in gone for head in members[number]}
            kept[site.id] = [head for head in site.kept if head not in lost]
    return HeadMask.from_dict(job.heads, kept)


@scorers.add("kwon", rearranges=rearranged)
def kwon(job: ScoringContext) -> HeadScores:
    """The diagonal of the empirical Fisher information of the masks, E_x (dL(x)/dξ)², as `fisher`; then, at the number
    of units that a budget leaves in each site, those that go are chosen anew by its blocks.

    The search, the rearrangement and the tuning of the paper are this score within a budget of MACs, `rearranged`, and
    the repair `mask-tuning`, which comes with it. Cost: twice `sensitivity`. Relations: `fisher-block` lets the blocks
    decide how many go from each site, too.
    Paper: Kwon et al. 2022, A Fast Post-Training Pruning Framework for Transformers, section 4.
    """
    sums = HeadSums(job.heads)
    for batch in job.batches:
        for site, grad in example_gradients(job, batch).items():
            sums.add(site, grad.square())
    return sums.scores("kwon")


def _block(site: Site, members: Sequence[Sequence[int]], gradients: Tensor) -> Tensor:
    """E_x of the products of the gradients of two units: (units, units)."""
    places = {head: place for place, head in enumerate(site.kept)}
    rows = torch.stack([gradients[:, [places[head] for head in heads]].sum(1) for heads in members], dim=1)
    return rows.T @ rows / len(rows)


def cheapest_together(block: Tensor, count: int) -> list[int]:
    """So many units with a small sum over all their pairs: the smallest by themselves to begin with, then each other
    one is let in, and of all that are in, the one leaves whose leaving leaves least."""
    order = block.diagonal().argsort(stable=True)
    if count in (0, len(block)):
        return order[:count].tolist()
    inside = torch.zeros(len(block), dtype=torch.bool)
    inside[order[:count]] = True
    reach = block[:, inside].sum(1)  # of each unit with those that are in
    for number in order[count:].tolist():
        inside[number] = True
        reach += block[:, number]
        saved = (2 * reach - block.diagonal()).masked_fill(~inside, -torch.inf)  # by leaving
        leaving = int(saved.argmax())
        inside[leaving] = False
        reach -= block[:, leaving]
    return inside.nonzero().flatten().tolist()
