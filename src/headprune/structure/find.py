"""`find_heads`: what a trace of the model showed, as sites with names; with a memory of earlier prunings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from headprune.checkpoint import config_entry
from headprune.errors import ExampleError, HeadpruneError, UnsupportedModelError
from headprune.heads import HeadMap, Site, Skipped
from headprune.hooks import alone_with, paused_gates, settled
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.memory import ModelStructure, known_heads, known_structure, remember_structure
from headprune.structure.neurons import FeedForward, find_feed_forward
from headprune.structure.optional_inputs import fullest, longer_examples
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


def model_structure(model: nn.Module, example: Batch | None = None, *, neurons: bool = False) -> ModelStructure:
    """The heads of a model and where they are in it; remembered as long as the model stays as it is."""
    with settled():  # of two threads that ask, one examines
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
    with alone_with(model, "find_heads"), paused_gates():
        look, own = _looks(model, example, neurons)
    paths = {block.path for block in look.blocks}
    others = [block for block in own.blocks if block.path not in paths]
    attention = _structure(model, look.blocks, others, [], look.skipped, neurons=False)
    if not neurons:
        return attention
    every = _structure(model, look.blocks, others, look.parts, [*look.skipped, *look.without], neurons=True)
    return dataclasses.replace(every, attention=attention)


@dataclass(frozen=True)
class _Look:
    """What one example shows."""

    blocks: list[AttentionBlock]
    skipped: list[Skipped]
    parts: list[FeedForward]
    without: list[Skipped]
    replaced: list[str]

    @property
    def idle(self) -> int:
        return sum(len(block.idle) for block in self.blocks)


def _look(model: nn.Module, inputs: Batch, neurons: bool, *, is_made: bool) -> _Look:
    with traced_run(model, inputs, is_made=is_made) as traced:
        blocks, skipped = attention_blocks(traced)
        closed = [item.path for item in skipped if not _holds(item.path, _emptied_paths(model))]
        parts, without = find_feed_forward(traced, blocks, closed) if neurons else ([], [])
    return _Look(blocks, skipped, parts, without, traced.replaced)


def _own_look(model: nn.Module, inputs: Batch, neurons: bool) -> _Look:
    """By an example of ours: one on which the model stays what it is, with the inputs that all projections need."""
    look = _look(model, inputs, neurons, is_made=True)
    if look.replaced:
        for longer in longer_examples(model):
            look = _look(model, longer, neurons, is_made=True)
            if not look.replaced:
                break
        else:
            raise _replaces_itself(model, look)
    if look.idle:
        fuller = _look(model, fullest(model, inputs), neurons, is_made=True)
        look = fuller if fuller.idle < look.idle and not fuller.replaced else look
    return look


def _looks(model: nn.Module, example: Batch | None, neurons: bool) -> tuple[_Look, _Look]:
    """What the example shows, and what one of ours does: names follow from that, whatever example is given."""
    if example is None or _is_like_ours(model, example):
        look = _own_look(model, example if example is not None else example_inputs(model), neurons)
        return look, look
    look = _look(model, example, neurons, is_made=False)
    try:
        own = _own_look(model, example_inputs(model), neurons)
    except HeadpruneError:  # none can be made: there is only the caller's
        own = look
    if look.replaced and own is look:
        raise _replaces_itself(model, look)
    return (own if look.replaced else _with_own(look, own)), own


def _is_like_ours(model: nn.Module, example: Batch) -> bool:
    """Whether an example has the inputs, and the shapes, of one of ours."""
    try:
        made = example_inputs(model)
    except HeadpruneError:
        return False
    return {name: getattr(value, "shape", None) for name, value in example.items()} == {
        name: getattr(value, "shape", None) for name, value in made.items()
    }


def _with_own(look: _Look, own: _Look) -> _Look:
    """What a block attends to is told by our example, and its projections where the given one leaves some idle."""
    known = {block.path: block for block in own.blocks}
    blocks = []
    for block in look.blocks:
        ours = known.get(block.path, block)
        if len(ours.idle) < len(block.idle) and ours.heads == block.heads:
            block = ours
        blocks.append(dataclasses.replace(block, is_cross=ours.is_cross, is_causal=ours.is_causal))
    return dataclasses.replace(look, blocks=blocks)


def _replaces_itself(model: nn.Module, look: _Look) -> ExampleError:
    return ExampleError(
        f"On this example {type(model).__name__} puts other modules in place of {', '.join(look.replaced[:2])} (it has "
        "another attention for short texts), so that what is seen does not hold for the model. Pass a longer example."
    )


def _structure(
    model: nn.Module,
    blocks: Sequence[AttentionBlock],
    others: Sequence[AttentionBlock],
    parts: Sequence[FeedForward],
    skipped: Sequence[Skipped],
    *,
    neurons: bool,
) -> ModelStructure:
    """Sites with names; `others` are blocks that the example does not run, and count for names all the same."""
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
        for block, name in zip(blocks, name_sites(model, [*blocks, *others]), strict=False)
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
    """The model behind `torch.compile`, peft's wrapper, `DataParallel` and `DistributedDataParallel`."""
    compiled, base = getattr(model, "_orig_mod", None), getattr(model, "get_base_model", None)
    if isinstance(compiled, nn.Module):
        return unwrapped(compiled)
    if hasattr(model, "peft_config") and base is not None:
        return unwrapped(base())
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if any(hasattr(module, "_fsdp_wrapped_module") for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} holds FullyShardedDataParallel modules, which keep their weights in flat pieces. "
            "Find, mask and prune heads before the model is wrapped."
        )
    return model


