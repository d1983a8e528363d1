"""What the heads and neurons of a checkpoint on disk cost, counted from shapes: no layer is run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from headprune.budgets.budget import Costs
from headprune.errors import MaskError
from headprune.heads import HeadMap, Site
from headprune.heads.mask import Unit
from headprune.heads.scores import units_of_site
from headprune.on_disk.skeleton import Skeleton
from headprune.structure import projections
from headprune.structure.neurons import channels

KINDS = ("params", "macs")


def shape_costs(skeleton: Skeleton, heads: HeadMap, kind: str, unit: Unit, length: int) -> Costs:
    """Parameters, or MACs of one text of so many tokens, of the whole model and of each site with 0, 1, 2 … units."""
    if kind not in KINDS:
        raise MaskError(f"--{kind} needs the whole model in memory. With --stream, say --params, --macs or --prune.")
    sites: Mapping[str, tuple[float, ...]] = {
        site.id: tuple(
            count * _unit_cost(skeleton, site, kind, unit, length)
            for count in range(len(units_of_site(site, unit, (0.0,) * site.original_num_heads)) + 1)
        )
        for site in heads
    }
    return Costs(kind, _whole(skeleton, kind, length), sites)


def _unit_cost(skeleton: Skeleton, site: Site, kind: str, unit: Unit, length: int) -> float:
    """Of all units of a site, which cost alike."""
    model, structure = skeleton.model, skeleton.structure
    units = len(units_of_site(site, unit, (0.0,) * site.original_num_heads))
    if site.is_neurons:
        part = structure.feed_forward[site.id]
        made = {path: len(channels(how, range(part.size), part.size)) for path, how in part.sources.items()}
    else:
        made = {path: owners.shape[1] for path, owners in structure.blocks[site.id].channels.items()}
        if unit == "query":  # keys and values stay
            made = {path: count for path, count in made.items() if count == site.num_heads * site.head_dim}
    weights = sum(count * projections.input_width(model.get_submodule(path)) for path, count in made.items())
    weights += projections.matrix(model.get_submodule(site.output)).numel()
    if kind == "macs":
        attention = 0 if site.is_neurons else 2 * length * site.num_heads * site.head_dim
        return length * (weights + attention) / units
    return weights / units


def _whole(skeleton: Skeleton, kind: str, length: int) -> float:
    model = skeleton.model
    if kind == "params":
        return float(sum({id(p): p.numel() for p in model.parameters()}.values()))
    get = getattr(model, "get_output_embeddings", None)
    words = get() if callable(get) else None
    modules = {module for module in model.modules() if projections.is_projection(module)} - {words}
    weights = sum(_size(module) for module in modules) + (_size(words) if words is not None else 0)
    sites = skeleton.structure.heads.attention
    return float(length * (weights + sum(2 * length * site.num_heads * site.head_dim for site in sites)))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters(recurse=False) if parameter.dim() == 2)
