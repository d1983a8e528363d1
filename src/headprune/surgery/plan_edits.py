"""From a cut to edits: which entries of which tensors go, and which counts must follow."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.hooks import (
    JoinedHeads,
    SlicedArgument,
    SlicedMultihead,
    Width,
    arguments_sliced_by,
    called_projections,
    captured_input,
    width_followed_by,
)
from headprune.structure import projections
from headprune.structure.adapters import adapter_for
from headprune.structure.dummy_inputs import value_of
from headprune.structure.projections import Backward
from headprune.structure.run import same_draws
from headprune.structure.trace import AttentionBlock
from headprune.surgery.edits import Attention, Cut, Edits, Slice, Stub


def site_edits(model: nn.Module, block: AttentionBlock, cut: Cut, *, skip_bias: bool) -> Edits:
    """The tensors of a site, cut. Counts are not repaired yet."""
    edits = Edits()
    where = f"{cut.site.id} ({block.path})"
    adapter = block.adapter
    if adapter.bias_of_all_heads and not adapter.unfused and not _calls_interface(model, block):
        raise UnsupportedModelError(
            f"{where} cannot be pruned with this version of transformers: its position bias is added where headprune "
            "cannot cut it. Update transformers to 5.15 or newer."
        )
    for path in (*block.channels, block.output):
        reason = projections.why_not_sliceable(model.get_submodule(path))
        if reason:
            raise UnsupportedModelError(f"{where} cannot be pruned: {path}: {reason}")
    for path, owners in block.channels.items():
        if cut.is_empty and bool(owners.all()) and isinstance(_parent(model, path), nn.Sequential):
            continue  # the first layer of a small network for position biases: Swin v2 asks it for its dtype
        _cut_projection(
            edits, model.get_submodule(path), path, _kept_channels(owners, cut, where), owners.shape[1], cut
        )
    for path, (dim, owners) in block.parameters.items():
        module, _, name = path.rpartition(".")
        keep = _completed(owners)[cut.positions].any(0).nonzero().flatten().tolist()
        edits.slices.setdefault(module, {})[name] = Slice(dim, owners.shape[1], tuple(keep), cut.is_empty)
        if name == "weight" and isinstance(model.get_submodule(module), nn.modules.batchnorm._BatchNorm):
            _cut_running_statistics(edits, module, tuple(keep), owners.shape[1])
    _cut_output(edits, model.get_submodule(block.output), block, cut, skip_bias)
    if isinstance(model.get_submodule(block.attention), nn.MultiheadAttention):
        edits.multihead.add(block.attention)
    if block.adapter.bias_of_all_heads or (cut.is_empty and _calls_interface(model, block)):
        bias_heads = (cut.kept or cut.site.kept[:1]) if block.adapter.bias_of_all_heads else None
        edits.attention[block.attention] = Attention(cut.is_empty, bias_heads, adapter.unfused)
    if adapter_for(model.get_submodule(block.path)).rebuilds:
        width = len(cut.positions) * block.head_dim  # by which it divides
        edits.configs[block.path] = {**_config_counts(model, block.path, block, cut), "hidden_size": width}
    return edits


def _parent(model: nn.Module, path: str) -> nn.Module:
    return model.get_submodule(path.rpartition(".")[0])


def coupling(model: nn.Module, block: AttentionBlock) -> str | None:
    """Why a block cannot be cut, if it can be named: a norm over all heads, a projection that no head depends on."""
    widths = {len(block.groups) * block.head_dim, block.heads * block.head_dim}
    widths |= {owners.shape[1] for owners in block.channels.values()}
    for name, module in model.get_submodule(block.path).named_modules():
        path = f"{block.path}.{name}"
        weight = getattr(module, "weight", None)
        if path in block.channels or path == block.output or not isinstance(weight, Tensor):
            continue
        is_norm = "Norm" in type(module).__name__ and not isinstance(module, nn.modules.batchnorm._BatchNorm)
        if is_norm and weight.shape[-1] in widths and weight.shape[-1] > block.head_dim:
            return f"{name} normalises the heads together, so that without one of them the others change"
        layout = projections.layout(module)
        if layout is not None and weight.shape[layout.out_dim] in widths:
            return f"{name} has no effect on the example, so that it is not known which of it belongs to which head"
    return None


def sliced_arguments(model: nn.Module, block: AttentionBlock, cut: Cut) -> tuple[SlicedArgument, ...]:
    """Arguments of the block that hold one entry per head (ALiBi, position biases made elsewhere), by gradients."""
    if block.adapter.bias_of_all_heads:
        return ()  # cut inside the attention function
    kept = cut.kept or cut.site.kept[:1]
    module, call = model.get_submodule(block.path), block.call
    known_arguments = arguments_sliced_by(module) if cut.is_again else None  # an earlier pruning found them
    if known_arguments is not None:
        return tuple(dataclasses.replace(argument, kept=kept) for argument in known_arguments)
    if block.heads == 1:
        return ()  # what comes for one head comes for the placeholder too
    names = list(inspect.signature(module.forward).parameters)
    places: list[tuple[str, int, Tensor]] = []
    for position, value in enumerate(call.args):
        name = names[position] if position < len(names) else ""
        places.append((name, position, value))
    places += [(name, names.index(name) if name in names else -1, value) for name, value in call.kwargs.items()]
    found = []
    for name, position, value in places:
        if not isinstance(value, Tensor) or value.dim() < 3:
            continue
        before_queries = [dim for dim in range(1, value.dim() - 2) if value.shape[dim] == block.heads]
        if before_queries and ("mask" in name or "bias" in name):
            # (batch, heads, queries, keys); a gradient would not show it where the mask is boolean or hides everything
            found.append(SlicedArgument(name, position, before_queries[-1], cut.site.original_num_heads, kept))
            continue
        if not value.is_floating_point():
            continue
        for dim in range(value.dim() - 1):
            if value.shape[dim] % block.heads == 0 and _separates_heads(model, block, name, position, value, dim):
                found.append(SlicedArgument(name, position, dim, cut.site.original_num_heads, kept))
                break
    return tuple(found)


def _separates_heads(
    model: nn.Module, block: AttentionBlock, name: str, position: int, value: Tensor, dim: int
) -> bool:
    """Whether entry h of an argument's dimension acts on head h alone."""
    leaf = value.detach().clone().requires_grad_()
    args, kwargs = block.call.arguments()
    if name in kwargs:
        kwargs[name] = leaf * 1
    else:
        args[position] = leaf * 1
    module, output = model.get_submodule(block.path), model.get_submodule(block.output)
    with (
        torch.enable_grad(), same_draws(module), called_projections(module), captured_input(output) as contexts,
    ):  # fmt: skip
        module(*args, **kwargs)
    backward = Backward(contexts[0], block.heads)
    for head in range(block.heads):
        if not contexts[0].requires_grad:
            return False
        (grad,) = backward.of_head(head, [leaf])
        if grad is None:
            return False
        split = grad.unflatten(dim, (-1, block.heads))  # a dimension of batch x heads has the batch first
        other = [d for d in range(split.dim()) if d != dim + 1]
        reached = (split != 0).sum(dim=other) > 0
        if int(reached.sum()) > 1 or (reached.any() and not reached[head]):
            return False
        if head == block.heads - 1 and not reached.any():
            return False
    return True


