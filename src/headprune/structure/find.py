"""`find_heads`: the public face of examination, and what earlier prunings left a note of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from headprune.checkpoint import config_entry
from headprune.errors import ExampleError, UnsupportedModelError
from headprune.heads import HeadMap, Site, Skipped
from headprune.hooks import paused_gates
from headprune.structure.memory import ModelStructure, known_heads, known_structure, remember_structure
from headprune.structure.neurons import FeedForward, find_feed_forward
from headprune.structure.site_names import SiteAddress, name_neurons, name_sites
from headprune.structure.trace import AttentionBlock, attention_blocks, traced_run
from headprune.types import Batch


def find_heads(model: nn.Module, example: Batch | None = None, *, neurons: bool = False) -> HeadMap:
    """Every softmax attention block of a model and its heads; with `neurons`, its feed-forward parts too.

    A feed-forward part is a site of the component `neurons`, whose heads are its neurons, one channel wide: they are
    scored, masked, selected, repaired and pruned as heads are.

    `example` is a batch of model inputs; without one, a small batch is made from the config. The model is run on it
    once, so that everything reported has been seen to work; what was not understood is in `heads.skipped`.

    Cost: one forward pass on a small batch and one tiny backward pass per head. The result is remembered.

    Example:
        >>> heads = hp.find_heads(model)
        >>> len(heads), [site.id for site in heads]
        (8, ['encoder.0', 'encoder.1'])
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"Found {type(model).__name__}; expected a model (torch.nn.Module) in memory.")
    if example is not None and not isinstance(example, Mapping):
        raise ExampleError(f"The example is a {type(example).__name__}; expected a table of model inputs.")
    model = unwrapped(model)
    known = known_heads(model, neurons=neurons) if example is None else None
    return known if known is not None else model_structure(model, example, neurons=neurons).heads


def find_parts(model: nn.Module, parts: str) -> tuple[HeadMap, HeadMap]:
    """Everything that a mask of this model must name, and what of it may go: heads, neurons or both."""
    every = find_heads(model, neurons=parts != "heads")
    found = every.neurons if parts == "neurons" else every
    if not found:
        why = f" ({every.skipped[0].path}: {every.skipped[0].reason})" if every.skipped else ""
        raise UnsupportedModelError(f"No {parts} were found in {type(model).__name__}{why}.")
    return every, found


def heads_left(model: nn.Module) -> dict[str, Any]:
    """Which heads a model has and had, as results store it."""
    heads = find_heads(model)
    return {"kept": heads.kept(), "original": heads.original_counts()}


def model_structure(model: nn.Module, example: Batch | None = None, *, neurons: bool = False) -> ModelStructure:
    """The heads of a model and where they are in it; remembered as long as the model stays as it is."""
    found = known_structure(model, example, neurons=neurons)
    if found is None:
        found = examined(model, example, neurons=neurons)
        if found.heads:
            remember_structure(model, found, example)
    return found


