"""`nn.MultiheadAttention` step by step: the forward of opened blocks and of those with fewer heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def multihead_attention(
    module: nn.MultiheadAttention | SlicedMultihead,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward`, for any number of heads, with its output projection called as a module.

    With all heads it has the bits of PyTorch's own outside the fast path: the same operations on the same shapes.
    """
    if is_causal and attn_mask is None:
        raise ValueError("is_causal=True was given without attn_mask; nn.MultiheadAttention expects both.")
    is_batched = query.dim() == 3
    if not is_batched:
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    inputs = {id(x): _length_first(x, module.batch_first) for x in (query, key, value)}  # one tensor stays one tensor
    q, k, v = _projected(module, *(inputs[id(x)] for x in (query, key, value)))  # (length, batch, heads * width)
    heads, width, batch, length = module.num_heads, module.head_dim, q.shape[1], q.shape[0]
    padding, mask = _additive(key_padding_mask, q.dtype), None
    if not is_causal or padding is not None or need_weights:
        mask, is_causal = _additive(attn_mask, q.dtype), is_causal and padding is None
    seen = len(k)
    if module.bias_k is not None and module.bias_v is not None:  # learned entries, which no input made
        k, v = torch.cat([k, module.bias_k.repeat(1, batch, 1)]), torch.cat([v, module.bias_v.repeat(1, batch, 1)])
    q, k, v = (x.reshape(len(x), batch * heads, width).transpose(0, 1) for x in (q, k, v))
    if module.add_zero_attn:
        nothing = k.new_zeros(batch * heads, 1, width)
        k, v = torch.cat([k, nothing], 1), torch.cat([v, nothing], 1)
    total = _total_mask(mask, padding, heads, k.shape[1] - seen)
    dropout = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        q, turned = q * (1.0 / width) ** 0.5, k.transpose(1, 2)
        scores = torch.bmm(q, turned) if total is None else torch.baddbmm(total, q, turned)
        weights = scores.unflatten(0, (batch, heads)).softmax(-1)  # (batch, heads, queries, keys)
        weights = F.dropout(weights, dropout) if dropout else weights
        context = torch.bmm(weights.flatten(0, 1), v).transpose(0, 1).reshape(length, batch, heads * width)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        if total is not None:
            total = total.unsqueeze(0) if len(total) == 1 else total.unflatten(0, (batch, heads))
        q, k, v = (x.unflatten(0, (batch, heads)) for x in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, total, dropout, is_causal)
        context = context.permute(2, 0, 1, 3).flatten(2)  # (queries, batch, heads * width)
    if not is_batched:
        return module.out_proj(context.squeeze(1)), None if weights is None else weights.squeeze(0)
    output = module.out_proj(context.transpose(0, 1))  # always batch first, for weights per example
    return output if module.batch_first else output.transpose(0, 1), weights


def _length_first(x: Tensor, batch_first: bool) -> Tensor:
    if x.dim() == 2:
        return x.unsqueeze(1)
    return x.transpose(0, 1) if batch_first else x


def _projected(
    module: nn.MultiheadAttention | SlicedMultihead, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    packed, bias, inputs = module.in_proj_weight, module.in_proj_bias, [query, key, value]
    parts = [1, 1, 1]  # of the packed weight that one product takes, as PyTorch does for the same input
    if packed is not None and key is value:
        inputs, parts = ([query], [3]) if query is key else ([query, key], [1, 2])
    if packed is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = list(packed.split([len(packed) // 3 * n for n in parts]))
    biases = [None] * 3 if bias is None else list(bias.split([len(bias) // 3 * n for n in parts]))
    made = [F.linear(x, weight, one) for x, weight, one in zip(inputs, weights, biases, strict=False)]
    return [part.contiguous() for x, n in zip(made, parts, strict=True) for part in x.chunk(n, -1)]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def _total_mask(mask: Tensor | None, padding: Tensor | None, heads: int, added: int) -> Tensor | None:
    """Both masks as one, (batch * heads or 1, queries or 1, keys); entries that are no input's are always seen."""
    mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 2 else mask
    if padding is not None:
        padding = padding.repeat_interleave(heads, 0).unsqueeze(1)  # (batch * heads, 1, keys)
        mask = padding if mask is None else mask + padding
    return F.pad(mask, (0, added)) if mask is not None and added else mask


class SlicedMultihead(nn.Module):
    """`nn.MultiheadAttention` with fewer heads than its width allows; same parameter names, same calling convention."""

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        packed = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")
        for name in (*packed, "bias_k", "bias_v"):
            self.register_parameter(name, getattr(original, name))
        self.out_proj: nn.Module = original.out_proj
        self.embed_dim = original.embed_dim
        self.num_heads = original.num_heads
        self.head_dim = original.head_dim
        self.dropout = original.dropout
        self.batch_first = original.batch_first
        self.add_zero_attn = original.add_zero_attn
        self._qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from its fast path, which knows one width
        self.train(original.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        return multihead_attention(
            self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
