"""Running a model to look at it: an example, the modes it is run in, its answer, and whether two answers are one."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from headprune.errors import ExampleError, HeadpruneError
from headprune.hooks import SavedCall
from headprune.structure.dummy_inputs import InputMaker
from headprune.structure.model_state import same_attributes
from headprune.types import Batch, Kwargs


def run(model: nn.Module, example: Batch | None = None, *, is_made: bool = False, keep_state: bool = True) -> Any:
    """The model's answer to an example batch, in evaluation mode, without a cache; `is_made`: not the caller's.

    The model is left as it was, unless the caller sees to that for many runs (`keep_state=False`).
    """
    inputs = to_model(model, example if example is not None else example_inputs(model))
    asked = {"use_cache": False} if "use_cache" not in inputs and takes_use_cache(model) else {}
    try:
        with same_attributes(model) if keep_state else nullcontext(), eval_mode(model), same_draws(model):
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
    with same_attributes(module), same_draws(module):
        module(*args, **kwargs)


def takes_use_cache(model: nn.Module) -> bool:
    """Whether its forward has to be told not to keep a cache."""
    takes = inspect.signature(model.forward).parameters
    has_cache = getattr(getattr(model, "config", None), "use_cache", None) is not None
    return "use_cache" in takes or (has_cache and any(p.kind is p.VAR_KEYWORD for p in takes.values()))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def kept_draws(model: nn.Module) -> Iterator[None]:
    """Whatever is drawn at random until the block ends, other draws go on as if nothing had been."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


@contextmanager
def same_draws(model: nn.Module) -> Iterator[None]:
    """A model that draws at random (masked patches, sampled keys) draws the same each time; other draws go on."""
    with kept_draws(model):
        if any(parameter.device.type == "cuda" for parameter in model.parameters()):
            torch.manual_seed(0)
        else:  # `manual_seed` would note for CUDA, which is not there, where it was called from
            torch.default_generator.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        yield


@contextmanager
def free_gradients(model: nn.Module) -> Iterator[None]:
    """Gradients on for all weights, frozen ones too; afterwards as before."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


BATCH, LENGTH = 2, 7  # small, and unlike usual head counts, so that dimensions are not mistaken for one another


def example_inputs(model: nn.Module, *, batch: int = BATCH, length: int = LENGTH, seed: int = 0) -> Kwargs:
    """A batch that `model(**batch)` accepts: random tokens, pixels or audio of the right shapes."""
    config = getattr(model, "config", None)
    if config is None:
        raise ExampleError(
            f"{type(model).__name__} has no config to make an example batch from. "
            "Pass one: find_heads(model, example={'input_ids': …})."
        )
    maker = InputMaker(model, config, batch, length, seed)
    with eval_mode(model), kept_draws(model):  # how many places a picture takes is asked of the model
        batches = (inputs for inputs in maker.batches() if inputs and maker.required <= inputs.keys())
        first, second = next(batches, None), next(batches, None)
        if first is None:
            raise ExampleError(
                f"No example batch can be made for {type(model).__name__}: its forward takes "
                f"{', '.join(maker.accepted)}. Pass one: find_heads(model, example={{…}})."
            )
        if second is None:
            return first
        # Several shapes are in use for such inputs: the model itself says which it takes.
        return next((inputs for inputs in chain((first, second), batches) if takes(model, inputs)), first)


def takes(model: nn.Module, inputs: Batch) -> bool:
    try:
        with torch.no_grad(), same_attributes(model), eval_mode(model), same_draws(model):
            model(**to_model(model, inputs))
    except Exception:  # whatever a forward stumbles over
        return False
    return True


def to_model(model: nn.Module, inputs: Batch) -> Kwargs:
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


@dataclass(frozen=True)
class Difference:
    """The largest difference of two answers, and what is allowed."""

    largest: float
    allowed: float

    @property
    def is_small(self) -> bool:
        return self.largest <= self.allowed  # a NaN is never small


def difference(found: object, expected: object) -> Difference:
    """Largest difference over all floating-point outputs. Attention maps and caches are not compared."""
    worst = Difference(0.0, 0.0)
    theirs = list(answer_tensors(expected))
    mine = list(answer_tensors(found))
    if len(mine) != len(theirs):
        return Difference(float("inf"), 0.0)
    for a, b in zip(mine, theirs, strict=True):
        if a.shape != b.shape:
            return Difference(float("inf"), 0.0)
        this = Difference(_largest_difference(a, b), _allowed(b))
        if not this.is_small or this.largest * worst.allowed > worst.largest * this.allowed or worst.allowed == 0.0:
            worst = this
        if not this.is_small:
            return this
    return worst


def _largest_difference(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().float(), b.detach().float()
    same = a == b  # infinities of masked logits included
    return float(torch.where(same, 0.0, (a - b).abs()).max()) if a.numel() else 0.0


def _allowed(expected: Tensor) -> float:
    """1e-5 of the largest output (at least 1) in float32; 2e-2 of the largest output in half precision."""
    values = expected.detach().float()
    values = values[values.isfinite() & (values > torch.finfo(expected.dtype).min / 2)]
    largest = float(values.abs().max()) if values.numel() else 0.0
    if expected.dtype in (torch.float16, torch.bfloat16):
        return 2e-2 * max(largest, 1e-3)
    return 1e-5 * max(1.0, largest)


def answer_tensors(answer: object) -> Iterator[Tensor]:
    """Every floating-point tensor of an answer but attention maps and caches."""
    if isinstance(answer, Tensor):
        if answer.is_floating_point():
            yield answer
    elif isinstance(answer, Mapping):
        for name, value in answer.items():
            if "attentions" not in str(name) and "past_key_values" not in str(name):
                yield from answer_tensors(value)
    elif isinstance(answer, list | tuple):
        for value in answer:
            yield from answer_tensors(value)
