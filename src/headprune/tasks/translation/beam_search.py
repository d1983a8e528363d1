"""Beam search as the papers do it, through `generate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

from headprune.errors import DataError


class GnmtPenalty(float):
    """alpha of Wu et al. 2016: a finished translation's log-probability is divided by ((5 + length) / 6) ** alpha.

    `generate` divides by length ** penalty. This number, as an exponent, gives the other formula: the length is on the
    left of **, so Python asks the exponent what the power is. A test compares the outcome with the formula.
    """

    def __rpow__(self, length: Any, modulo: Any = None) -> Any:
        return ((5.0 + length) / 6.0) ** float(self)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Beams, how length is paid for, and when to give up: at `ratio` times the row's own source, and some. A broken
    model, which never ends a sentence, so costs as much as one that says twice as much as it was told.

    `penalty="power"` divides by length ** length_penalty (fairseq, transformers), `"gnmt"` by
    ((5 + length) / 6) ** length_penalty (Tensor2Tensor and the models of Voita et al. and Budhraja et al.).
    """

    beams: int = 5
    length_penalty: float = 1.0
    penalty: Literal["power", "gnmt"] = "power"
    ratio: float = 2.0
    extra: int = 10

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise DataError(f"The beam is {self.beams} wide; expected 1 (greedy) or more.")
        if self.penalty not in ("power", "gnmt"):
            raise DataError(f"The length penalty is '{self.penalty}'; expected power or gnmt.")

    def run(self, model: nn.Module, inputs: dict[str, Any], longest: int, **forced: object) -> Tensor:
        """Token ids of the best translation of each row, padded; `longest` is the most that the model can write."""
        room = min(longest, int(self.ratio * inputs["input_ids"].shape[1]) + self.extra)
        exponent = GnmtPenalty(self.length_penalty) if self.penalty == "gnmt" else self.length_penalty
        more: dict[str, Any] = {"length_penalty": exponent, "early_stopping": False} if self.beams > 1 else {}
        found: Tensor = model.generate(  # type: ignore[operator]
            **inputs,
            num_beams=self.beams,
            do_sample=False,
            max_new_tokens=max(1, room),
            max_length=None,
            logits_processor=LogitsProcessorList([_EndBySource.of(self, model, inputs, forced)]),
            **more,
            **forced,
        )
        return found

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class _EndBySource(LogitsProcessor):
    """Ends a translation that is as long as its source allows."""

    most: Tensor  # (batch,)
    end: int

    @classmethod
    def of(cls, search: Search, model: nn.Module, inputs: dict[str, Any], forced: dict[str, Any]) -> _EndBySource:
        tokens = inputs["input_ids"]
        lengths = inputs["attention_mask"].sum(1) if "attention_mask" in inputs else tokens.new_full(
            (len(tokens),), tokens.shape[1])  # fmt: skip
        said = 1 + ("forced_bos_token_id" in forced)  # what stands before the translation
        config: Any = model.config
        end = config.eos_token_id if isinstance(config.eos_token_id, int) else config.eos_token_id[0]
        return cls((search.ratio * lengths).long() + search.extra + said, end)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        beams = len(scores) // len(self.most)
        over = (input_ids.shape[1] >= self.most).repeat_interleave(beams)  # (batch x beams,)
        if not bool(over.any()):
            return scores
        ended = torch.full_like(scores, float("-inf"))
        ended[:, self.end] = 0
        return torch.where(over[:, None], ended, scores)


# What each paper says, or its code does.
SEARCHES = {
    "michel": Search(beams=5, length_penalty=1.0),
    "voita": Search(beams=4, length_penalty=0.6, penalty="gnmt", ratio=1.0, extra=50),
    "budhraja": Search(beams=4, length_penalty=0.6, penalty="gnmt", ratio=1.0, extra=50),
    "greedy": Search(beams=1),
}
