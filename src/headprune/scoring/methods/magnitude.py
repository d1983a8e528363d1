"""`magnitude`: the size of the weights of a head or neuron, without any data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.heads import HeadScores, Site
from headprune.scoring.context import ScoringContext
from headprune.scoring.run import scorers
from headprune.structure import projections
from headprune.structure.find import model_structure
from headprune.structure.neurons import FeedForward, channels
from headprune.structure.trace import AttentionBlock


@scorers.add("magnitude", data_free=True)
def magnitude(job: ScoringContext) -> HeadScores:
    """The Frobenius norm of the head's value-output product: ‖W_o^h W_v^h‖; of a neuron, the product of the lengths of
    the weights that write it out and that read it in.

    What the head could write for a unit input, whatever it attends to. Which channels are values is found out, not
    looked up: they are those in which the head's output is linear.
    Cost: one small forward pass to find the values; no data is read. Relations: `output-norm` without data.
    """
    view = model_structure(job.model, neurons=bool(job.heads.neurons))
    values: dict[str, list[float]] = {}
    for site in job.heads:
        if site.num_heads and site.is_neurons:
            values[site.id] = _neurons(job.model, view.feed_forward[site.id], site)
        elif site.num_heads:
            columns = projections.matrix(job.model.get_submodule(site.output)).double()
            split = columns.unflatten(-1, (site.num_heads, -1))  # (outputs, heads, width)
            rows = _value_rows(job.model, view.blocks[site.id], site)
            values[site.id] = [float((split[:, h] @ rows[h].double()).norm()) for h in range(site.num_heads)]
        else:
            values[site.id] = []
    return HeadScores.from_values(job.heads, values, method="magnitude")


def _neurons(model: nn.Module, part: FeedForward, site: Site) -> list[float]:
    written = projections.matrix(model.get_submodule(site.output)).double().square().sum(0)  # (neurons,)
    read = torch.zeros_like(written)
    for path, kind in part.sources.items():
        rows = projections.matrix(model.get_submodule(path)).double().square().sum(1)  # (channels,)
        for places in zip(*(channels(kind, [n], part.size) for n in range(part.size)), strict=True):
            read += rows[list(places)]
    return (written * read).sqrt().tolist()


def _value_rows(model: nn.Module, block: AttentionBlock, site: Site) -> list[Tensor]:
    """The value weights of each head, (width, inputs)."""
    for path, roles in block.roles.items():
        if "value" in roles:
            weight = projections.matrix(model.get_submodule(path))
            return [weight[channels] for channels in roles["value"]]
    raise UnsupportedModelError(
        f"{site.id}: its values are not the plain output of a linear projection alone (latent or normalised values, or "
        "vectors beside them), so they "
        "have no weight of their own. Use another score than 'magnitude', such as output-norm."
    )
