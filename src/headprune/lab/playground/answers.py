"""What a model answers to texts: shares of classes, or the likeliest next words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headprune.lab.playground.content import Answers
from headprune.types import Config, Outputs, Tokenizer

WORDS = 6  # next words that are shown


@dataclass(frozen=True)
class Said:
    """The answer to one text. Of two classes `share` is the second's, of more the likeliest's."""

    chosen: int
    share: float
    words: tuple[tuple[str, float], ...] = ()


def answers_kind(outputs: Outputs, batch: Mapping[str, object], config: Config) -> Answers:
    """Classes if there is one row of logits an example, words if a causal model has one a token."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        return "none"
    if logits.dim() == 2 and logits.shape[1] > 1:
        return "classes"
    ids = batch.get("input_ids")
    reads_all = isinstance(ids, Tensor) and logits.shape[:2] == ids.shape
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = " ".join(getattr(config, "architectures", None) or ())
    speaks = logits.shape[-1] == getattr(text, "vocab_size", None) and "MaskedLM" not in names
    return "words" if logits.dim() == 3 and reads_all and speaks and not config.is_encoder_decoder else "none"


def said_to_each(
    kind: Answers, outputs: Outputs, batch: Mapping[str, object], tokenizer: Tokenizer | None
) -> list[Said]:
    """One answer a row of the batch."""
    if kind == "none":
        return []
    logits = outputs.logits.float()
    if kind == "classes":
        shares = logits.softmax(-1)  # (batch, classes)
        best = shares.argmax(-1)
        shown = shares[:, 1] if shares.shape[1] == 2 else shares.gather(1, best[:, None])[:, 0]
        return [Said(int(one), float(share)) for one, share in zip(best, shown, strict=True)]
    return [_next_words(row, tokenizer) for row in last_logits(logits, batch).softmax(-1)]


def last_logits(logits: Tensor, batch: Mapping[str, object]) -> Tensor:
    """Of the last real token of each row: (batch, words)."""
    mask = batch.get("attention_mask")
    rows = torch.arange(len(logits))
    if not isinstance(mask, Tensor):
        return logits[:, -1]
    places = torch.arange(mask.shape[1]).expand_as(mask)
    return logits[rows, (places * mask.cpu().bool()).amax(1)]


def _next_words(shares: Tensor, tokenizer: Tokenizer | None) -> Said:
    top = shares.topk(min(WORDS, len(shares)))
    words = [_word(tokenizer, int(token)) for token in top.indices]
    found = tuple((word, round(float(share), 4)) for word, share in zip(words, top.values, strict=True))
    return Said(int(top.indices[0]), float(top.values[0]), found)


def _word(tokenizer: Tokenizer | None, token: int) -> str:
    return str(tokenizer.decode([token])) if tokenizer is not None else str(token)


def class_names(config: Config, count: int) -> tuple[str, ...]:
    """As the config says; class numbers where it only says LABEL_0."""
    names = getattr(config, "id2label", None) or {}
    found: Sequence[str] = [str(names.get(number, number)) for number in range(count)]
    return tuple(name.removeprefix("LABEL_") if name == f"LABEL_{number}" else name
                 for number, name in enumerate(found))  # fmt: skip
