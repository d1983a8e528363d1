"""An example batch for a model, made from its forward signature and its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headprune.errors import ExampleError
from headprune.structure.dummy_inputs import InputMaker
from headprune.structure.modes import eval_mode, same_draws

BATCH, LENGTH = 2, 7  # small, and unlike usual head counts, so that dimensions are not mistaken for one another


def example_inputs(model: nn.Module, *, batch: int = BATCH, length: int = LENGTH, seed: int = 0) -> dict[str, Any]:
    """A batch that `model(**batch)` accepts: random tokens, pixels or audio of the right shapes."""
    config = getattr(model, "config", None)
    if config is None:
        raise ExampleError(
            f"{type(model).__name__} has no config to make an example batch from. "
            "Pass one: find_heads(model, example={'input_ids': …})."
        )
    maker = InputMaker(model, config, batch, length, seed)
    batches = [inputs for inputs in maker.batches() if inputs and maker.required <= inputs.keys()]
    if not batches:
        raise ExampleError(
            f"No example batch can be made for {type(model).__name__}: its forward takes {', '.join(maker.accepted)}. "
            "Pass one: find_heads(model, example={…})."
        )
    if len(batches) > 1:  # several shapes are in use for such inputs: the model itself says which it takes
        batches = [inputs for inputs in batches if _takes(model, inputs)][:1] or batches
    return batches[0]


def _takes(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    try:
        with torch.no_grad(), eval_mode(model), same_draws(model):
            model(**to_model(model, inputs))
    except Exception:  # whatever a forward stumbles over
        return False
    return True


def to_model(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch on the model's device, floating-point inputs in its dtype."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return dict(inputs)
    moved = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            value = value.clone() if value.is_inference() else value  # made in inference mode: autograd refuses it
            value = value.to(weight.device)
            if value.is_floating_point():
                value = value.to(weight.dtype)
        moved[name] = value
    return moved