def _remembered_sites(model: nn.Module, found: Mapping[str, Site], *, neurons: bool) -> dict[str, Site]:
    """Sites as an earlier pruning recorded them, under this model's paths; emptied ones included."""
    sites: dict[str, Site] = {}
    for prefix, part, entry in config_entry.pruned_parts(model):
        recorded = {}
        for site in config_entry.recorded_heads(entry):
            place = config_entry.find_module(part, site.path)
            if place is None or (site.is_neurons and not neurons):
                continue  # a part that this class of the model does not have
            path = f"{prefix}{place[0]}"
            here = found.get(path)
            if site.num_heads and here is None:
                continue  # this class has the block but does not run it
            if site.num_heads and here is not None and here.num_heads != site.num_heads:
                raise UnsupportedModelError(
                    f"The config says that {site.id} has {site.num_heads} heads left; {here.num_heads} were found at "
                    f"{path}. The model was changed after it was pruned, or its config was edited."
                )
            output = path.removesuffix(site.path) + site.output
            recorded[path] = dataclasses.replace(site, path=path, output=output)
        sites |= _named_as_whole(model, prefix, recorded, found) if prefix else recorded
    return sites


def _named_as_whole(
    model: nn.Module, prefix: str, recorded: Mapping[str, Site], found: Mapping[str, Site]
) -> dict[str, Site]:
    """Sites of a pruned model inside another: the numbers of their heads are its own, their names the whole's."""
    if all(found[path].id == site.id for path, site in recorded.items() if path in found) and not found.keys() - {
        *recorded
    }:
        return dict(recorded)
    if emptied := [site.id for site in recorded.values() if not site.num_heads]:
        raise UnsupportedModelError(
            f"{prefix.removesuffix('.')} in {type(model).__name__} was pruned by itself and has sites without heads "
            f"({', '.join(emptied[:3])}), whose names in the whole are not known. Work on that part: "
            f"model.get_submodule('{prefix.removesuffix('.')}')."
        )
    names = ("id", "component", "layer", "layers", "tower")
    return {
        path: dataclasses.replace(site, **{name: getattr(found[path], name) for name in names})
        for path, site in recorded.items()
    }


def _emptied_paths(model: nn.Module) -> list[str]:
    """Blocks that an earlier pruning took all heads from."""
    return [
        f"{prefix}{place[0]}"
        for prefix, part, entry in config_entry.pruned_parts(model)
        for site in config_entry.recorded_heads(entry)
        if not site.num_heads and (place := config_entry.find_module(part, site.path)) is not None
    ]


def _holds(path: str, emptied: Sequence[str]) -> bool:
    """Whether an emptied block is inside: a layer looks strange without its attention, and the rest of it is sound."""
    return any(block.startswith(f"{path}.") for block in emptied)


def _related(path: str, emptied: str) -> bool:
    """Whether something skipped is the placeholder of an emptied site (or a parent, if that has no weights left)."""
    return f"{path}.".startswith(f"{emptied}.") or f"{emptied}.".startswith(f"{path}.")
