"""`magnitude`: the size of a head's weights, without any data."""

from __future__ import annotations

from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.heads import HeadScores, Site
from headprune.scoring.context import ScoringContext
from headprune.scoring.run import scorers
from headprune.structure import projections
from headprune.structure.find import model_structure
from headprune.structure.trace import AttentionBlock


@scorers.add("magnitude", data_free=True, of_attention=True)
def magnitude(job: ScoringContext) -> HeadScores:
    """The Frobenius norm of the head's value-output product: ‖W_o^h W_v^h‖.

    What the head could write for a unit input, whatever it attends to. Which channels are values is found out, not
    looked up: they are those in which the head's output is linear.
    Cost: one small forward pass to find the values; no data is read. Relations: `output-norm` without data.
    """
    view = model_structure(job.model)
    values: dict[str, list[float]] = {}
    for site in job.heads:
        if site.num_heads:
            columns = projections.matrix(job.model.get_submodule(site.output)).double()
            split = columns.unflatten(-1, (site.num_heads, -1))  # (outputs, heads, width)
            rows = _value_rows(job.model, view.blocks[site.id], site)
            values[site.id] = [float((split[:, h] @ rows[h].double()).norm()) for h in range(site.num_heads)]
        else:
            values[site.id] = []
    return HeadScores.from_values(job.heads, values, method="magnitude")


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
