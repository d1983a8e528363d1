"""Parameters and multiply-accumulate operations (MACs) of the two language models, by arithmetic.

`headprune.counting` counts what a model in memory has and does. These formulas need no model, only its config and how
many heads each layer keeps, so that tables of models too large to build can be checked; tests hold both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headprune.errors import UnsupportedModelError
from headprune.types import Config

# How distances enter the MACs of a query token: rows of r projected for it, and columns of its position scores.
Distances = Literal["once", "all", "span", "shared"]


@dataclass(frozen=True)
class Parameters:
    """Weights of the layers, and of what surrounds them: token vectors, softmax, distances."""

    layers: int
    embeddings: int

    @property
    def total(self) -> int:
        return self.layers + self.embeddings


def parameters(config: Config, kept: Sequence[int] | None = None) -> Parameters:
    """Of a model whose layers keep so many heads (default: all)."""
    layers = sum(_layer_parameters(config, heads) for heads in _kept(config, kept))
    layers += 2 * config.hidden_size if config.final_norm else 0
    return Parameters(layers, _embedding_parameters(config))


def macs_per_token(
    config: Config,
    kept: Sequence[int] | None = None,
    *,
    segment: int | None = None,
    memory: Literal["recomputed", "kept"] = "recomputed",
    distances: Distances = "once",
) -> float:
    """MACs of the layers for one token of a segment of `segment` tokens (default: as many as the memory) behind a full
    memory; the softmax over words is not counted.

    `memory="recomputed"`: keys and values of the memory are projected again with every segment, as in the papers'
    code; `"kept"`: only those of new tokens are. `distances` is what a published total may mean: `"once"` projects one
    distance a token, `"all"` those of memory and segment, `"span"` those that can be seen (what runs here, one text at
    a time), `"shared"` none, because a large batch shares them. Every query is taken to meet memory and segment whole.
    """
    old = config.memory_length
    new = segment or old
    if not new:
        raise UnsupportedModelError("Without memory the length of a segment must be given: segment=…")
    keys = int(old + new)
    rows, columns = {
        "once": (1.0, keys),
        "all": (keys / new, keys),
        "span": ((old + 1) / new, old + 1),
        "shared": (0.0, keys),
    }[distances]
    sources = keys / new if memory == "recomputed" else 1.0  # positions whose keys and values are projected, a token
    width, head = _widths(config)
    of_head = (2 + 2 * sources + rows) * width * head  # queries and output, keys and values, distances
    of_head += (2 * keys + columns + 2 * _persistent(config)) * head  # scores and weighted sums
    return float(sum(heads * of_head + 2 * width * _feed_forward(config) for heads in _kept(config, kept)))


def _layer_parameters(config: Config, heads: int) -> int:
    width, head = _widths(config)
    of_head = 5 * width * head + 2 * head + 2 * _persistent(config) * head  # q, k, v, r, output; u, v; persistent
    rest = 3 * width  # bias of the output, norm
    inner = _feed_forward(config)
    return heads * of_head + rest + (2 * width * inner + inner + 3 * width if inner else 0)


def _embedding_parameters(config: Config) -> int:
    width, words = int(config.hidden_size), int(config.vocab_size)
    copies = 1 if config.tie_word_embeddings else 2
    rows = int(config.table_rows) * width if config.positions == "learned" else 0
    if not config.cutoffs:
        return rows + words * width * copies + words
    ends: list[int] = [0, *config.cutoffs, words]
    widths = [int(w) for w in config.widths()]
    tables = sum((end - start) * w for start, end, w in zip(ends, ends[1:], widths, strict=False))
    maps = [width * w for w in widths]
    once = tables + sum(maps[1:])
    own = 2 * maps[0] + words  # the maps of the first part are two; biases
    own += len(config.cutoffs) * (widths[0] + 1)  # names of the other parts
    return rows + own + once * copies


def _kept(config: Config, kept: Sequence[int] | None) -> Sequence[int]:
    found = [config.num_attention_heads] * config.num_hidden_layers if kept is None else list(kept)
    if len(found) != config.num_hidden_layers or not all(0 <= heads <= config.num_attention_heads for heads in found):
        raise UnsupportedModelError(
            f"Found {found} heads; expected one number from 0 to {config.num_attention_heads} for each of "
            f"{config.num_hidden_layers} layers."
        )
    return found


def _widths(config: Config) -> tuple[int, int]:
    """Of the model and of a head."""
    return int(config.hidden_size), int(config.hidden_size // config.num_attention_heads)


def _persistent(config: Config) -> int:
    return int(getattr(config, "num_persistent", 0))


def _feed_forward(config: Config) -> int:
    return int(getattr(config, "intermediate_size", 0))
