"""Ways through a model that is repaired: layer by layer in a stack of layers, else site by site in the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headprune.heads import HeadMap, HeadMask, Site
from headprune.hooks import NotAStackError
from headprune.recovery.sequential import SequentialMoments
from headprune.recovery.stream import Streams
from headprune.scoring.context import ScoringContext
from headprune.scoring.layerwise import LayerStates
from headprune.types import Batch

HELD = 4  # of so many batches one is held out, for repairs that judge a fit on rows that it did not see


def held_batches(count: int) -> range:
    """Which of so many batches are held out: every fourth, none of fewer."""
    return range(HELD - 1, count, HELD)


def walks(
    context: ScoringContext,
    losing: Sequence[Site],
    batches: Sequence[Batch],
    mask: HeadMask,
    *,
    looks_at_stream: bool = False,
    holds_out: bool = False,
) -> Iterator[SequentialMoments]:
    """Moments of the sites that lose heads, in the model's order. Between two of what is given here, the caller fits
    the sites of the first."""
    held = held_batches(len(batches)) if looks_at_stream or holds_out else range(0)
    try:
        states = LayerStates.before_first(context, batches)
        states.check()
    except NotAStackError:
        streams = Streams.of(context, losing, batches) if looks_at_stream else None
        yield SequentialMoments(context, losing, batches, mask, streams=streams, held=held)
        return
    whole = replace(states, states=list(states.states)) if looks_at_stream else None
    orders: dict[tuple[str, ...], dict[str, int]] = {}  # of sites in a layer, by what they are called in it
    left = {site.id for site in losing}
    while left:
        yield from _walk_of_layer(states, whole, left, mask, held, orders)


def _walk_of_layer(
    states: LayerStates,
    whole: LayerStates | None,
    left: set[str],
    mask: HeadMask,
    held: Sequence[int],
    orders: dict[tuple[str, ...], dict[str, int]],
) -> Iterator[SequentialMoments]:
    """The sites of one layer; then the states are behind it. `left` are the sites still to come."""
    layer = states.layer_context()
    sites = [site for site in layer.heads if site.id in left]
    if not sites:
        states.advance()
        if whole is not None:
            whole.advance()
        return
    batches = list(layer.batches)
    streams = None
    if whole is not None:
        undamaged = whole.layer_context()
        streams = Streams.of(undamaged, sites, list(undamaged.batches))
        whole.advance()
    names = tuple(site.output.removeprefix(states.path) for site in sites)
    calls = _named(orders.get(names), sites, states.path)
    sequence = SequentialMoments(
        layer, sites, batches, part_of(mask, layer.heads), streams=streams, held=held, calls=calls
    )
    yield sequence
    orders[names] = {layer.heads[site].output.removeprefix(states.path): n for site, n in sequence.calls.items()}
    left -= {site.id for site in sites}
    if left:
        states.advance(sequence.answer)


def part_of(mask: HeadMask, heads: HeadMap) -> HeadMask:
    """A mask of some sites of a model."""
    return HeadMask.from_dict(heads, {site.id: list(mask.kept(site.id)) for site in heads})


def _named(known: Mapping[str, int] | None, sites: Sequence[Site], path: str) -> dict[str, int] | None:
    """The order that was seen in a layer with the same sites, by the names of these."""
    if known is None:
        return None
    by_name = {site.output.removeprefix(path): site.id for site in sites}
    return {by_name[name]: count for name, count in known.items()}
