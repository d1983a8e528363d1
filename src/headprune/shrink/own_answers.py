"""Calibration without labels: the whole model's own answers in their place, and how far another model is from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headprune.errors import UnsupportedModelError
from headprune.scoring.context import IGNORED, ExampleLoss, ScoringContext, batch_rows
from headprune.types import Batch, Outputs

LABELS = ("labels", "start_positions")
MEMORY = 2**29  # bytes of answers that are kept to compare with


def has_labels(batch: Batch) -> bool:
    return any(name in batch for name in LABELS)


def with_own_labels(context: ScoringContext, batches: Sequence[Batch], seed: int) -> tuple[list[Batch], ExampleLoss]:
    """Batches with labels drawn from what the model itself answers, and the loss of an answer.

    The mean outer product of the gradients of such a loss is the Fisher information, which is also how fast the KL
    divergence to the whole model grows: what `curvature` needs, without anybody's labels. A model without logits
    answers with its states; what is drawn is then noise around them, and the loss a squared distance.
    """
    draw = torch.Generator().manual_seed(seed)
    drawn: list[Batch] = []
    for batch in batches:
        with torch.no_grad():
            outputs = context.answer(batch)
        drawn.append({**batch, "_own": _drawn(answer_of(outputs), getattr(outputs, "logits", None) is not None, draw)})
    return drawn, ExampleLoss(_own_loss)


def _drawn(answer: Tensor, is_logits: bool, draw: torch.Generator) -> Tensor:
    if not is_logits or answer.shape[-1] == 1:
        return answer + torch.randn(answer.shape, generator=draw).to(answer)
    shares = answer.float().softmax(-1).flatten(0, -2).cpu()
    return torch.multinomial(shares, 1, generator=draw).view(answer.shape[:-1]).to(answer.device)


def _own_loss(outputs: Outputs, batch: Batch) -> Tensor:
    """One number an example: over classes, or over all real positions."""
    answer, own = answer_of(outputs), batch["_own"]
    if own.is_floating_point():
        losses: Tensor = (answer - own).square().sum(-1) / 2
    else:
        losses = F.cross_entropy(answer.float().flatten(0, -2), own.flatten(), reduction="none").view(own.shape)
    if losses.dim() == 1:
        return losses
    real = real_answers(batch, losses)
    means: Tensor = (losses * real).sum(1) / real.sum(1).clamp_min(1)
    return means


def answer_of(outputs: Outputs) -> Tensor:
    """Logits, or the last states of a model that has none: (batch, …, classes or width)."""
    for name in ("logits", "last_hidden_state", "start_logits"):
        found = getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    raise UnsupportedModelError("The model answers with neither logits nor states. Pass labels and loss=, a function.")


def real_answers(batch: Batch, like: Tensor) -> Tensor:
    """1.0 where an answer counts, (batch, positions): not at padding, and where there are labels only where they are
    asked for."""
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    for found in (labels != IGNORED if isinstance(labels, Tensor) else None, mask):
        if isinstance(found, Tensor) and found.shape == like.shape[:2]:
            return found.to(like)
    return torch.ones_like(like)


@dataclass(frozen=True)
class Closeness:
    """How near a model's answers are to the whole model's. `agreement` and `kl` are of distributions over classes or
    words; a model without logits has a `distance`: the squared error of its states, over their size."""

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
    answers: Sequence[Tensor]
    closeness: Closeness  # of the whole model to itself: its own loss

    @classmethod
    def of(cls, context: ScoringContext, batches: Sequence[Batch]) -> WholeAnswers:
        answers: list[Tensor] = []
        room = MEMORY
        for batch in batches:
            with torch.no_grad():
                answer = answer_of(context.answer(batch)).clone()
            room -= answer.numel() * answer.element_size()
            if room < 0 and answers:
                break
            answers.append(answer)
        kept = list(batches[: len(answers)])
        return cls(context, kept, answers, _closeness(context, kept, answers))

    def closeness_now(self) -> Closeness:
        """Of the model as it is at the moment: masked, repaired or pruned."""
        return _closeness(self.context, self.batches, self.answers)


def _closeness(context: ScoringContext, batches: Sequence[Batch], answers: Sequence[Tensor]) -> Closeness:
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
    return Closeness(rows, sums["answers"], loss, mean("agreement"), mean("kl"), distance)


def _sums(context: ScoringContext, batch: Batch, whole: Tensor) -> Iterator[tuple[str, float]]:
    with torch.no_grad():
        outputs: Any = context.model(**_inputs(batch)) if has_labels(batch) else context.answer(batch)
        now = answer_of(outputs)
        if has_labels(batch) and getattr(outputs, "loss", None) is not None:
            yield "loss", float(context.loss(outputs, batch).sum())
        real = real_answers(batch, now[..., 0]).bool() if now.dim() == 3 else torch.ones(len(now), dtype=torch.bool)
        now, whole = now[real].float(), whole[real].float()  # (answers, classes)
        yield "answers", float(len(now))
        if getattr(outputs, "logits", None) is None or now.shape[-1] == 1:
            yield "error", float((now - whole).square().sum())
            yield "size", float(whole.square().sum())
            return
        yield "agreement", float((now.argmax(-1) == whole.argmax(-1)).sum())
        logs, wanted = now.log_softmax(-1), whole.log_softmax(-1)
        yield "kl", float((wanted.exp() * (wanted - logs)).sum())


def _inputs(batch: Batch) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "row" and not name.startswith("_")}
