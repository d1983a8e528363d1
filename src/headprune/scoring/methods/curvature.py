"""`curvature`: what the loss rises by without a head, to second order, after the others have been refitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headprune.heads import HeadScores, Site
from headprune.heads.mask import Unit
from headprune.hooks import captured_outputs, heard_inputs
from headprune.scoring.context import HeadSums, ScoringContext, batch_rows, with_gradients
from headprune.scoring.methods.reconstruction import blocks_of, by_head, elimination
from headprune.scoring.moments import Moments, MomentsListener, squares, within_memory
from headprune.scoring.run import scorers
from headprune.structure import projections
from headprune.types import Batch


@scorers.add("curvature", comparable=True, needs_all=True)
def curvature(job: ScoringContext, *, ridge: float = 1e-4, unit: Unit = "head") -> HeadScores:
    """The error that a least-squares repair leaves without a head, measured by what it does to the loss:
    tr(A_h Cov(e_h)), with A = E_x Σ_t (dL/dc_t)(dL/dc_t)ᵀ and e_h what the heads that are left cannot say of head h.

    Heads of a site are taken away one by one, at each step the cheapest, and the others take over its part in A; a
    score is what was added (or that of the one before, if that was larger). A is the Fisher information of the site's
    output, seen from its heads; it is taken as independent of e. With `unit="group"` the heads of a group go together.
    Cost: as `sensitivity`, and (heads * width)³ linear algebra a site. Where the matrices of all sites are more than
    4 GiB (neurons of large models), once for each part of the sites.
    Relations: `reconstruction` with the loss in place of the squared error, so that sites can be compared; `residual`
    with what heads of a site can do for one another.
    """
    batches = list(job.batches)
    sums = HeadSums(job.heads)
    for sites in within_memory([site for site in job.heads if site.num_heads], copies=2):
        moments, pushes = _sums(job, sites, batches)
        for site in sites:
            module = job.model.get_submodule(site.output)
            products = moments[site.id].products(centred=getattr(module, "bias", None) is not None)
            felt = _root(pushes[site.id]) @ projections.matrix(module).cpu().double()  # (outputs, heads * width)
            added = elimination(felt, products, blocks_of(site, unit), ridge=ridge)
            sums.add(site.id, by_head(site, unit, added)[None])
    return sums.scores("curvature", ridge=ridge, unit=unit)


def _sums(
    job: ScoringContext, sites: Sequence[Site], batches: Iterable[Batch]
) -> tuple[dict[str, Moments], dict[str, Tensor]]:
    """In one pass, moments of what heads write, and E_x Σ_t (dL/dy_t)(dL/dy_t)ᵀ with y what the site writes: A of
    `curvature` is Wᵀ times it times W, and it is smaller where a site has more neurons than outputs."""
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    moments = {site.id: Moments() for site in sites}
    by_id = {site.id: site for site in sites}
    pushed: dict[str, Tensor] = {}
    examples = 0
    for batch in batches:
        hear = MomentsListener(moments, by_id, batch, job.has_encoder)
        hearing = heard_inputs(job.model, modules, hear)
        with torch.enable_grad(), hearing, captured_outputs(job.model, modules) as answers:
            total = job.example_losses(batch).sum()
        for name, pairs in with_gradients(total, answers, sites).items():
            for _, grad in pairs:
                pushed[name] = pushed.get(name, 0) + squares(grad.flatten(0, -2))  # no gradient at padding
        examples += batch_rows(batch)
    return {site.id: moments[site.id].checked(site) for site in sites}, {
        name: push / examples for name, push in pushed.items()
    }


def _root(matrix: Tensor) -> Tensor:
    """R with RᵀR equal to a matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = values.clamp_min(0.0).sqrt()[:, None] * vectors.T
    return root
