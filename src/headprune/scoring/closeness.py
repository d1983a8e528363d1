"""How near a smaller model's answers are to the whole model's: the price, on examples that nothing was fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from headprune.scoring.answers import Answer, answer_of, has_labels, real_answers
from headprune.scoring.context import ScoringContext, batch_rows, model_inputs
from headprune.types import Batch

MEMORY = 2**29  # bytes of answers that are kept to compare with


@dataclass(frozen=True)
class Closeness:
    """How near a model's answers are to the whole model's. `agreement` and `kl` are of decisions: classes, words, or
    labels one by one; a model without any has a `distance`: the squared error of its states, over their size."""

    examples: int
    answers: float
    loss: float | None
    agreement: float | None
    kl: float | None
    distance: float | None


@dataclass(frozen=True)
class WholeAnswers:
    """What the whole model says to some batches: as many as fit into memory."""

    context: ScoringContext
    batches: Sequence[Batch]
    answers: Sequence[Answer]
    closeness: Closeness  # of the whole model to itself: its own loss

    @classmethod
    def of(cls, context: ScoringContext, batches: Sequence[Batch]) -> WholeAnswers:
        answers: list[Answer] = []
        room = MEMORY
        for batch in batches:
            with torch.no_grad():
                found = answer_of(context.answer(batch), context.config)
            room -= found.values.numel() * found.values.element_size()
            if room < 0 and answers:
                break
            answers.append(Answer(found.values.clone(), found.kind, found.is_text))
        kept = list(batches[: len(answers)])
        return cls(context, kept, answers, _closeness(context, kept, answers))

    def closeness_by_batch(self) -> Iterator[Closeness]:
        """Of the model as it is at the moment, one batch after another, each when it is asked for."""
        for batch, whole in zip(self.batches, self.answers, strict=True):
            yield _closeness(self.context, [batch], [whole])

    def closeness_now(self) -> Closeness:
        """Of the model as it is at the moment: masked, repaired or pruned."""
        return _closeness(self.context, self.batches, self.answers)


def _closeness(context: ScoringContext, batches: Sequence[Batch], answers: Sequence[Answer]) -> Closeness:
    sums: dict[str, float] = {}
    for batch, whole in zip(batches, answers, strict=True):
        for name, value in _sums(context, batch, whole):
            sums[name] = sums.get(name, 0.0) + value
    count = max(1.0, sums["answers"])

    def mean(name: str) -> float | None:
        return sums[name] / count if name in sums else None

    rows = sum(map(batch_rows, batches))
    distance = sums["error"] / max(sums["size"], 1e-30) if "error" in sums else None
    loss = sums["loss"] / rows if "loss" in sums else None
    kl = mean("kl")
    nearest = None if kl is None else max(0.0, kl)  # rounding apart, none is below
    return Closeness(rows, sums["answers"], loss, mean("agreement"), nearest, distance)


def _sums(context: ScoringContext, batch: Batch, whole: Answer) -> Iterator[tuple[str, float]]:
    with torch.no_grad():
        outputs: Any = context.model(**model_inputs(batch)) if has_labels(batch) else context.answer(batch)
        if has_labels(batch) and getattr(outputs, "loss", None) is not None:
            yield "loss", float(context.loss(outputs, batch).sum())
        answer = answer_of(outputs, context.config)
        real = real_answers(batch, answer, context.has_encoder)
        now, then = answer.of_rows(real), whole.of_rows(real)  # (answers, classes)
        yield "answers", float(now.numel() if answer.kind == "labels" else len(now))
        if answer.kind == "states":
            yield "error", float((now - then).square().sum())
            yield "size", float(then.square().sum())
        elif answer.kind == "labels":
            yield "agreement", float(((now > 0) == (then > 0)).sum())
            shares = then.sigmoid()
            crossed = F.binary_cross_entropy_with_logits(now, shares, reduction="sum")
            yield "kl", float(crossed - F.binary_cross_entropy_with_logits(then, shares, reduction="sum"))
        else:
            yield "agreement", float((now.argmax(-1) == then.argmax(-1)).sum())
            logs, wanted = now.log_softmax(-1), then.log_softmax(-1)
            yield "kl", float((wanted.exp() * (wanted - logs)).sum())
