"""Attention over memory, segment and persistent vectors, with relative positions. The whole formula is in this file.

For a query at position i and a key at position j <= i, both counted from the start of the memory (Dai et al. 2019):

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(width)

and for persistent key n, which has no position (Sukhbaatar et al. 2019, with the scaling of Shim et al.'s code):

    score(i, n) = q_i . P^K_n                       values: sqrt(N) P^V_n

One softmax over both. q, k, v, r are linear maps without bias; u and v are vectors of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.types import Config


class RelativeAttention(nn.Module):
    """Multi-head attention as above. Without persistent vectors it is Transformer-XL's."""

    def __init__(self, config: Config, num_persistent: int = 0) -> None:
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.num_heads, self.head_dim = config.num_attention_heads, width // config.num_attention_heads
        self.num_persistent, self.dropout = num_persistent, config.attention_dropout
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.r_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width)
        self.u = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.v = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        if num_persistent:
            self.persistent_keys = nn.Parameter(torch.empty(self.num_heads, num_persistent, self.head_dim))
            self.persistent_values = nn.Parameter(torch.empty(self.num_heads, num_persistent, self.head_dim))

    def forward(
        self,
        hidden: Tensor,  # (batch, queries, width)
        source: Tensor,  # (batch, keys, width): memory, then the same as `hidden`
        distances: Tensor,  # (distances, width): vectors of 0, 1, 2 …, as many as a query may see
        padding: Tensor | None = None,  # (batch, 1, queries, keys), True where a key is not to be seen
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (self._split(part) for part in (self.q_proj(hidden), self.k_proj(source), self.v_proj(source)))
        r = self._split(self.r_proj(distances)[None])[0]  # (heads, distances, head width)
        scale, keys = self.head_dim**-0.5, k.shape[2]
        raw = (q + self.v[:, None]) @ (r * scale).flip(1).transpose(1, 2)  # (batch, heads, queries, distances)
        bias = shifted(raw, keys)  # (batch, heads, queries, keys)
        if padding is not None:
            bias = bias.masked_fill(padding, -math.inf)
        query = q + self.u[:, None]  # (batch, heads, queries, head width)
        if self._is_fused(bias) and not output_attentions:
            dropout = self.dropout if self.training else 0.0
            k, v, bias = self._with_persistent(k, v, bias) if self.num_persistent else (k, v, bias)
            context, seen = F.scaled_dot_product_attention(query, k, v, bias, dropout, scale=scale), None
        else:
            flat = (part.flatten(0, 1) for part in (bias, query, k.transpose(2, 3)))
            scores = torch.baddbmm(*flat, alpha=scale).unflatten(0, bias.shape[:2])
            if self.num_persistent:
                scores = torch.cat([scores, q @ self.persistent_keys.transpose(1, 2)], dim=3)
                v = self._persistent_after(v, self.persistent_values * math.sqrt(self.num_persistent))
            probabilities = scores.softmax(-1)  # (batch, heads, queries, keys + persistent)
            context = F.dropout(probabilities, self.dropout, self.training) @ v
            seen = probabilities[..., :keys] if output_attentions else None
        return self.o_proj(context.transpose(1, 2).flatten(2)), seen  # (batch, queries, width)

    def _is_fused(self, bias: Tensor) -> bool:
        """The relative term reaches the fused kernels as a bias. On a CPU they have no backward pass for a bias:
        PyTorch would go the plain way, and slower than it is gone here."""
        trains = torch.is_grad_enabled() and bias.requires_grad
        return self.config._attn_implementation == "sdpa" and not (trains and bias.device.type == "cpu")

    def _split(self, x: Tensor) -> Tensor:
        apart: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return apart.transpose(1, 2)  # (batch, heads, positions, head width)

    def _with_persistent(self, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and bias with the persistent ones after them, for a kernel that knows one query.

        What is added here is what makes (q + u) . key / sqrt(width) + bias the score of the formula: keys times
        sqrt(width), and -u . P^K, because u belongs to keys that have a position.
        """
        offset = -(self.persistent_keys @ self.u[:, :, None]).transpose(1, 2)  # (heads, 1, persistent)
        wide = offset.to(bias.dtype).expand(bias.shape[0], -1, bias.shape[2], -1)
        return (
            self._persistent_after(k, self.persistent_keys * math.sqrt(self.head_dim)),
            self._persistent_after(v, self.persistent_values * math.sqrt(self.num_persistent)),
            torch.cat([bias, wide], dim=3),
        )

    def _persistent_after(self, x: Tensor, vectors: Tensor) -> Tensor:
        """The same vectors (heads, persistent, head width) for every row, after x (batch, heads, keys, head width)."""
        return torch.cat([x, vectors.to(x.dtype).expand(x.shape[0], -1, -1, -1)], dim=2)


def shifted(raw: Tensor, keys: int) -> Tensor:
    """From scores by distance (…, queries, distances), the farthest first, to scores by key (…, queries, keys).

    The last query stands at the last key. Pairs without a distance (later keys, keys out of reach) get minus infinity:
    this is the causal mask and the limit of the span. Row i is moved i places to the right by reading rows that were
    filled up to one entry more than they will have.
    """
    queries, distances = raw.shape[-2:]
    width = queries + distances - 1  # of all keys that any of the queries can reach
    filled = F.pad(raw, (0, queries), value=-math.inf).flatten(-2)  # (…, queries * (width + 1))
    moved: Tensor = filled[..., : queries * width].unflatten(-1, (queries, width))
    return moved[..., width - keys :]
