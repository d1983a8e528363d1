"""The shapes of the two language models, as transformers' configs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from headprune.errors import UnsupportedModelError

Positions = Literal["learned", "sinusoidal"]


_WHOLE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "memory_length", "position_rows",
    "cutoff_divisor", "num_persistent",
)  # fmt: skip


class MemoryConfig(PreTrainedConfig):
    """What both models have.

    Every layer keeps its last `memory_length` inputs for the next segment. With `same_length` every token sees exactly
    so many before itself, wherever a segment begins, so that memory and one long segment give the same; otherwise it
    sees all of the memory and what its segment has before it.

    `positions` are vectors of distances: a learned table (Shim et al.'s code) of `position_rows` (default: as many as
    are needed), or sinusoids (Transformer-XL). `cutoffs` cut a large vocabulary, sorted by frequency, into parts whose
    vectors are narrower by `cutoff_divisor` each (adaptive input and softmax).
    """

    keys_to_ignore_at_inference = ["past_key_values", "losses"]  # noqa: RUF012  # transformers adds to it

    def __init__(
        self,
        vocab_size: int = 27,
        hidden_size: int = 512,
        num_hidden_layers: int = 16,
        num_attention_heads: int = 8,
        memory_length: int = 192,
        same_length: bool = True,
        positions: Positions = "learned",
        position_rows: int | None = None,
        cutoffs: Sequence[int] = (),
        cutoff_divisor: int = 4,
        embedding_dropout: float = 0.1,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.2,
        final_norm: bool = False,
        layer_norm_eps: float = 1e-5,
        use_cache: bool = True,
        tie_word_embeddings: bool = True,
        **kwargs: object,
    ) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.memory_length, self.same_length = memory_length, same_length
        self.positions, self.position_rows = positions, position_rows
        self.cutoffs: list[int] = [*cutoffs] if isinstance(cutoffs, list | tuple) else [cutoffs]  # type: ignore[list-item]
        self.cutoff_divisor = cutoff_divisor
        self.embedding_dropout, self.hidden_dropout = embedding_dropout, hidden_dropout
        self.attention_dropout = attention_dropout
        self.final_norm, self.layer_norm_eps = final_norm, layer_norm_eps
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        self._check()

    @property
    def span(self) -> int | None:
        """How far back a token sees; None for as far as memory and segment reach."""
        return self.memory_length if self.same_length else None

    @property
    def table_rows(self) -> int:
        """Rows of the learned table of distances: the largest distance is one less."""
        return self.position_rows or (self.memory_length + 1 if self.same_length else 2 * self.memory_length + 1)

    def widths(self) -> list[int]:
        """How wide the vectors of each part of the vocabulary are."""
        return [self.hidden_size // self.cutoff_divisor**part for part in range(len(self.cutoffs) + 1)]

    def _check(self) -> None:
        values = [(name, getattr(self, name, 1)) for name in _WHOLE] + [("cutoffs", one) for one in self.cutoffs]
        for name, value in values:
            if type(value) is not int and not (value is None and name == "position_rows"):
                raise UnsupportedModelError(f"{name} is {value!r}; expected a whole number.")
        if self.num_hidden_layers < 1 or self.cutoff_divisor < 2 or (self.position_rows or 1) < 1:
            raise UnsupportedModelError(
                f"Found {self.num_hidden_layers} layers, a cutoff_divisor of {self.cutoff_divisor}, position_rows "
                f"{self.position_rows}; expected at least 1, 2 and 1."
            )
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise UnsupportedModelError(
                f"hidden_size is {self.hidden_size}, which does not divide among {self.num_attention_heads} heads. "
                "Choose a width that is a multiple of the number of heads."
            )
        if self.positions not in ("learned", "sinusoidal") or (self.positions == "sinusoidal" and self.hidden_size % 2):
            raise UnsupportedModelError(
                f"positions is {self.positions!r} with hidden_size {self.hidden_size}; expected 'learned', or "
                "'sinusoidal' with an even width."
            )
        if self.memory_length < 0 or (self.same_length and self.table_rows < self.memory_length + 1):
            raise UnsupportedModelError(
                f"memory_length is {self.memory_length} and the table of distances has {self.table_rows} rows; "
                f"expected 0 or more, and at least {self.memory_length + 1} rows (position_rows)."
            )
        ends = [0, *self.cutoffs, self.vocab_size]
        if any(first >= second for first, second in itertools.pairwise(ends)) or min(self.widths()) < 1:
            raise UnsupportedModelError(
                f"cutoffs are {self.cutoffs} for {self.vocab_size} words; expected rising numbers between 0 and the "
                f"size of the vocabulary, and a width that {self.cutoff_divisor} divides {len(self.cutoffs)} times."
            )


class AllAttentionConfig(MemoryConfig):
    """All-attention: `num_persistent` key and value vectors inside every head stand in for the feed-forward part.

    The defaults are Shim et al.'s WikiText-103 model without its vocabulary.
    """

    model_type = "all_attention"

    def __init__(self, num_persistent: int = 2048, **kwargs: Any) -> None:
        self.num_persistent = num_persistent
        super().__init__(**kwargs)
        if num_persistent < 1:
            raise UnsupportedModelError(f"num_persistent is {num_persistent}; expected at least 1 vector a head.")


class TransformerXLConfig(MemoryConfig):
    """Transformer-XL with norms before its blocks: attention as in All-attention, then a feed-forward part of
    `intermediate_size` (default: four times the width)."""

    model_type = "transformer_xl"

    def __init__(
        self, intermediate_size: int | None = None, positions: Positions = "sinusoidal", **kwargs: Any
    ) -> None:
        super().__init__(positions=positions, **kwargs)
        self.intermediate_size = intermediate_size or 4 * self.hidden_size


# Here and not where transformers' module is loaded: either of the two may be the one that loads the other.
for _config in (AllAttentionConfig, TransformerXLConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
