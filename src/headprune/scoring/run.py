"""`score`: any scorer on any model and data."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import nn

from headprune.errors import UnsupportedModelError
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.masking import masked
from headprune.scoring.context import ScoringContext, batches_of, evaluation
from headprune.scoring.losses import ExampleLoss, LossFunction
from headprune.scoring.moments import equations_of
from headprune.scoring.registry import scorers
from headprune.structure.find import find_heads, unwrapped


def score(
    model: nn.Module,
    data: Any = (),
    *,
    method: str = "sensitivity",
    loss: Literal["mean", "sum"] | LossFunction = "mean",
    heads: HeadMap | None = None,
    mask: HeadMask | None = None,
    collator: Any = None,
    batch_size: int = 16,
    name: str = "",
    seed: int = 0,
    **options: Any,
) -> HeadScores:
    """What every head is worth, by `method`; larger is more worth keeping.

    `data` is a DataLoader, a list of batches, or a dataset of examples (with a `collator`); batches are tables of
    model inputs with `labels`. `loss` is how an example's loss is taken: "mean" or "sum" over its target tokens, or a
    function `(outputs, batch) -> (batch,)`. With `mask`, the model is scored with only these heads on. `name` says
    what the data is, for the record. Further options are the method's own. Scores of parts of the data add up:
    `score(model, first) + score(model, second)`.

    Example:
        >>> scores = hp.score(model, batches, method="sensitivity", name="dev")
        >>> len(scores.scores["encoder.0"])
        4
    """
    model = unwrapped(model)
    scorer = scorers[method]
    found = heads if heads is not None else find_heads(model)
    if scorer.of_attention and found.neurons:
        raise UnsupportedModelError(
            f"'{method}' looks at attention, which neurons do not have. Score heads alone, or neurons by another one "
            "(sensitivity, fisher, output-norm, curvature …)."
        )
    scorer.check_options(method, options)
    if not len(found):
        raise UnsupportedModelError("This model has no heads left: there is nothing to score.")
    if not scorer.data_free and any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError("The model is on the meta device: it has no weights to run. Load them first.")
    device = next(model.parameters()).device
    batches = batches_of(data, device, collator=collator, batch_size=batch_size)
    job = ScoringContext(model=model, heads=found, batches=batches, loss=ExampleLoss(loss), seed=seed)
    masking = masked(model, mask, heads=found) if mask is not None else nullcontext()
    solving = equations_of(f"The score '{method}'")
    with torch.inference_mode(False), evaluation(model), masking, solving:  # gradients are wanted in any case
        scores = scorer(job, **options)
    how = {} if loss == "mean" else {"loss": loss if isinstance(loss, str) else "own"}
    return dataclasses.replace(scores, data=name, options={**scores.options, **how})
