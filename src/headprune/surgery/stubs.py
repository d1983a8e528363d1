"""What stands in for layers that pruning removed or reshaped beyond what their class allows.

The stub of an output projection saves a `weight` of one number. A checkpoint with it cannot be loaded by plain
transformers without a size-mismatch error, so a model with emptied sites is never silently filled with random weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ZeroProjection(nn.Module):
    """The queries, keys or values of a site without heads: zeros for one placeholder head, nothing to save."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, width: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("weight", torch.zeros(1, 1), persistent=False)  # for initialisers and questions of dtype
        _add_unused_bias(self, width if has_bias else 0)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.new_zeros(*inputs.shape[:-1], self.width)

    def extra_repr(self) -> str:
        return f"width={self.width}"


class BiasOnly(nn.Module):
    """The output projection of a site without heads: its bias, or nothing."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, width: int, bias: nn.Parameter | None, *, has_bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("weight", torch.zeros(1, 1))
        self.adds_bias = bias is not None
        if bias is not None:
            self.register_parameter("bias", bias)
        else:
            _add_unused_bias(self, width if has_bias else 0)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.adds_bias or self.bias is None:
            return inputs.new_zeros(*inputs.shape[:-1], self.width)
        # A tensor of its own: the model may go on to add to it in place.
        return self.bias.to(inputs.dtype).expand(*inputs.shape[:-1], self.width).clone()

    def extra_repr(self) -> str:
        return f"width={self.width}, bias={self.adds_bias}"


def _add_unused_bias(module: nn.Module, width: int) -> None:
    """The initialisers of some families write to the bias of every projection that had one: give them one."""
    module.register_buffer("bias", torch.zeros(width) if width else None, persistent=False)


class SlicedMultihead(nn.Module):
    """`nn.MultiheadAttention` with fewer heads than its width allows; same parameter names, same calling convention."""

    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        packed = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")
        for name in (*packed, "bias_k", "bias_v"):
            self.register_parameter(name, getattr(original, name))
        self.out_proj = nn.Linear(1, 1)
        self.out_proj = original.out_proj
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
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)  # (batch, heads, length, width)
        bias = self._bias(q, key_padding_mask, attn_mask)
        seen = k.shape[-2]
        k, v = self._with_own_entries(k, self.bias_k), self._with_own_entries(v, self.bias_v)
        if bias is not None:
            bias = F.pad(bias, (0, k.shape[-2] - seen))  # which no mask hides
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5  # (batch, heads, queries, keys)
            weights = (scores if bias is None else scores + bias).softmax(-1)
            context = F.dropout(weights, dropout) @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            causal = is_causal and bias is None
            context = F.scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=causal)
        output = self.out_proj(context.transpose(1, 2).flatten(2))  # (batch, queries, embed)
        if unbatched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        packed: Any = self.in_proj_weight
        split = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        parts = packed.chunk(3) if packed is not None else split
        packed_bias: Any = self.in_proj_bias
        biases = packed_bias.chunk(3) if packed_bias is not None else (None, None, None)
        return [
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), parts, biases, strict=True)
        ]

    def _with_own_entries(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Keys or values, with the entries that are no input's: a learned one, and zeros."""
        batch, heads, _, width = x.shape
        if learned is not None:
            x = torch.cat([x, learned.view(1, heads, 1, width).expand(batch, -1, -1, -1)], dim=2)
        return torch.cat([x, x.new_zeros(batch, heads, 1, width)], dim=2) if self.add_zero_attn else x

    def _bias(self, q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Both masks as one additive bias (batch, heads, queries, keys)."""
        total = None
        if padding is not None:
            rows = padding if padding.dim() == 2 else padding[None]  # of an input without a batch
            total = _additive(rows, q.dtype)[:, None, None, :]
        if mask is not None:
            added = _additive(mask, q.dtype)
            if added.dim() == 3:
                added = added.unflatten(0, (q.shape[0], -1))
            total = added if total is None else total + added
        return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, float("-inf"))


class ConfigView:
    """A config as one pruned block sees it: its own head counts, everything else read from the model's config."""

    def __init__(self, base: Any, overrides: dict[str, Any]) -> None:
        self.__dict__["headprune_base"] = base.headprune_base if isinstance(base, ConfigView) else base
        inherited = base.headprune_overrides if isinstance(base, ConfigView) else {}
        self.__dict__["headprune_overrides"] = {**inherited, **overrides}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "headprune_base" not in self.__dict__:
            raise AttributeError(name)
        if name in self.headprune_overrides:
            return self.headprune_overrides[name]
        if name in ("headprune_empty", "headprune_bias_heads"):
            return None
        return getattr(self.headprune_base, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.headprune_base, name, value)

    def __repr__(self) -> str:
        return f"ConfigView({type(self.headprune_base).__name__}, {self.headprune_overrides})"
