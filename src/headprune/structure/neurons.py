"""Find the feed-forward parts of a model: neurons between projections, each by itself.

Neuron i of a part is channel i of what its last projection reads. It depends on channel i of the projections before it
(or on two channels, where one projection makes both a gate and what it lets through) and on nothing else. This is seen
from gradients: if no channel depends on another, flipping signs of what flows back flips the same signs of what
arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headprune.heads import Skipped
from headprune.hooks import Call, HeadFactor, SavedCall, captured_output, scaled_inputs
from headprune.structure import projections
from headprune.structure.run import difference, eval_mode, run_again
from headprune.structure.trace import AttentionBlock, TracedRun, batch_axis, places_in_lists
from headprune.types import Kwargs

LOOK_BACK = 4  # projections before the last one of a part: one, two with a gate, and what else may lie between


@dataclass(frozen=True)
class FeedForward:
    """One feed-forward part as found in the model."""

    path: str  # the smallest called module that holds all of its projections
    output: str  # the projection that reads the neurons
    sources: Mapping[str, str]  # projections that make them -> where the channels of a neuron are (see `channels`)
    size: int
    call: SavedCall  # one call of the block, to run it again
    calls: tuple[int, ...]
    batch_axis: int  # which dimension of what the output reads is the batch


def channels(kind: str, neurons: Sequence[int], size: int) -> list[int]:
    """The channels of a projection that belong to neurons: `one` each, in two `halves`, or in `pairs`."""
    if kind == "one":
        return list(neurons)
    if kind == "halves":
        return [*neurons, *(size + neuron for neuron in neurons)]
    return [2 * neuron + i for neuron in neurons for i in (0, 1)]


def find_feed_forward(
    traced: TracedRun, attention: Sequence[AttentionBlock], closed: Sequence[str]
) -> tuple[list[FeedForward], list[Skipped]]:
    """Every feed-forward part in a layer of the model that runs without one of its neurons; and what does not. Modules
    that are `closed` are not looked into.

    Cost: two backward passes through each part, and three runs of its block.
    """
    taken = {block.output for block in attention} | {path for block in attention for path in block.channels}
    parts, skipped = _parts(traced, taken, closed)
    return parts, [*skipped, *_experts(traced.model)]


def _experts(model: nn.Module) -> list[Skipped]:
    why = "experts that keep all their weights in one tensor: their neurons are not pruned"
    return [
        Skipped(path, why, has_heads=False)
        for path, module in model.named_modules()
        if any(parameter.dim() == 3 for parameter in module.parameters(recurse=False))
        and "expert" in type(module).__name__.lower()
    ]


def _parts(traced: TracedRun, taken: set[str], closed: Sequence[str]) -> tuple[list[FeedForward], list[Skipped]]:
    linear = [call for call in traced.calls if _is_candidate(traced.model, call, taken, closed)]
    found: dict[str, FeedForward] = {}
    skipped: dict[str, Skipped] = {}
    used: set[str] = set()
    for place, call in enumerate(linear):
        if call.path in found:
            found[call.path] = replace(found[call.path], calls=(*found[call.path].calls, call.order))
            continue
        part = _part(call, linear[max(0, place - LOOK_BACK) : place], traced)
        if part is None or call.path in skipped or used & {part.output, *part.sources}:
            continue
        if problem := _problem(traced.model, part):
            skipped[call.path] = Skipped(
                call.path, f"its inputs are not neurons that can go: {problem}", has_heads=False
            )
            continue
        found[call.path] = part
        used |= {part.output, *part.sources}
    return list(found.values()), [item for path, item in skipped.items() if path not in used]


def _problem(model: nn.Module, part: FeedForward) -> str | None:
    """Why the first neuron cannot be removed by itself: what else its block does with the projections."""
    output = model.get_submodule(part.output)
    factor = torch.ones(part.size)
    factor[0] = 0.0
    try:
        with torch.no_grad(), eval_mode(model):
            with captured_output(output) as expected, scaled_inputs({output: HeadFactor(part.output, factor)}):
                run_again(model, part.call)
            with _without_first(model, part), captured_output(output) as answers:
                run_again(model, part.call)
    except Exception as error:  # whatever a forward with other widths stumbles over
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    gap = difference(answers, expected)
    return None if gap.is_small else f"outputs differ by {gap.largest:.1e}"


@contextmanager
def _without_first(model: nn.Module, part: FeedForward) -> Iterator[None]:
    """The weights of a part without its first neuron until the block ends."""
    rest = range(1, part.size)
    kept = {path: channels(kind, rest, part.size) for path, kind in part.sources.items()}
    before: list[tuple[nn.Module, Kwargs, Kwargs]] = []
    try:
        for path, keep in (*kept.items(), (part.output, list(rest))):
            module: Any = model.get_submodule(path)
            layout = projections.layout(module)
            assert layout is not None, "only plain projections are candidates"
            is_output = path == part.output
            name = layout.in_name if is_output else layout.out_name
            before.append((module, dict(module._parameters), {name: vars(module).get(name)}))
            index = torch.tensor(keep, device=module.weight.device)
            dim = layout.in_dim if is_output else layout.out_dim
            module._parameters["weight"] = nn.Parameter(module.weight.index_select(dim, index), requires_grad=False)
            if not is_output and module._parameters.get("bias") is not None:
                module._parameters["bias"] = nn.Parameter(module.bias[index], requires_grad=False)
            if type(vars(module).get(name)) is int:
                setattr(module, name, len(keep))
        yield
    finally:
        for module, parameters, counts in before:
            module._parameters.update(parameters)
            vars(module).update({name: value for name, value in counts.items() if value is not None})


def _is_candidate(model: nn.Module, call: Call, taken: set[str], closed: Iterable[str]) -> bool:
    if projections.layout(call.module) is None or call.path in taken or not call.args:
        return False
    if any(f"{call.path}.".startswith(f"{path}.") for path in closed) or not places_in_lists(model, call.path):
        return False  # a pooler or a classifier is not a feed-forward part of a layer
    tensors = (call.args[0], call.output)
    return all(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


def _part(output: Call, before: Sequence[Call], traced: TracedRun) -> FeedForward | None:
    neurons: Tensor = output.args[0]
    size = neurons.shape[-1]
    sources = {call.path: kind for call in before if (kind := _kind(neurons, call.output)) is not None}
    if not sources or size < 2:
        return None
    first = min(call.order for call in before if call.path in sources)
    around = [
        call
        for call in traced.calls
        if call.order < first and all(f"{path}.".startswith(f"{call.path}.") for path in (output.path, *sources))
    ]
    if not around:
        return None
    block = max(around, key=lambda call: (len(call.path), call.order))
    axis = batch_axis(neurons, traced.inputs)
    return FeedForward(block.path, output.path, sources, size, block.saved(), (output.order,), axis)


def _kind(neurons: Tensor, made: Tensor) -> str | None:
    """How neurons depend on the channels of a projection; None if they do not, or not one by one."""
    size, width = neurons.shape[-1], made.shape[-1]
    if width not in (size, 2 * size):
        return None
    generator = torch.Generator().manual_seed(0)
    back = torch.randn(neurons.shape, generator=generator).to(neurons)
    signs = (torch.randint(0, 2, (size,), generator=generator) * 2 - 1).to(neurons)
    (plain,) = torch.autograd.grad(neurons, made, back, retain_graph=True, allow_unused=True)
    if plain is None or not bool(plain.any()):
        return None
    (flipped,) = torch.autograd.grad(neurons, made, back * signs, retain_graph=True)
    kinds = {"one": signs} if width == size else {"halves": signs.repeat(2), "pairs": signs.repeat_interleave(2)}
    for kind, pattern in kinds.items():
        expected = plain * pattern.to(plain)  # which a model that mixes precisions has in another type than its neurons
        if torch.allclose(flipped, expected, rtol=1e-4, atol=1e-6 * float(plain.abs().max())):
            return kind
    return None
