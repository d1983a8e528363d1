"""Optimizers by name, as the Trainer takes them: a class and its options."""

from __future__ import annotations

from typing import Any

from headprune.errors import MissingExtraError
from headprune.tasks.recipe import Recipe


def optimizer_of(recipe: Recipe) -> tuple[Any, dict[str, Any]] | None:
    """None for AdamW, which is the Trainer's own.

    LAMB is You et al. 2020 as Shim et al. have it: no bias correction, the norm of a weight counted up to 10, the trust
    ratio w / (u + eps), or 1 where one of them is zero.
    """
    if recipe.optimizer == "adamw":
        return None
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        raise MissingExtraError("LAMB needs pytorch_optimizer: pip install 'headprune[tasks]'.") from error
    options = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.epsilon}
    return Lamb, {**options, "adam_debias": True}  # as it is named there: True leaves the step uncorrected
