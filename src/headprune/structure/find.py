"""`find_heads`: what a trace of the model showed, as sites with names; remembered until the model changes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.errors import ExampleError, HeadpruneError, UnsupportedModelError
from headprune.heads import HeadMap, Site, Skipped
from headprune.hooks import JoinedHeads, alone_with, paused_gates, settled
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.equal_layers import EqualLayers
from headprune.structure.neurons import FeedForward, find_feed_forward
from headprune.structure.optional_inputs import fullest, longer_examples
from headprune.structure.run import unwrapped
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
    with settled():
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
        quick = _look_at_firsts(model, neurons) if example is None else None
        look, own = _looks(model, example, neurons) if quick is None else (quick, quick)
    paths = {block.path for block in look.blocks}
    others = [block for block in own.blocks if block.path not in paths]
    return _whole_structure(model, look, others, neurons=neurons)


def _whole_structure(
    model: nn.Module, look: _Look, others: Sequence[AttentionBlock], *, neurons: bool
) -> ModelStructure:
    attention = _structure(model, look.blocks, others, [], look.skipped, neurons=False)
    attention = dataclasses.replace(attention, equal=look.equal)
    if not neurons:
        return attention
    every = _structure(model, look.blocks, others, look.parts, [*look.skipped, *look.without], neurons=True)
    return dataclasses.replace(every, attention=attention, equal=look.equal)


@dataclass(frozen=True)
class _Look:
    """What one example shows."""

    blocks: list[AttentionBlock]
    skipped: list[Skipped]
    parts: list[FeedForward]
    without: list[Skipped]
    replaced: list[str]
    equal: EqualLayers | None = None

    @property
    def idle(self) -> int:
        return sum(len(block.idle) for block in self.blocks)


def _look(model: nn.Module, inputs: Batch, neurons: bool, *, is_made: bool) -> _Look:
    with traced_run(model, inputs, is_made=is_made) as traced:
        blocks, skipped = attention_blocks(traced)
        closed = [item.path for item in skipped if not _holds(item.path, config_entry.emptied_paths(model))]
        parts, without = find_feed_forward(traced, blocks, closed) if neurons else ([], [])
    return _Look(blocks, skipped, parts, without, traced.replaced)


def structure_of_firsts(model: nn.Module, equal: EqualLayers) -> ModelStructure:
    """The structure, neurons included, of a model of which only the layers that stand for others need have weights."""
    look = _look_at_firsts(model, True, equal)
    if look is None or not (look.blocks or look.parts):
        why = look.skipped[0].reason if look is not None and look.skipped else "one layer does not tell of the others"
        raise UnsupportedModelError(f"{type(model).__name__} is not understood layer by layer: {why}.")
    return _whole_structure(model, look, [], neurons=True)


def _look_at_firsts(model: nn.Module, neurons: bool, equal: EqualLayers | None = None) -> _Look | None:
    """By one layer of each kind, where that is enough: nothing of the model is special."""
    if config_entry.pruned_parts(model):
        return None
    inputs = example_inputs(model)
    equal = equal or EqualLayers.of(model, inputs)
    if equal is None or (2 * len(equal.firsts) > len(equal.paths) and not equal.is_all_there_is):
        return None
    try:
        with equal.firsts_alone(model):
            look = _look(model, inputs, neurons, is_made=True)
    except ExampleError:
        return None
    found = [*(block.path for block in look.blocks), *(part.output for part in look.parts)]
    if look.replaced or look.idle or not all(map(equal.holds, found)):
        return None
    skipped, without = equal.skipped(look.skipped), equal.skipped(look.without)
    return _Look(equal.blocks(look.blocks), skipped, equal.parts(look.parts), without, [], equal)


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
    sites |= config_entry.remembered_sites(model, sites, neurons=neurons)
    config_entry.check_recorded(model, sites)
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


def _holds(path: str, emptied: Sequence[str]) -> bool:
    """Whether an emptied block is inside: a layer looks strange without its attention, and the rest of it is sound."""
    return any(block.startswith(f"{path}.") for block in emptied)


def _related(path: str, emptied: str) -> bool:
    """Whether something skipped is the placeholder of an emptied site (or a parent, if that has no weights left)."""
    return f"{path}.".startswith(f"{emptied}.") or f"{emptied}.".startswith(f"{path}.")


MOST_BYTES = 1 << 26  # that the recorded calls of one model may hold: an example of ours is far smaller


@dataclass(frozen=True)
class ModelStructure:
    """The heads of a model together with the block of each site (emptied sites have none).

    Blocks are named by their paths, so that it holds for a copy of the model, too. Besides, it keeps the inputs that
    each block received, without their history: no autograd graph lives on in it.
    """

    heads: HeadMap
    blocks: Mapping[str, AttentionBlock]
    feed_forward: Mapping[str, FeedForward] = field(default_factory=dict)  # of neurons, if they were asked for
    attention: ModelStructure | None = None  # the same without neurons, then
    equal: EqualLayers | None = None  # layers of which one stands for others

    def is_light(self) -> bool:
        """Whether it may be kept: what blocks received is small, and free of history."""
        calls = [*(block.call for block in self.blocks.values()), *(part.call for part in self.feed_forward.values())]
        held = {t.untyped_storage()._cdata: t for call in calls for t in _tensors((call.args, call.kwargs))}
        total = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
        return total <= MOST_BYTES and not any(tensor.grad_fn is not None for tensor in held.values())


def _tensors(value: object, depth: int = 5) -> Iterator[Tensor]:
    """Also those inside objects of the model's own making."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from _tensors(vars(value), depth - 1)


