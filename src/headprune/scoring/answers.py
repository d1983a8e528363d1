"""What a model answers: classes, labels that each may be true, or states; and which of the answers count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headprune.errors import DataError, UnsupportedModelError
from headprune.scoring.context import IGNORED, ScoringContext
from headprune.types import Batch, Outputs

Kind = Literal["classes", "labels", "states"]
LABELS = ("labels", "start_positions")


def has_labels(batch: Batch) -> bool:
    return any(name in batch for name in LABELS)


@dataclass(frozen=True)
class Answer:
    """The numbers that a model answers with, and what they say: `classes`, one of which is right, `labels`, each of
    which may be true, or `states` of a model that decides nothing."""

    values: Tensor  # (batch, answers, classes, labels or width)
    kind: Kind
    is_text: bool  # one answer a position, some of them padding

    def of_rows(self, real: Tensor) -> Tensor:
        """The answers that count: (answers, …), in float32."""
        return self.values[real].float()

    def losses(self, wanted: Tensor) -> Tensor:
        """How far the answers are from those that were drawn from a model: (batch, answers)."""
        values = self.values.float()
        if self.kind == "classes":
            return F.cross_entropy(values.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
        if self.kind == "labels":
            return F.binary_cross_entropy_with_logits(values, wanted.float(), reduction="none").sum(-1)
        distances: Tensor = (values - wanted.float()).square().sum(-1) / 2
        return distances

    def drawn(self, draw: torch.Generator) -> Tensor:
        """One answer at random, as likely as the model says: noise around a state."""
        values = self.values.float().cpu()
        if self.kind == "classes":
            chosen = torch.multinomial(values.softmax(-1).flatten(0, 1), 1, generator=draw).view(values.shape[:2])
        elif self.kind == "labels":
            chosen = torch.bernoulli(values.sigmoid(), generator=draw)
        else:
            chosen = values + torch.randn(values.shape, generator=draw)
        return chosen.to(self.values.device)


def answer_of(outputs: Outputs, config: object) -> Answer:
    """What a forward pass says; refused where that cannot be told."""
    start, end = getattr(outputs, "start_logits", None), getattr(outputs, "end_logits", None)
    if isinstance(start, Tensor) and isinstance(end, Tensor):  # two answers: a position each
        return Answer(torch.stack([start, end], dim=1), "classes", is_text=False)
    logits, states = getattr(outputs, "logits", None), getattr(outputs, "last_hidden_state", None)
    if isinstance(logits, Tensor):
        if logits.dim() == 4:  # an image: (batch, classes, height, width)
            logits = logits.flatten(2).transpose(1, 2)
            return Answer(logits, _kind(logits, config), is_text=False)
        if logits.dim() in (2, 3):
            is_text = logits.dim() == 3
            return Answer(logits if is_text else logits[:, None], _kind(logits, config), is_text)
    elif isinstance(states, Tensor) and states.dim() >= 2:
        is_text = states.dim() == 3
        return Answer(states if is_text else states.flatten(1)[:, None], "states", is_text)
    raise UnsupportedModelError(
        "The model answers with neither logits nor states of a shape that is known. Pass labels and loss=, a function."
    )


def _kind(logits: Tensor, config: object) -> Kind:
    """By what the config says that the model decides; one number is a quantity."""
    problem = getattr(config, "problem_type", None)
    if logits.shape[-1] == 1 or problem == "regression":
        return "states"
    return "labels" if problem == "multi_label_classification" else "classes"


def real_answers(batch: Batch, answer: Answer, has_encoder: bool) -> Tensor:
    """True where an answer counts, (batch, answers): not at padding, and with labels only where they are asked for.
    What a decoder writes has the decoder's padding, whatever the encoder read."""
    shape = answer.values.shape[:2]
    labels = batch.get("labels")
    mask = batch.get("decoder_attention_mask" if has_encoder else "attention_mask")
    for found in (labels != IGNORED if isinstance(labels, Tensor) else None, mask):
        if answer.is_text and isinstance(found, Tensor) and found.shape == shape:
            return found.bool().to(answer.values.device)
    return torch.ones(shape, dtype=torch.bool, device=answer.values.device)


def first_answer(context: ScoringContext, batch: Batch) -> None:
    """Run one batch: what a model cannot take is told by what was given."""
    try:
        with torch.no_grad():
            answer_of(context.answer(batch), context.config)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        given: Mapping[str, Any] = batch
        needs = ""
        if context.has_encoder and not {"labels", "decoder_input_ids"}.intersection(given):
            needs = " An encoder-decoder needs labels, or decoder_input_ids."
        raise DataError(f"The model does not run on a batch of {', '.join(given)}: {error}.{needs}") from error
