"""Calibration without labels: the whole model's own answers in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headprune.scoring.answers import answer_of, real_answers
from headprune.scoring.context import ExampleLoss, ScoringContext
from headprune.types import Batch, Outputs

OWN = "_own"


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
            drawn.append({**batch, OWN: answer_of(context.answer(batch), context.config).drawn(draw)})

    def loss(outputs: Outputs, batch: Batch) -> Tensor:
        """One number an example: the mean over the answers that count."""
        answer = answer_of(outputs, context.config)
        losses = answer.losses(batch[OWN])
        real = real_answers(batch, answer, context.has_encoder).to(losses)
        means: Tensor = (losses * real).sum(1) / real.sum(1).clamp_min(1)
        return means

    return drawn, ExampleLoss(loss)