@dataclass(frozen=True)
class _Found:
    """Heads, and if they are known the blocks, of a model in a certain state."""

    fingerprint: int
    heads: Mapping[bool, HeadMap]  # with neurons and without, as far as it is known
    structures: Mapping[bool, ModelStructure] = field(default_factory=dict)
    example: tuple[tuple[str, object], ...] | None = None  # names and weak references; None if it was made here


_found: weakref.WeakKeyDictionary[nn.Module, _Found] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, heads: HeadMap) -> None:
    """Save the next `find_heads` its work; what else was known of the model is forgotten."""
    every = {False: heads} if heads.attention is heads else {False: heads.attention, True: heads}
    _found[model] = _Found(_fingerprint(model), every)


def remember_structure(model: nn.Module, structure: ModelStructure, example: Batch | None) -> None:
    """Save whoever asks next an examination."""
    every = {False: structure.attention or structure, **({True: structure} if structure.attention else {})}
    heads = {neurons: one.heads for neurons, one in every.items()}
    _found[model] = _Found(_fingerprint(model), heads, every if structure.is_light() else {}, _reference(example))


def known_heads(model: nn.Module, *, neurons: bool) -> HeadMap | None:
    """What `find_heads` said of the model as it is."""
    found = _valid(model)
    return found.heads.get(neurons) if found is not None else None


def known_structure(model: nn.Module, example: Batch | None, *, neurons: bool) -> ModelStructure | None:
    """What an examination found, by this example if one is given."""
    found = _valid(model)
    if found is None or (example is not None and not _is_same(found.example, example)):
        return None
    return found.structures.get(neurons)


def forget(model: nn.Module) -> None:
    _found.pop(model, None)


def _valid(model: nn.Module) -> _Found | None:
    found = _found.get(model)
    if found is not None and found.fingerprint != _fingerprint(model):
        forget(model)
        return None
    return found


def _reference(example: Batch | None) -> tuple[tuple[str, object], ...] | None:
    if example is None:
        return None
    return tuple((name, weakref.ref(x) if isinstance(x, Tensor) else x) for name, x in example.items())


def _is_same(known: tuple[tuple[str, object], ...] | None, example: Batch) -> bool:
    if known is None or [name for name, _ in known] != list(example):
        return False
    before = [value() if isinstance(value, weakref.ref) else value for _, value in known]
    return all(old is new for old, new in zip(before, example.values(), strict=True))


def _fingerprint(model: nn.Module) -> int:
    """Changes whenever a module or the shape, type or place of a weight does, or what computes attention."""
    parts: list[object] = []
    for name, module in model.named_modules():
        if isinstance(module, JoinedHeads):
            continue  # it comes and goes with blocks of code, of other threads, too
        weights = tuple((n, p.shape, p.dtype, p.device) for n, p in module._parameters.items() if p is not None)
        config = vars(module).get("config")
        parts.append((name, id(module), type(module), weights, getattr(config, "_attn_implementation", None)))
    return hash((tuple(parts), torch.get_default_dtype()))
