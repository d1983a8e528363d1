"""Vectors of distances, shared by all layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.types import Config


class LearnedDistances(nn.Embedding):
    """A trained table: row d is the vector of distance d."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.table_rows, config.hidden_size)

    def forward(self, count: int, like: Tensor) -> Tensor:  # type: ignore[override]
        if count > self.num_embeddings:
            raise UnsupportedModelError(
                f"A token here sees {count} positions, itself included; the table of distances has "
                f"{self.num_embeddings} rows. Give shorter segments, or build the model with more (position_rows)."
            )
        return self.weight[:count]  # (count, width)


class SinusoidalDistances(nn.Module):
    """sin and cos of the distance at falling frequencies (Vaswani et al. 2017): no parameters, no limit."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.hidden_size

    def forward(self, count: int, like: Tensor) -> Tensor:
        steps = torch.arange(0, self.width, 2, device=like.device, dtype=torch.float32) / self.width
        angles = torch.arange(count, device=like.device, dtype=torch.float32)[:, None] * 10000**-steps
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)  # (count, width)


def distances_for(config: Config) -> nn.Module:
    return LearnedDistances(config) if config.positions == "learned" else SinusoidalDistances(config)
