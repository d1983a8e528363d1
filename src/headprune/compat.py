"""For people who come from transformers v4: what it had for heads, under the names they know."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from headprune.checkpoint.config_entry import V4_ENTRY, has_plain_layers, note_pruned_heads, sites_by_layer
from headprune.errors import MaskError
from headprune.heads import HeadMap, HeadMask, Site
from headprune.masking import masked
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped
from headprune.surgery.prune import prune_

Layer = TypeVar("Layer", bound=nn.Module)


def prune_heads(model: nn.Module, heads_to_prune: Mapping[int | str, Iterable[int]]) -> nn.Module:
    """Remove heads by layer, as `model.prune_heads({0: [1, 2]})` did in v4; returns the model.

    Heads are counted as in the original model, and those that are gone already are passed over, as in v4. Where a layer
    number is ambiguous (encoder-decoders, several towers), name sites: `{"cross.3": [0]}`. `config.pruned_heads` is
    kept up to date where layer numbers are not ambiguous.

    Example:
        >>> small = hp.prune_heads(model, {0: [1, 2]})
        >>> small.config.pruned_heads
        {0: [1, 2]}
    """
    heads = find_heads(model)
    gone = [f"{site.id}:{head}" for site, indices in _asked(heads, heads_to_prune) for head in indices]
    prune_(model, HeadMask.full(heads).without(*gone), about={"by": "prune_heads"})
    config = getattr(unwrapped(model), "config", None)
    if config is not None and has_plain_layers(heads):
        setattr(config, V4_ENTRY, {})
        note_pruned_heads(config, find_heads(model))
    return model


def _asked(heads: HeadMap, wanted: Mapping[int | str, Iterable[int]]) -> Iterator[tuple[Site, list[int]]]:
    if not isinstance(wanted, Mapping):
        raise MaskError(f"Found {type(wanted).__name__}; expected layers or sites with heads, as {{0: [1, 2]}}.")
    for key, indices in wanted.items():
        site = _site(heads, key)
        if not hasattr(indices, "__iter__"):
            raise MaskError(f"{site.id}: found {indices!r}; expected a list of heads.")
        chosen = [_whole(head) for head in indices]
        wrong = [head for head in chosen if not 0 <= head < site.original_num_heads]
        if wrong:
            raise MaskError(f"{site.id} has heads 0 to {site.original_num_heads - 1}; found {wrong[0]}.")
        yield site, [head for head in chosen if head in site.kept]


def _site(heads: HeadMap, key: int | str) -> Site:
    if isinstance(key, str) and not key.isdecimal():  # "0" is a layer, as in a config.json
        return heads[key]
    layers, layer = sites_by_layer(heads), _whole(key)
    if layer not in layers:
        raise MaskError(f"No layer {layer}: this model has attention in layers {', '.join(map(str, layers))}.")
    return layers[layer]


def _whole(value: int | str) -> int:
    """A whole number, also of numpy or torch; `True` is not meant as one."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise MaskError(f"Found {value!r}; expected the number of a layer or head.") from None


@contextmanager
def head_mask(
    model: nn.Module, mask: Tensor | None = None, *, decoder: Tensor | None = None, cross: Tensor | None = None
) -> Iterator[nn.Module]:
    """The old `head_mask=` of a forward call, until the block ends: (heads,) for every layer, or (layers, heads).

    An encoder-decoder has three, as in v4: `mask` for the encoder, `decoder` (v4's `decoder_head_mask`) and `cross`
    (`cross_attn_head_mask`). Gradients reach the tensors.

    Example:
        >>> with hp.compat.head_mask(model, torch.tensor([0.0, 1.0, 1.0, 1.0])):
        ...     logits = model(**batches[0]).logits
    """
    heads = find_heads(model)
    given = {"encoder": mask, "decoder": decoder, "cross": cross}
    if mask is not None and "encoder" not in heads.components:  # a decoder-only model has one mask
        if decoder is not None:
            raise MaskError("A decoder-only model has one mask: give `mask` or `decoder`, not both.")
        given = {"decoder": mask, "cross": cross}
    weights: dict[str, Tensor] = {}
    for component, tensor in given.items():
        if tensor is not None:
            weights |= _rows(heads, component, torch.as_tensor(tensor))
    with masked(model, weights, heads=heads):
        yield model


