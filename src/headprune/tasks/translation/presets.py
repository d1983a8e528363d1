"""New translation models: shapes and recipes of the papers, and small ones for a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from headprune.errors import DataError
from headprune.tasks.recipe import Recipe
from headprune.types import Tokenizer

Norm = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An encoder-decoder Transformer with sinusoidal positions and one table of subword vectors for source, target and
    output. `norm="pre"` normalises before each block and once at the end (M2M-100's class), `"post"` after each block
    as in Vaswani et al. 2017 (Marian's class)."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    feed_forward: int = 2048
    norm: Norm = "pre"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    vocabulary: int = 32000
    positions: int = 512

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise DataError(f"The norm is '{self.norm}'; expected pre or post.")
        if min(self.layers, self.heads, self.width, self.feed_forward) < 1 or self.width % self.heads:
            raise DataError(f"A width of {self.width} does not divide among {self.heads} heads ({self.layers} layers).")

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class TranslatorPreset:
    """A shape, how to train it, and where it comes from."""

    shape: Shape
    recipe: Recipe
    about: str


def new_translator(shape: Shape, tokenizer: Tokenizer, seed: int) -> Any:
    """A model with random weights for the tokenizer's vocabulary."""
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_layers": shape.layers,
            f"{side}_attention_heads": shape.heads,
            f"{side}_ffn_dim": shape.feed_forward,
            f"{side}_layerdrop": 0.0,
        }
    options = {
        **sizes,
        "vocab_size": len(tokenizer),
        "d_model": shape.width,
        "dropout": shape.dropout,
        "attention_dropout": shape.attention_dropout,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": shape.positions,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
        "forced_eos_token_id": None,
    }
    if shape.norm == "pre":
        return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**options))
    return transformers.MarianMTModel(transformers.MarianConfig(**options))


# Adam as the papers have it; `learning_rate` is the peak of the schedule.
PRESETS: dict[str, TranslatorPreset] = {
    "tiny": TranslatorPreset(
        Shape(layers=2, width=32, heads=4, feed_forward=64, vocabulary=300, positions=256, dropout=0.0),
        Recipe(
            epochs=10, learning_rate=5e-3, batch_tokens=400, warmup=20, weight_decay=0.0,
            betas=(0.9, 0.98), epsilon=1e-9,
        ),
        "seconds on a CPU: for trying things out",
    ),
    "quick": TranslatorPreset(
        Shape(layers=3, width=128, heads=8, feed_forward=512, vocabulary=4000, positions=256),
        Recipe(
            epochs=10, learning_rate=2e-3, batch_tokens=1200, warmup=400, weight_decay=1e-4,
            label_smoothing=0.1, betas=(0.9, 0.98), epsilon=1e-9, bf16=True,
        ),
        "about a quarter of an hour for 29,000 captions on two cores",
    ),
    "long": TranslatorPreset(
        Shape(layers=3, width=256, heads=8, feed_forward=1024, vocabulary=4000, positions=256, dropout=0.2),
        Recipe(
            epochs=15, learning_rate=1.5e-3, batch_tokens=1200, warmup=400, weight_decay=1e-4,
            label_smoothing=0.1, betas=(0.9, 0.98), epsilon=1e-9, bf16=True,
        ),
        "under an hour for 29,000 captions on two cores",
    ),
    "iwslt": TranslatorPreset(
        Shape(layers=6, width=512, heads=8, feed_forward=1024, vocabulary=10000, dropout=0.3, attention_dropout=0.1),
        Recipe(
            updates=50_000, epochs=1000, learning_rate=5e-4, batch_tokens=4000, warmup=4000,
            weight_decay=1e-4, label_smoothing=0.1, schedule="inverse-sqrt", betas=(0.9, 0.98),
        ),
        "Michel et al.'s IWSLT model",
    ),
    "base": TranslatorPreset(
        Shape(layers=6, width=512, heads=8, feed_forward=2048, vocabulary=32000, dropout=0.1, attention_dropout=0.1),
        Recipe(
            epochs=30, learning_rate=4.0 * 512**-0.5 * 16000**-0.5, batch_tokens=4000, accumulate=4,
            warmup=16000, weight_decay=0.0, label_smoothing=0.1, schedule="inverse-sqrt", betas=(0.9, 0.998), bf16=True,
        ),
        "Voita et al.'s Transformer-base; their runs were stopped by hand, 30 epochs are Budhraja et al.'s",
    ),
    "large": TranslatorPreset(
        Shape(layers=6, width=1024, heads=16, feed_forward=4096, vocabulary=40000, norm="post", dropout=0.1,
              attention_dropout=0.1),
        Recipe(
            updates=300_000, epochs=1000, learning_rate=5e-4, batch_tokens=5000, accumulate=16,
            warmup=4000, weight_decay=0.0, label_smoothing=0.1, schedule="inverse-sqrt", betas=(0.9, 0.98), bf16=True,
        ),
        "the 16-head model that Michel et al. took from Ott et al. 2018",
    ),
}  # fmt: skip
