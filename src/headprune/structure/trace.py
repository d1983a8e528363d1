"""Find every softmax attention block of a model, and what in it belongs to which head.

One forward pass on an example is watched with gradients on. Whatever is reported was seen on the model in hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headprune.errors import ExampleError
from headprune.heads import Skipped
from headprune.hooks import AttentionEvent, Call, SavedCall, watched
from headprune.structure import projections
from headprune.structure.adapters import AROUND, NO_SOFTMAX, Adapter, adapter_for
from headprune.structure.optional_inputs import unused_inputs
from headprune.structure.projections import (
    Backward,
    Reach,
    parameter_owners,
    reaches,
    reaches_of_entries,
    role_channels,
)
from headprune.structure.run import free_gradients, run, same_attributes
from headprune.types import Batch


@dataclass(frozen=True)
class AttentionBlock:
    """One attention block as found in the model."""

    path: str  # the smallest called module that holds both the attention and its output projection
    attention: str  # the module in whose forward attention is computed
    output: str  # the output projection
    heads: int
    maps: int  # attention maps that make one head: 2 in differential attention
    head_dim: int
    call: SavedCall  # one call of the block, to run it again
    channels: Mapping[str, Tensor]  # projection -> (heads, channels): who uses each of its output channels
    parameters: Mapping[str, tuple[int, Tensor]]  # bare parameter -> dimension, (heads, entries)
    roles: Mapping[str, Mapping[str, list[Tensor]]]  # projection -> query, key, value -> channels of each head
    groups: tuple[tuple[int, ...], ...]  # heads that share keys and values
    is_cross: bool
    is_causal: bool
    calls: tuple[int, ...]  # when attention ran in this block: several times if the module is shared
    batch_axis: int  # which dimension of the output projection's input is the batch
    adapter: Adapter
    idle: tuple[str, ...] = ()  # projections as wide as its heads that the example does not run
    idle_without: tuple[str, ...] = ()  # inputs that the model takes and the example does not have, if some are idle


ROWS = 8  # positions that are asked whether they see later ones


class _CannotUseError(Exception):
    """Why one block is left alone."""


@dataclass(frozen=True)
class TracedRun:
    """One watched forward pass on an example, as long as gradients can flow back through it."""

    model: nn.Module
    inputs: Batch
    calls: list[Call]  # in the order in which they began
    events: list[AttentionEvent]
    replaced: list[str]  # modules that the model put others in place of: what was seen does not hold for it


@contextmanager
def traced_run(model: nn.Module, inputs: Batch, *, is_made: bool) -> Iterator[TracedRun]:
    """Run the model once, with gradients on; afterwards it is as it was."""
    with free_gradients(model), same_attributes(model) as state:
        with watched(model) as watch:
            run(model, inputs, is_made=is_made, keep_state=False)
        calls = sorted(watch.calls, key=lambda call: call.order)
        yield TracedRun(model, inputs, calls, watch.events, state.replaced_modules())


def attention_blocks(traced: TracedRun) -> tuple[list[AttentionBlock], list[Skipped]]:
    """Every attention that ran, taken apart; and what was not understood."""
    by_path: dict[str, list[AttentionEvent]] = {}
    for event in traced.events:
        by_path.setdefault(event.path, []).append(event)
    blocks, skipped = [], []
    for path, events in by_path.items():
        adapter = adapter_for(traced.model.get_submodule(path))
        if adapter.other or adapter.paired:
            skipped.append(Skipped(path, adapter.other or adapter.paired, has_heads=bool(adapter.paired)))
            continue
        try:
            blocks.append(_attention_block(traced, events))
        except _CannotUseError as reason:
            skipped.append(Skipped(path, adapter.unseen or str(reason)))
    skipped += _without_softmax(traced.calls, seen=set(by_path))
    outputs = [block.output for block in blocks]
    for block in list(blocks):
        if outputs.count(block.output) > 1:  # two attentions summed into one projection have no slices of their own
            blocks.remove(block)
            skipped.append(Skipped(block.attention, f"several attentions share the projection {block.output}"))
    return blocks, skipped


def _without_softmax(calls: list[Call], seen: set[str]) -> list[Skipped]:
    """What mixes positions in another way, and attention that cannot be watched; the outermost module of each."""
    found: dict[str, Skipped] = {}
    for call in calls:
        name = type(call.module).__name__
        if any(_inside(call.path, path) for path in found) or any(_inside(path, call.path) for path in seen):
            continue
        if unseen := adapter_for(call.module).unseen:
            found[call.path] = Skipped(call.path, unseen)
        elif NO_SOFTMAX.search(name) and not AROUND.search(name):
            reason = adapter_for(call.module).other or f"{name} mixes positions without a softmax"
            found[call.path] = Skipped(call.path, reason, has_heads=False)
    return list(found.values())


def _attention_block(traced: TracedRun, events: list[AttentionEvent]) -> AttentionBlock:
    event, calls = events[0], traced.calls
    output = _output_projection(event, calls)
    context: Tensor = output.args[0]
    around = _around(event, output, calls)
    backward, maps, reached = _by_heads(event, output, _inner_projections(around, output, calls), traced.inputs)
    if not around:
        raise _CannotUseError(f"no called module holds both it and its output projection {output.path}")
    block = around[0]
    inside_one_call = event.key_input is not None  # nn.MultiheadAttention keeps its projections to itself
    if len(around) > 1 and backward.heads > 1 and not inside_one_call and not _any_separate(reached):
        # Where no projection belongs to single heads (DAB-DETR projects outside its attention), the module around that.
        wider = _inner_projections(around[1:], output, calls)
        found = _reached(wider, reaches(backward, [call.output for call in wider]))
        if _any_separate(found):
            block, reached = around[1], found
    if (
        reached
        and event.key_input is None
        and all(_has_one_position(call.output, traced.inputs) for call, _ in reached)
    ):
        raise ExampleError(
            f"On this example {event.path} sees one position only, so its keys cannot be told from its queries. "
            "Pass an example with at least 2 positions."
        )
    by_projection: dict[str, Reach] = {}
    for call, reach in reached:  # one that is called twice, for the keys of two sources, counts once
        known = by_projection.get(call.path)
        by_projection[call.path] = known.with_another(reach) if known is not None else reach
    channels = {path: reach.owners for path, reach in by_projection.items()}
    roles = {path: role_channels(backward, reach) for path, reach in by_projection.items()}
    key_reach = None
    if event.key_input is not None and event.key_input.requires_grad:
        (key_reach,) = reaches(backward, [event.key_input])
    groups = _groups(backward.heads, by_projection, roles)
    queries = _query_inputs(reached, context)
    adapter = adapter_for(traced.model.get_submodule(event.path))
    parameters = _bare_parameters(block, output, channels, backward, groups, adapter)
    idle = _idle_projections(traced, event, output, channels, parameters)
    return AttentionBlock(
        path=block.path,
        attention=event.path,
        output=output.path,
        heads=backward.heads,
        maps=maps,
        head_dim=context.shape[-1] // backward.heads,
        call=block.saved(),
        channels=channels,
        parameters=parameters,
        roles=roles,
        groups=groups,
        is_cross=not event.query_is_key if event.key_input is not None else _is_cross(reached, queries),
        is_causal=_is_causal(reached, queries, key_reach) and _stays_causal(traced, event, backward, reached),
        calls=tuple(e.order for e in events),
        batch_axis=batch_axis(context, traced.inputs),
        adapter=adapter,
        idle=idle,
        idle_without=tuple(unused_inputs(traced.model, traced.inputs)) if idle else (),
    )


def _has_one_position(output: Tensor, inputs: Batch) -> bool:
    examples = next((len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()), 1)
    return output.shape[-2] == 1 and output[..., 0].numel() <= examples  # Longformer has positions before examples


def _idle_projections(
    traced: TracedRun,
    event: AttentionEvent,
    output: Call,
    channels: Mapping[str, Tensor],
    parameters: Mapping[str, tuple[int, Tensor]],
) -> tuple[str, ...]:
    """Projections of the attention that are as wide as those of its heads and did not run: they are for other inputs
    (global attention, entities), and would stay as they are while the others are cut."""
    ran = {call.path for call in traced.calls}
    widths = {owners.shape[1] for owners in channels.values() if not bool(owners.all())}
    found = []
    for name, module in traced.model.get_submodule(event.path).named_modules():
        path = ".".join(filter(None, (event.path, name)))
        shape = projections.layout(module)
        if shape is None or path in ran or path == output.path or f"{path}.weight" in parameters:
            continue
        if projections.weight(module).shape[shape.out_dim] in widths:
            found.append(path)
    return tuple(found)


def _stays_causal(
    traced: TracedRun, event: AttentionEvent, backward: Backward, reached: list[tuple[Call, Reach]]
) -> bool:
    """Whether no other position sees a later one either: the first may be alone in its window. Where none sees any
    other, the module says itself what it is."""
    outputs = [call.output for call, _ in reached]
    sees_others = False
    step = max(1, (backward.last - backward.first) // ROWS)
    for row in range(backward.first, backward.last + 1, step) if outputs else ():
        for output, grad in zip(outputs, backward.of_row(row, outputs), strict=True):
            if grad is None or output[..., 0].numel() != backward.context[..., 0].numel():
                continue  # of another text
            rows = (grad != 0).reshape(-1, output.shape[-1]).any(1).nonzero().flatten()
            if len(rows) and int(rows[-1]) > row:
                return False
            sees_others = sees_others or len(rows) > 1
    if sees_others or not outputs:
        return True
    return bool(getattr(traced.model.get_submodule(event.path), "is_causal", True))


def _by_heads(
    event: AttentionEvent, output: Call, inner: list[Call], inputs: Batch
) -> tuple[Backward, int, list[tuple[Call, Reach]]]:
    """Gradients by head, where the output projection receives one slice for each; the attention maps of a head; and
    which of the projections before it heads depend on."""
    context: Tensor = output.args[0]
    candidates = [(axis, event.tensor.shape[axis]) for axis in event.axes]
    candidates.sort(key=lambda candidate: candidate[1] == 1)  # one entry is all there is: it proves nothing
    differences = [(axis, size // 2) for axis, size in candidates if size > 2 and size % 2 == 0]  # of two maps
    for axis, heads in candidates + differences:
        if context.shape[-1] % heads:
            continue
        backward = Backward(context, heads, rows=_real_rows(context, inputs))
        found = reaches_of_entries(backward, event.tensor, axis, [call.output for call in inner])
        if found is not None:
            return backward, event.tensor.shape[axis] // heads, _reached(inner, found)
    raise _CannotUseError(
        f"the first linear layer that receives its result, {output.path}, does not get one slice per head: something "
        "(a norm, a convolution, experts, another attention) mixes heads before it"
    )


def _output_projection(event: AttentionEvent, calls: list[Call]) -> Call:
    """The first projection after the attention whose input depends on its result."""
    for call in calls:
        if call.order < event.order or not projections.is_projection(call.module):
            continue
        inputs = call.args[0] if call.args else None
        if not isinstance(inputs, Tensor) or not inputs.requires_grad:
            continue
        (grad,) = torch.autograd.grad(
            inputs, event.tensor, torch.ones_like(inputs), retain_graph=True, allow_unused=True
        )
        if grad is not None:
            return call
    raise _CannotUseError("no linear projection receives its result")


def _around(event: AttentionEvent, output: Call, calls: list[Call]) -> list[Call]:
    """The modules around both the attention and the output projection, the smallest first."""
    around: dict[str, Call] = {}
    for call in calls:
        if call.order < event.order and _inside(event.path, call.path) and _inside(output.path, call.path):
            around[call.path] = call
    return sorted(around.values(), key=lambda call: -len(call.path))


def _inner_projections(around: list[Call], output: Call, calls: list[Call]) -> list[Call]:
    """The projections inside the first of these modules that ran before the output projection."""
    if not around:
        return []
    block = around[0]
    inner = [
        call
        for call in calls
        if block.order < call.order < output.order
        and _inside(call.path, block.path)
        and projections.is_projection(call.module)
        and isinstance(call.output, Tensor)
        and call.output.requires_grad
    ]
    paths = {call.path for call in inner}
    return [call for call in inner if not any(_inside(call.path, path) for path in paths - {call.path})]


def _any_separate(reached: list[tuple[Call, Reach]]) -> bool:
    return any(not bool(reach.owners.all()) for _, reach in reached)


def _reached(inner: list[Call], found: list[Reach | None]) -> list[tuple[Call, Reach]]:
    """The projections that some head depends on."""
    return [(call, reach) for call, reach in zip(inner, found, strict=True) if reach is not None]


def _bare_parameters(
    block: Call,
    output: Call,
    channels: Mapping[str, Tensor],
    backward: Backward,
    groups: tuple[tuple[int, ...], ...],
    adapter: Adapter,
) -> dict[str, tuple[int, Tensor]]:
    """Parameters of the block outside its projections that have entries per head (sinks, tables, packed weights)."""
    names, tensors = [], []
    for name, parameter in block.module.named_parameters():
        path = f"{block.path}.{name}" if block.path else name
        owner, _, _ = path.rpartition(".")
        if any(_inside(owner, projection) for projection in (*channels, output.path)):
            continue
        if any(part in adapter.keep_whole for part in path.split(".")) or not parameter.is_floating_point():
            continue
        names.append(path)
        tensors.append(parameter)
    found = {
        name: owners
        for name, owners in zip(names, parameter_owners(backward, tensors, groups) if tensors else [], strict=True)
        if owners is not None
    }
    for name, dim in adapter.bare.items():
        found[f"{block.path}.{name}"] = (dim, torch.eye(backward.heads, dtype=torch.bool))
    for name in names:  # key biases get no gradient, so a bias follows its weight
        weight = name.removesuffix("bias") + "weight"
        if name.endswith("bias") and weight in found and found[weight][0] == 0:
            found[name] = found[weight]
        parts = [name.replace("in_proj_bias", f"{part}_proj_weight") for part in "qkv"]
        if name.endswith("in_proj_bias") and all(part in found and found[part][0] == 0 for part in parts):
            found[name] = (0, torch.cat([found[part][1] for part in parts], dim=1))  # one bias for three weights
    return found


def _groups(
    heads: int, reached: Mapping[str, Reach], roles: Mapping[str, Mapping[str, list[Tensor]]]
) -> tuple[tuple[int, ...], ...]:
    """Heads that read the same values; where values cannot be told apart, the finest owner sets of what is shared."""
    shared = {path: reach.spread > 1 for path, reach in reached.items()}
    for path, found in roles.items():
        if "value" in found:
            marked = torch.zeros_like(reached[path].spread, dtype=torch.bool)
            marked[torch.cat(found["value"])] = True
            shared = {path: marked}
            break
    columns = [reached[path].owners[:, marked].T for path, marked in shared.items()]  # (channels, heads) each
    kinds = torch.unique_consecutive(torch.cat(columns), dim=0) if columns else torch.zeros(0, heads)
    sets = {tuple(row.nonzero().flatten().tolist()) for row in kinds} - {()}
    partition: list[tuple[int, ...]] = []
    for members in sorted(sets, key=len):
        if not any(set(members) & set(group) for group in partition):
            partition.append(members)
    if sorted(head for group in partition for head in group) != list(range(heads)):
        return tuple((head,) for head in range(heads))
    return tuple(sorted(partition))


def _query_inputs(reached: list[tuple[Call, Reach]], context: Tensor) -> list[Tensor]:
    """What queries are projected from: they act on their own position only, and every position has one."""
    positions = context[..., 0].numel()
    return [
        call.args[0]
        for call, reach in reached
        if int(reach.spread.max()) == 1 and call.output[..., 0].numel() >= positions
    ]


def _is_cross(reached: list[tuple[Call, Reach]], queries: list[Tensor]) -> bool:
    """Whether keys and values are projected from another tensor than the queries."""
    others = [call.args[0] for call, reach in reached if int(reach.spread.max()) > 1]
    return bool(queries and others) and not any(query is other for query in queries for other in others)


def _is_causal(reached: list[tuple[Call, Reach]], queries: list[Tensor], key_reach: Reach | None) -> bool:
    """Whether the first position sees no later one of its own text; T5Gemma 2 looks at the encoder's, too."""
    own = [reach for call, reach in reached if any(call.args[0] is query for query in queries)]
    seen = own if any(int(reach.spread.max()) > 1 for reach in own) else [reach for _, reach in reached]
    rows = [reach.later_rows for reach in [*seen, *([key_reach] if key_reach else [])] if len(reach.later_rows)]
    return bool(rows) and not any(bool(row.any()) for row in rows)


def _real_rows(context: Tensor, inputs: Batch) -> tuple[int, int]:
    """The first and the last position that is not padding, in the flattened (batch, positions)."""
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and tuple(context.shape[:2]) == tuple(mask.shape):
        real = mask.flatten().nonzero().flatten()
        return int(real[0]), int(real[-1])
    return 0, context.numel() // context.shape[-1] - 1


def batch_axis(context: Tensor, inputs: Batch) -> int:
    """1 where positions come before examples (FSMT), else 0; 0 too where an example of the caller's cannot tell."""
    rows = next((len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()), 0)
    return int(context.dim() == 3 and context.shape[0] != rows and context.shape[1] == rows)


def _inside(path: str, ancestor: str) -> bool:
    return ancestor == "" or path == ancestor or path.startswith(ancestor + ".")


def places_in_lists(model: nn.Module, path: str) -> list[tuple[str, int]]:
    """Every (list of modules, index in it) on the way to a module."""
    found, module, walked = [], model, ""
    for part in path.split("."):
        if isinstance(module, nn.ModuleList | nn.Sequential) and part.isdecimal():
            found.append((walked, int(part)))
        module = getattr(module, part)
        walked = f"{walked}.{part}" if walked else part
    return found
