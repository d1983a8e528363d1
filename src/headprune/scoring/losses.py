"""The loss of each example of a batch, worked out so that it agrees with the model's own loss.

L(x) is the mean over x's own target tokens (`"mean"`), or their sum (`"sum"`, as in Michel et al.'s translation code);
positions labelled -100 do not count. How a family arranges logits and labels is not looked up: every usual arrangement
is tried on the first batch, and the one that reproduces the model's own loss is used. If none does, say what the loss
is: `loss(outputs, batch) -> (batch,)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headprune.errors import DataError, UnsupportedModelError
from headprune.types import Batch, Outputs

LossFunction = Callable[[Outputs, Batch], Tensor]
IGNORED = -100


class ExampleLoss:
    """Callable: the model's output and the batch to one loss per example (batch,)."""

    def __init__(self, loss: Literal["mean", "sum"] | LossFunction = "mean") -> None:
        self.sums = loss == "sum"
        self.given = loss if callable(loss) else None
        if self.given is None and loss not in ("mean", "sum"):
            raise DataError(f"loss is {loss!r}; expected 'mean', 'sum' or a function of outputs and batch.")
        self._arrangement: Callable[[Outputs, Batch], tuple[Tensor, Tensor]] | None = None

    def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
        if self.given is not None:
            losses = self.given(outputs, batch)
        else:
            sums, counts = self.parts(outputs, batch)
            losses = sums if self.sums else sums / counts.clamp_min(1)
        if losses.dim() != 1:
            raise DataError(f"The loss function returned shape {tuple(losses.shape)}; expected one number per example.")
        if not bool(losses.detach().isfinite().all()):
            row = int((~losses.detach().isfinite()).nonzero()[0])
            raise DataError(f"The loss of example {row} of a batch is not finite. Look at its inputs and labels.")
        return losses

    def parts(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss of each example's target tokens, and their number."""
        if self._arrangement is None:
            self._arrangement = _find_arrangement(outputs, batch)
        return self._arrangement(outputs, batch)


_OWN_ERROR = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # of a loss that a model computes in half precision


def _find_arrangement(outputs: Outputs, batch: Batch) -> Callable[[Outputs, Batch], tuple[Tensor, Tensor]]:
    own = getattr(outputs, "loss", None)
    if own is None:
        raise UnsupportedModelError(
            "The model computed no loss: its batches need labels. Add them, or pass loss=, a function(outputs, batch)."
        )
    if not bool(own.detach().isfinite().all()):
        raise DataError(
            f"The model's loss is {float(own.detach())} on the first batch. Look at its weights and inputs."
        )
    allowed = _OWN_ERROR.get(own.dtype, 1e-3)
    gaps: list[tuple[float, Callable[[Outputs, Batch], tuple[Tensor, Tensor]]]] = []
    for arrangement in _ARRANGEMENTS:
        try:
            sums, counts = arrangement(outputs, batch)
        except (KeyError, TypeError, IndexError, RuntimeError, ValueError, AttributeError):
            continue
        by_token = sums.sum() / counts.sum().clamp_min(1)
        by_example = (sums / counts.clamp_min(1)).mean()
        for total in (by_token, by_example):
            if torch.isclose(total.detach().float(), own.detach().float(), rtol=allowed, atol=1e-4):
                gaps.append((abs(float(total.detach()) - float(own.detach())), arrangement))
    if gaps:  # the nearest: on an untrained model, several may be near
        return min(gaps, key=lambda item: item[0])[1]
    raise UnsupportedModelError(
        "The model's own loss is not a mean over examples or target tokens that headprune knows. "
        "Pass loss=, a function of outputs and batch that returns one loss per example."
    )


def _class_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """One class per example."""
    losses = F.cross_entropy(outputs.logits.float(), batch["labels"].view(-1), reduction="none")
    return losses, torch.ones_like(losses)


def _regression(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    labels = batch["labels"].float().view(len(outputs.logits), -1)
    losses = F.mse_loss(outputs.logits.float().view_as(labels), labels, reduction="none").mean(1)
    return losses, torch.ones_like(losses)


def _several_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    losses = F.binary_cross_entropy_with_logits(outputs.logits.float(), batch["labels"].float(), reduction="none")
    return losses.mean(1), torch.ones_like(losses[:, 0])


def _tokens(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if logits.dim() != 3:
        raise ValueError(f"logits of shape {tuple(logits.shape)}; expected (batch, length, vocabulary)")
    # With the vocabulary last, as it is in memory: over the middle of (batch, vocabulary, length) it takes ten times
    # as long.
    by_token = F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    )  # (batch * length,)
    losses = by_token.view(labels.shape)
    return losses.sum(1), (labels != IGNORED).sum(1).to(losses.dtype)  # (batch,)


def token_labels(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """A label at every position: tagging, masked language models, encoder-decoders."""
    return _tokens(outputs.logits, batch["labels"])


def next_tokens(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Causal language models: position t predicts label t + 1."""
    labels = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)  # shorter logits would be a copy of all of them
    return _tokens(outputs.logits, labels)


def _answer_spans(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Question answering: the mean of start and end."""
    ends = [(outputs.start_logits, batch["start_positions"]), (outputs.end_logits, batch["end_positions"])]
    losses = [F.cross_entropy(logits.float(), place.view(-1), reduction="none") for logits, place in ends]
    return (losses[0] + losses[1]) / 2, torch.ones_like(losses[0])


_ARRANGEMENTS = (_class_labels, next_tokens, token_labels, _regression, _several_labels, _answer_spans)
