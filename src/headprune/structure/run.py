"""A model's answer to an example."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from headprune.errors import ExampleError, HeadpruneError
from headprune.hooks import SavedCall
from headprune.structure.example import example_inputs, to_model
from headprune.structure.modes import eval_mode, same_draws


def run(model: nn.Module, example: Mapping[str, Any] | None = None, *, is_made: bool = False) -> Any:
    """The model's answer to an example batch, in evaluation mode, without a cache; `is_made`: not the caller's."""
    inputs = to_model(model, example if example is not None else example_inputs(model))
    asked = {"use_cache": False} if "use_cache" not in inputs and takes_use_cache(model) else {}
    try:
        with eval_mode(model), same_draws(model):
            try:
                return model(**inputs, **asked)
            except TypeError as error:  # a forward that hands its keywords on beside a use_cache of its own
                if not asked or "use_cache" not in str(error):
                    raise
                return model(**inputs)
    except HeadpruneError:
        raise
    except Exception as error:
        made = "the given example" if example is not None and not is_made else "an example made from its config"
        raise ExampleError(
            f"{type(model).__name__} cannot be run on {made} ({', '.join(inputs)}): {type(error).__name__}: {error}. "
            "Pass a batch that the model accepts: find_heads(model, example={…})."
        ) from error


def run_again(model: nn.Module, call: SavedCall) -> None:
    """Run a part of the model as it was run before."""
    args, kwargs = call.arguments()
    module = model.get_submodule(call.path)  # which pruning may have replaced
    with same_draws(module):
        module(*args, **kwargs)


def takes_use_cache(model: nn.Module) -> bool:
    """Whether its forward has to be told not to keep a cache."""
    takes = inspect.signature(model.forward).parameters
    has_cache = getattr(getattr(model, "config", None), "use_cache", None) is not None
    return "use_cache" in takes or (has_cache and any(p.kind is p.VAR_KEYWORD for p in takes.values()))
