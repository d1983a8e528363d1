"""Token vectors and the softmax over tokens: plain, or adaptive for large vocabularies.

Adaptive (Baevski and Auli 2019, Grave et al. 2017, as in Transformer-XL): words are numbered by falling frequency and
cut into parts. Vectors of rarer parts are narrower and are projected to the model's width. The softmax first chooses
among the words of the first part and the names of the others, then within a part.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.types import Config


class AdaptiveEmbedding(nn.Module):
    """Vectors of tokens (batch, positions) -> (batch, positions, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ends = [0, *config.cutoffs, config.vocab_size]
        widths = config.widths()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size, width in zip(self.sizes, widths, strict=True))
        self.projections = nn.ModuleList(nn.Linear(width, config.hidden_size, bias=False) for width in widths)

    @property
    def sizes(self) -> list[int]:
        return [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.flatten()
        parts = list(zip(self.ends, self.tables, self.projections, strict=False))
        weight: Any = self.projections[0].weight
        found = torch.zeros(len(flat), weight.shape[0], dtype=weight.dtype, device=flat.device)
        for part, (start, table, projection) in enumerate(parts):
            wide = projection(table(flat[rows := _inside(flat, self.ends, part)] - start))
            found = found.index_add(0, rows, wide.to(found.dtype))  # not narrower: all layers add to these vectors
        vectors: Tensor = found.unflatten(0, tokens.shape)
        return vectors


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of tokens. Tables and projections have the shapes of `AdaptiveEmbedding`, so that they can be
    tied to it; the projection of the first part never is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ends = [0, *config.cutoffs, config.vocab_size]
        sizes = [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]
        widths = config.widths()
        self.tables = nn.ModuleList(nn.Linear(width, size) for size, width in zip(sizes, widths, strict=True))
        self.projections = nn.ModuleList(nn.Linear(width, config.hidden_size, bias=False) for width in widths)
        self.clusters = nn.Linear(widths[0], len(sizes) - 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Of every token: (…, width) -> (…, vocabulary)."""
        first = self._first(hidden)
        parts = [first[..., : self.ends[1]]]
        for part in range(1, len(self.tables)):
            name = first[..., self.ends[1] + part - 1, None]
            parts.append(name + self._within(hidden, part))
        return torch.cat(parts, dim=-1)

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Minus the log-probability of each target: (positions, width), (positions,) -> (positions,). Parts in which no
        target lies are not computed."""
        first = self._first(hidden)  # (positions, words of the first part + names of the others)
        place = targets.clamp(max=self.ends[1] - 1)
        for part in range(1, len(self.tables)):
            place = torch.where(targets >= self.ends[part], self.ends[1] + part - 1, place)
        found = first.gather(1, place[:, None])[:, 0]
        for part in range(1, len(self.tables)):
            rows = _inside(targets, self.ends, part)
            if len(rows):
                places = (targets[rows] - self.ends[part])[:, None]
                within = self._within(hidden[rows], part).gather(1, places)[:, 0]
                found = found.index_add(0, rows, within)
        return -found

    def _first(self, hidden: Tensor) -> Tensor:
        narrow = self._narrow(hidden, 0)
        scores = torch.cat([self.tables[0](narrow), self.clusters(narrow)], dim=-1)
        return F.log_softmax(scores.float(), dim=-1)

    def _within(self, hidden: Tensor, part: int) -> Tensor:
        return F.log_softmax(self.tables[part](self._narrow(hidden, part)).float(), dim=-1)

    def _narrow(self, hidden: Tensor, part: int) -> Tensor:
        """The transpose of what the embedding does, by the same weight."""
        weight: Any = self.projections[part].weight  # (width, width of the part)
        return F.linear(hidden, weight.t())


def _inside(tokens: Tensor, ends: list[int], part: int) -> Tensor:
    """Where tokens of a part stand. The first and the last part are open, so that numbers of no token at all reach a
    table, which refuses them."""
    found = torch.ones_like(tokens, dtype=torch.bool)
    if part > 0:
        found &= tokens >= ends[part]
    if part < len(ends) - 2:
        found &= tokens < ends[part + 1]
    return found.nonzero().flatten()


def tied_names(config: Config, embedding: str, head: str) -> dict[str, str]:
    """Which weights of the head are those of the embedding: target -> source, as transformers wants it."""
    if not config.cutoffs:
        return {f"{head}.weight": f"{embedding}.weight"}
    parts = range(len(config.cutoffs) + 1)
    tables = {f"{head}.tables.{i}.weight": f"{embedding}.tables.{i}.weight" for i in parts}
    return tables | {f"{head}.projections.{i}.weight": f"{embedding}.projections.{i}.weight" for i in parts if i}


def embedding_for(config: Config) -> nn.Module:
    return AdaptiveEmbedding(config) if config.cutoffs else nn.Embedding(config.vocab_size, config.hidden_size)


def head_for(config: Config) -> nn.Module:
    return AdaptiveSoftmax(config) if config.cutoffs else nn.Linear(config.hidden_size, config.vocab_size)