def examined(model: nn.Module, example: Batch | None = None, *, neurons: bool = False) -> ModelStructure:
    """What one forward pass shows of a model, whatever was known of it before."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has weights on the meta device (built empty, or offloaded): it cannot be run to "
            "find its heads. Load it into memory first, without offloading to disk."
        )
    with paused_gates(model), traced_run(model, example) as traced:
        blocks, skipped = attention_blocks(traced)
        closed = [item.path for item in skipped if not _holds(item.path, _emptied_paths(model))]
        parts, without = find_feed_forward(traced, blocks, closed) if neurons else ([], [])
    attention = _structure(model, blocks, [], skipped, neurons=False)
    if not neurons:
        return attention
    every = _structure(model, blocks, parts, [*skipped, *without], neurons=True)
    return dataclasses.replace(every, attention=attention)


def _structure(
    model: nn.Module,
    blocks: Sequence[AttentionBlock],
    parts: Sequence[FeedForward],
    skipped: Sequence[Skipped],
    *,
    neurons: bool,
) -> ModelStructure:
    sites = {
        block.path: Site(
            id=name.id,
            component=name.component,
            layer=name.layer,
            layers=name.layers,
            tower=name.tower,
            num_heads=block.heads,
            num_kv_heads=len(block.groups),
            head_dim=block.head_dim,
            path=block.path,
            output=block.output,
            original_num_heads=block.heads,
            kept=tuple(range(block.heads)),
            groups=block.groups,
            batch_axis=block.batch_axis,
        )
        for block, name in zip(blocks, name_sites(model, blocks), strict=True)
    }
    by_path = {block.path: block for block in blocks}
    sites |= {
        part.output: _neuron_site(part, name) for part, name in zip(parts, name_neurons(model, parts), strict=True)
    }
    sites |= _remembered_sites(model, sites, neurons=neurons)
    model_type = str(getattr(getattr(model, "config", None), "model_type", "") or type(model).__name__)
    emptied = [site.path for site in sites.values() if not site.num_heads]
    left = tuple(item for item in skipped if not any(_related(item.path, path) for path in emptied))
    return ModelStructure(
        HeadMap(tuple(sites.values()), skipped=left, model_type=model_type),
        {site.id: by_path[path] for path, site in sites.items() if path in by_path and site.num_heads},
        {sites[part.output].id: part for part in parts if sites[part.output].num_heads},
    )


def _neuron_site(part: FeedForward, name: SiteAddress) -> Site:
    every = tuple(range(part.size))
    return Site(
        id=name.id,
        component=name.component,
        layer=name.layer,
        layers=name.layers,
        tower=name.tower,
        num_heads=part.size,
        num_kv_heads=part.size,
        head_dim=1,
        path=part.output,  # the block around it may hold attention, too
        output=part.output,
        original_num_heads=part.size,
        kept=every,
        groups=tuple((neuron,) for neuron in every),
        batch_axis=part.batch_axis,
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model behind `torch.compile` and peft's wrapper."""
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return unwrapped(model._orig_mod)  # type: ignore[arg-type]
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        return unwrapped(model.get_base_model())  # type: ignore[operator]
    return model


def _remembered_sites(model: nn.Module, found: Mapping[str, Site], *, neurons: bool) -> dict[str, Site]:
    """Sites as an earlier pruning recorded them, under this model's paths; emptied ones included."""
    entry = config_entry.read(model)
    if entry is None:
        return {}
    sites = {}
    for site in config_entry.recorded_heads(entry):
        place = config_entry.find_module(model, site.path)
        if site.is_neurons and not neurons:
            continue
        if place is None:
            continue  # a part that this class of the model does not have
        here = found.get(place[0])
        if site.num_heads and here is None:
            continue  # this class has the block but does not run it
        if site.num_heads and here is not None and here.num_heads != site.num_heads:
            raise UnsupportedModelError(
                f"The config says that {site.id} has {site.num_heads} heads left; {here.num_heads} were found at "
                f"{place[0]}. The model was changed after it was pruned, or its config was edited."
            )
        output = place[0].removesuffix(site.path) + site.output
        sites[place[0]] = dataclasses.replace(site, path=place[0], output=output)
    return sites


def _emptied_paths(model: nn.Module) -> list[str]:
    """Blocks that an earlier pruning took all heads from."""
    entry = config_entry.read(model)
    sites = config_entry.recorded_heads(entry) if entry is not None else ()
    places = [config_entry.find_module(model, site.path) for site in sites if not site.num_heads]
    return [place[0] for place in places if place is not None]


def _holds(path: str, emptied: Sequence[str]) -> bool:
    """Whether an emptied block is inside: a layer looks strange without its attention, and the rest of it is sound."""
    return any(block.startswith(f"{path}.") for block in emptied)


def _related(path: str, emptied: str) -> bool:
    """Whether something skipped is the placeholder of an emptied site (or a parent, if that has no weights left)."""
    return f"{path}.".startswith(f"{emptied}.") or f"{emptied}.".startswith(f"{path}.")