def _rows(heads: HeadMap, component: str, tensor: Tensor) -> dict[str, Tensor]:
    sites = [site for site in heads if site.component == component]
    layers = sum(len(site.layers) for site in sites)
    counts = {site.original_num_heads for site in sites}
    if not sites:
        raise MaskError(f"This model has no {component} attention; it has {', '.join(heads.components) or 'none'}.")
    if len({site.tower for site in sites}) > 1 or len(counts) > 1:
        raise MaskError("One tensor of layers and heads does not fit this model: use hp.masked(model, {site: …}).")
    if tensor.dim() == 1:
        tensor = tensor.unsqueeze(0).expand(layers, -1)  # (layers, heads)
    if tuple(tensor.shape) != (layers, *counts):
        wanted = (layers, *counts)
        raise MaskError(f"The mask has shape {tuple(tensor.shape)}; expected {wanted}: layers, heads.")
    places = {layer: row for row, layer in enumerate(sorted(layer for site in sites for layer in site.layers))}
    found = {}
    for site in sites:
        mine = tensor[[places[layer] for layer in site.layers]]  # (layers that run this module, heads)
        if len(mine) > 1 and not bool((mine == mine[0]).all()):
            raise MaskError(f"{site.id} is one module that runs in {len(mine)} layers: their rows must be the same.")
        found[site.id] = mine[0]
    return found


def find_pruneable_heads_and_indices(
    heads: Iterable[int], n_heads: int, head_size: int, already_pruned_heads: set[int]
) -> tuple[set[int], Tensor]:
    """v4's helper: the heads that are still there to be pruned, and the entries of a projection that stay.

    `n_heads` is the number of heads that the layer has now, `heads` are counted as in the original model.

    Example:
        >>> heads, index = hp.compat.find_pruneable_heads_and_indices([1], 2, head_size=2, already_pruned_heads=set())
        >>> heads, index.tolist()
        ({1}, [0, 1])
    """
    gone = set(heads) - already_pruned_heads
    keep = torch.ones(n_heads, head_size, dtype=torch.bool)
    for head in gone:
        keep[head - sum(earlier < head for earlier in already_pruned_heads)] = False
    return gone, keep.flatten().nonzero().flatten()


def prune_linear_layer(layer: nn.Linear, index: Tensor, dim: int = 0) -> nn.Linear:
    """v4's helper: a linear layer with only the entries `index` of its outputs (dim 0) or inputs (dim 1).

    Example:
        >>> hp.compat.prune_linear_layer(torch.nn.Linear(4, 6), torch.tensor([0, 2])).out_features
        2
    """
    index = index.to(layer.weight.device)
    weight = layer.weight.detach().index_select(dim, index).clone()
    bias = None if layer.bias is None else layer.bias.detach()[index if dim == 0 else slice(None)].clone()
    return _filled(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), layer, weight, bias)


def prune_conv1d_layer(layer: nn.Module, index: Tensor, dim: int = 1) -> nn.Module:
    """v4's helper for GPT-2's Conv1D, whose weight lies the other way: outputs are dim 1, inputs dim 0.

    Example:
        >>> from transformers.pytorch_utils import Conv1D
        >>> hp.compat.prune_conv1d_layer(Conv1D(6, 4), torch.tensor([0, 2])).nf
        2
    """
    from transformers.pytorch_utils import Conv1D

    old, index = layer.get_parameter("weight").detach(), index.to(layer.get_parameter("weight").device)
    weight = old.index_select(dim, index).clone()
    bias = layer.get_parameter("bias").detach()[index if dim == 1 else slice(None)].clone()
    made: nn.Module = Conv1D(weight.shape[1], weight.shape[0])
    return _filled(made, layer, weight, bias)


def _filled(new: Layer, old: nn.Module, weight: Tensor, bias: Tensor | None) -> Layer:
    new.to(device=weight.device, dtype=weight.dtype).train(old.training)
    with torch.no_grad():
        new.get_parameter("weight").copy_(weight)
        if bias is not None:
            new.get_parameter("bias").copy_(bias)
    return new