def _cut_running_statistics(edits: Edits, path: str, keep: tuple[int, ...], size: int) -> None:
    """A batch norm treats every channel alone: its buffers go with its weight."""
    edits.slices[path] |= {name: Slice(0, size, keep) for name in ("running_mean", "running_var")}
    edits.attributes[path] = {"num_features": len(keep)}


def _kept_channels(owners: Tensor, cut: Cut, where: str) -> list[int]:
    owners = _completed(owners)
    if not owners.any(0).all():
        raise UnsupportedModelError(
            f"{where} cannot be pruned: some channels of its projections reach no head on the example, so it is not "
            "known whose they are. Pass an example with real inputs (example=…)."
        )
    if cut.expand:
        return _expanded(owners, cut)
    return owners[cut.positions].any(0).nonzero().flatten().tolist()


def _completed(owners: Tensor) -> Tensor:
    """Channels that reach no head on a short example (far distances) belong to the head that the layout gives them to.

    Heads lie in blocks or take turns: whichever of the two agrees with every channel that does reach a head.
    """
    heads, channels = owners.shape
    if bool(owners.any(0).all()) or channels % heads:
        return owners
    place = torch.arange(channels)
    layouts = [place // (channels // heads), place % heads]
    fitting = [
        layout
        for layout in layouts
        if bool(owners.any(1).all()) and bool((owners <= (layout == torch.arange(heads)[:, None])).all())
    ]
    return fitting[0] == torch.arange(heads)[:, None] if len(fitting) == 1 else owners


def _expanded(owners: Tensor, cut: Cut) -> list[int]:
    """Channels after giving every kept head its own copy of its group's keys and values."""
    blocks: list[tuple[tuple[int, ...], list[int]]] = []
    has_queries = bool((owners.sum(0) == 1).any())
    for channel in range(owners.shape[1]):
        members = tuple(owners[:, channel].nonzero().flatten().tolist())
        # Behind the queries, keys and values of a single group are one run of channels that all heads share.
        is_full = has_queries and len(members) == len(owners) and len(blocks[-1][1]) == cut.site.head_dim
        if blocks and blocks[-1][0] == members and not is_full:
            blocks[-1][1].append(channel)
        else:
            blocks.append((members, [channel]))
    keep: list[int] = []
    segment: list[tuple[tuple[int, ...], list[int]]] = []
    for block in [*blocks, None]:  # a segment (all queries, all keys, all values) runs through the heads once
        if block is None or (segment and block[0][0] <= segment[-1][0][0]):
            for head in cut.positions:
                keep += [c for members, channels in segment if head in members for c in channels]
            segment = []
        if block is not None:
            segment.append(block)
    return keep


def _cut_projection(edits: Edits, module: nn.Module, path: str, keep: list[int], size: int, cut: Cut) -> None:
    layout = projections.layout(module)
    assert layout is not None, "checked by the caller"
    if cut.is_empty:
        edits.stubs[path] = Stub("zeros", len(keep))
        return
    if keep == list(range(size)):
        return
    edits.slices[path] = {"weight": Slice(layout.out_dim, size, tuple(keep))}
    if getattr(module, "bias", None) is not None:
        edits.slices[path]["bias"] = Slice(0, size, tuple(keep))
    if type(vars(module).get(layout.out_name)) is int:
        edits.attributes[path] = {layout.out_name: len(keep)}


def _cut_output(edits: Edits, module: nn.Module, block: AttentionBlock, cut: Cut, skip_bias: bool) -> None:
    layout = projections.layout(module)
    assert layout is not None, "checked by the caller"
    if isinstance(module, JoinedHeads):
        kept = tuple(cut.positions) or (0,)
        path = block.output.rpartition(".")[0]
        edits.slices.setdefault(path, {})["o"] = Slice(1, block.heads, kept, cut.is_empty)
        if cut.is_empty:
            edits.stubs[block.output] = Stub("bias", module.out_features)
        return
    weight = projections.weight(module)
    if cut.is_empty:
        bias = getattr(module, "bias", None) is not None and not skip_bias
        edits.stubs[block.output] = Stub("bias", weight.shape[layout.out_dim], bias)
        return
    width = block.head_dim
    keep = [column for head in cut.positions for column in range(head * width, (head + 1) * width)]
    edits.slices[block.output] = {"weight": Slice(layout.in_dim, block.heads * width, tuple(keep))}
    if type(vars(module).get(layout.in_name)) is int:
        edits.attributes[block.output] = {layout.in_name: len(keep)}


def _calls_interface(model: nn.Module, block: AttentionBlock) -> bool:
    """Whether attention goes through the functions that transformers looks up by the config's name for them."""
    module = model.get_submodule(block.attention)
    code = inspect.unwrap(type(module).forward).__code__
    return getattr(module, "config", None) is not None and "get_interface" in code.co_names


# Widths that some modules repeat and reshape to; tried only if repairing head counts is not enough.
WIDTH_NAMES = ("embed_dim", "output_dim", "split_size", "hidden_size", "attention_size", "d_model")


def repairs(model: nn.Module, block: AttentionBlock, cut: Cut) -> Iterator[Edits]:
    """Ways to make the counts that modules repeat agree with the cut, the most likely first."""
    counts, widths = _counts(model, block, cut)
    both = {path: {**counts.get(path, {}), **widths.get(path, {})} for path in {**counts, **widths}}
    view = _config_counts(model, block.attention, block, cut)
    known = width_followed_by(model.get_submodule(block.attention)) if cut.is_again else None
    if known is None:
        for attributes in (counts, both) if widths else (counts,):
            ways = [Edits(attributes=attributes)]
            if view:
                ways.append(Edits(attributes=attributes, configs={block.attention: view}))
            # What an emptied site answers does not depend on its keys and values, so that any way would do; but a cache
            # keeps them, and by the shape of those of the first layer it counts the tokens that it has seen.
            yield from reversed(ways) if cut.is_empty else ways
    if known is None and not block.adapter.reshapes_to_width:
        return
    whole = known.whole if known is not None else block.heads * block.head_dim
    follow = {block.attention: Width(whole, max(1, len(cut.positions)), block.head_dim)}
    yield Edits(attributes=counts, reshapes=follow)
    if view:
        yield Edits(attributes=counts, reshapes=follow, configs={block.attention: view})


def _counts(
    model: nn.Module, block: AttentionBlock, cut: Cut
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Attributes of the block's modules that count heads, and those that repeat a width made of heads."""
    counts: dict[str, dict[str, int]] = {}
    widths: dict[str, dict[str, int]] = {}
    heads, new_heads = block.heads, len(cut.positions)
    for name, module in model.get_submodule(block.path).named_modules():
        path = f"{block.path}.{name}" if name else block.path
        if projections.is_projection(module):
            continue
        is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d)
        if is_convolution and f"{path}.weight" not in block.parameters:
            continue  # over the model's width
        for attribute, value in vars(module).items():
            if type(value) is not int or attribute.startswith("_") or attribute in block.adapter.keep_counts:
                continue
            becomes = _new_channels if is_convolution else _new_count
            new = becomes(attribute, value, block, cut)
            if new is not None:
                counts.setdefault(path, {})[attribute] = new
            elif attribute in WIDTH_NAMES and value == heads * block.head_dim:
                widths.setdefault(path, {})[attribute] = new_heads * block.head_dim
    if isinstance(model.get_submodule(block.attention), nn.MultiheadAttention | SlicedMultihead):
        return counts, {}  # its embed_dim is the width outside
    return counts, widths


def _new_channels(name: str, value: int, block: AttentionBlock, cut: Cut) -> int | None:
    """Of a convolution with a group for every head or every channel of a head."""
    if name not in ("groups", "in_channels", "out_channels"):
        return None
    for per_head in (1, block.head_dim):
        if value == block.heads * per_head:
            return max(1, len(cut.positions)) * per_head
        if value == len(block.groups) * per_head:
            return max(1, cut.num_kv_heads) * per_head
    return None


def _new_count(name: str, value: int, block: AttentionBlock, cut: Cut) -> int | None:
    """What a count must become, judged by its name and its present value."""
    heads, kv = block.heads * block.maps, len(block.groups) * block.maps
    new_heads, new_kv = len(cut.positions) * block.maps, cut.num_kv_heads * block.maps
    is_kv = "kv" in name or "key_value" in name
    if "group" in name:
        return new_heads // new_kv if is_kv and value == heads // kv else None
    if name in ("all_head_size", "inner_dim", "q_dim", "q_size"):
        return new_heads * (value // heads) if value == heads * (value // heads) else None
    if name in ("kv_dim", "kv_size"):
        return new_kv * (value // kv) if value == kv * (value // kv) else None
    if "head" not in name or any(word in name for word in ("dim", "size", "width")):
        return None
    if is_kv:
        return new_kv if value == kv else None
    return new_heads if value == heads else None


def _config_counts(model: nn.Module, path: str, block: AttentionBlock, cut: Cut) -> dict[str, int]:
    """Head counts that a module of the block may read from its config while it runs."""
    config = getattr(model.get_submodule(path), "config", None)
    view = {}
    for name in ("num_attention_heads", "num_key_value_heads", "num_heads", "num_kv_heads", "n_heads", "n_head"):
        value = value_of(config, name)
        if type(value) is int:
            new = _new_count(name, value, block, cut)
            if new is not None:
                view[name] = new
    return view
