"""New language models with a memory: shapes and recipes of Shim et al., and small ones for a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from headprune.errors import DataError
from headprune.tasks.recipe import Recipe
from headprune.types import Config, Tokenizer

Kind = Literal["all-attention", "transformer-xl"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`persistent` vectors a head in All-attention; in Transformer-XL the feed-forward part has this width instead, by
    which both have the same size. Memory and segments have the length `memory`."""

    kind: Kind = "all-attention"
    layers: int = 16
    width: int = 512
    heads: int = 8
    persistent: int = 2048
    memory: int = 192
    positions: str = "learned"
    position_rows: int | None = None
    cutoffs: tuple[int, ...] = ()
    dropout: float = 0.1
    attention_dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise DataError(f"The kind of model is '{self.kind}'; expected {' or '.join(get_args(Kind))}.")

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "cutoffs": list(self.cutoffs)}


@dataclass(frozen=True)
class LanguageModelPreset:
    """A shape, how to train it from random weights, and where it comes from."""

    shape: Shape
    recipe: Recipe
    about: str


def new_language_model(shape: Shape, tokenizer: Tokenizer, seed: int) -> Any:
    """A model with random weights for the tokenizer's symbols."""
    import torch

    from headprune.lab.models import configuration, modeling

    enough = shape.position_rows is None or shape.position_rows > shape.memory
    options: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "memory_length": shape.memory,
        "positions": shape.positions,
        "position_rows": shape.position_rows if enough else None,
        "cutoffs": [cutoff for cutoff in shape.cutoffs if cutoff < len(tokenizer)],
        "embedding_dropout": shape.dropout,
        "hidden_dropout": shape.dropout,
        "attention_dropout": shape.attention_dropout,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(seed)
    if shape.kind == "all-attention":
        config: Config = configuration.AllAttentionConfig(num_persistent=shape.persistent, **options)
        return modeling.AllAttentionForCausalLM(config)
    return modeling.TransformerXLForCausalLM(
        configuration.TransformerXLConfig(intermediate_size=shape.persistent, **options)
    )


_PAPER: dict[str, Any] = {
    "optimizer": "lamb", "schedule": "cosine", "floor": 0.01, "warmup": 4000, "weight_decay": 0.0, "clip": 0.5,
    "epochs": 1000, "updates": 160_000, "learning_rate": 1e-2, "bf16": True,
}  # fmt: skip

# `batch_size` is the number of streams, `max_length` that of tokens in a segment.
PRESETS: dict[str, LanguageModelPreset] = {
    "tiny": LanguageModelPreset(
        Shape(layers=2, width=32, heads=4, persistent=32, memory=16, dropout=0.0, attention_dropout=0.0),
        Recipe(
            updates=150, epochs=1000, learning_rate=1e-2, batch_size=8, max_length=16, warmup=10, weight_decay=0.0,
            schedule="cosine", floor=0.1,
        ),
        "seconds on a CPU: for trying things out",
    ),
    "small": LanguageModelPreset(
        Shape(layers=6, width=192, heads=6, persistent=256, memory=64, dropout=0.05, attention_dropout=0.0),
        Recipe(
            updates=3000, epochs=1000, learning_rate=2e-3, batch_size=32, max_length=64, warmup=100,
            weight_decay=0.0, schedule="cosine", floor=0.05, clip=0.5, bf16=True,
        ),
        "for two cores; dropout of attention would double the time of a step there",
    ),
    "wikitext-103": LanguageModelPreset(
        Shape(cutoffs=(20_000, 40_000, 200_000), position_rows=512),
        Recipe(batch_size=96, max_length=192, **_PAPER),
        "Shim et al.'s model for WikiText-103",
    ),
    "text8": LanguageModelPreset(
        Shape(layers=12, memory=512),
        Recipe(batch_size=64, max_length=512, **_PAPER),
        "Shim et al.'s model for Text8",
    ),
}  # fmt: skip
