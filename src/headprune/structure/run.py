"""Running a model to look at it: the modes it is run in, its state before and after, whether two answers are one."""

from __future__ import annotations

import collections
import copy
import inspect
import random
import types
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from headprune.errors import ExampleError, HeadpruneError, UnsupportedModelError
from headprune.hooks import SavedCall, is_of_hooks
from headprune.types import Batch, Kwargs


def run(model: nn.Module, example: Batch, *, is_made: bool = False, keep_state: bool = True) -> Any:
    """The model's answer to an example batch, in evaluation mode, without a cache; `is_made`: not the caller's.

    The model is left as it was, unless the caller sees to that for many runs (`keep_state=False`).
    """
    inputs = to_model(model, example)
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
        made = "an example made from its config" if is_made else "the given example"
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


_CONTAINERS = (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, weakref.ref)
# Threads that run the model beside this one wait with these, and put these on it: what changes in them is theirs.
_SHARED = ("torch", "weakref", "threading", "_thread", "queue", "concurrent", "asyncio", "multiprocessing", "logging")
_FLAGS_OF_HOOKS = ("_with_kwargs", "_always_called")  # by the numbers of hooks, which come and go
_DEPTH = 8  # objects inside objects, counted from the module that holds them


class ModelState:
    """Everything that a forward pass may change: what modules, their configs and plain objects hold, and buffers.

    Weights are not copied, and `_parameters` is left alone: a run changes neither, and a repair may.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables: list[tuple[str, Any, Any]] = []
        self._tensors: list[tuple[str, Tensor, int | None, Tensor]] = []
        self._seen: dict[int, object] = {}
        for path, module in model.named_modules():
            self._note(path or type(model).__name__, module, 0)

    def _note(self, name: str, value: Any, depth: int) -> None:
        if type(value) in (str, int, float, bool, types.NoneType) or isinstance(value, (*_CLOSED, nn.Parameter)):
            return
        if id(value) in self._seen or depth > _DEPTH or is_of_hooks(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensors.append((name, value, _version(value), value.detach().clone()))
        elif type(value) in _CONTAINERS:
            self._tables.append((name, value, copy.copy(value)))
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if not isinstance(item, nn.Module):  # the loop over modules comes to it
                    self._note(f"{name}.{key}", item, depth + 1)
        elif type(value) in (tuple, frozenset):
            for item in value:
                self._note(name, item, depth + 1)
        elif isinstance(value, nn.Module):
            self._tables.append((name, vars(value), dict(vars(value))))
            for key, item in vars(value).items():
                if key != "_parameters" and not key.endswith(_FLAGS_OF_HOOKS):
                    self._note(f"{name}.{key}", item, 1)
        elif hasattr(value, "__dict__") and not type(value).__module__.startswith(_SHARED):
            self._note(name, vars(value), depth)

    def changes(self) -> list[str]:
        """The names of what is not as it was."""
        found = []
        for name, table, before in self._tables:
            if _differs(table, before):
                found += [f"{name}.{key}" for key in _changed_keys(table, before)] or [name]
        return found + [name for name, tensor, version, before in self._tensors if _rewritten(tensor, version, before)]

    def replaced_modules(self) -> list[str]:
        """Modules that others have taken the place of."""
        tables = [(name, table, before) for name, table, before in self._tables if name.endswith("._modules")]
        return [
            f"{name.removesuffix('._modules')}.{key}"
            for name, table, before in tables
            if _differs(table, before)
            for key in _changed_keys(table, before)
        ]

    def restore(self) -> None:
        for _, table, before in self._tables:
            if not _differs(table, before):
                continue
            _put_back(table, before)
        for _, tensor, version, before in self._tensors:
            if _rewritten(tensor, version, before):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.data = before.clone() if tensor.shape != before.shape else tensor.data.copy_(before)


def _put_back(table: Any, before: Any) -> None:
    if isinstance(table, dict):
        ours = {key: value for key, value in table.items() if is_of_hooks(value)}
        table.clear()
        table.update(_without_hooks(before) | ours)
        return
    table.clear()
    table.extend(before) if isinstance(table, list | collections.deque) else table.update(before)


def _without_hooks(table: dict[Any, Any]) -> dict[Any, Any]:
    """Without what blocks of code put on the model, of this or another thread, and take off themselves."""
    return {key: value for key, value in table.items() if not is_of_hooks(value)}


def _differs(table: Any, before: Any) -> bool:
    if isinstance(table, dict):
        now, then = _without_hooks(table), _without_hooks(before)
        return list(now) != list(then) or any(now[key] is not value for key, value in then.items())
    if isinstance(table, set):
        return bool(table != before)
    return len(table) != len(before) or any(a is not b for a, b in zip(table, before, strict=True))


def _changed_keys(table: Any, before: Any) -> list[Any]:
    if not isinstance(table, dict):
        return []
    return [
        key for key in {**before, **table} if key not in table or key not in before or table[key] is not before[key]
    ]


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _rewritten(tensor: Tensor, version: int | None, before: Tensor) -> bool:
    """Whether its numbers are others; the count of writes tells most of the time that they cannot be."""
    if version is not None and tensor._version == version and tensor.shape == before.shape:
        return False
    if tensor.shape != before.shape or tensor.dtype != before.dtype:
        return True
    return not bool(tensor.isclose(before, rtol=0, atol=0, equal_nan=True).all())


@contextmanager
def same_attributes(model: nn.Module) -> Iterator[ModelState]:
    """What a run does to the model (kept states, caches, replaced modules, settings, buffers) goes when it ends."""
    state = ModelState(model)
    try:
        yield state
    finally:
        state.restore()


def unwrapped(model: nn.Module) -> nn.Module:
    """The model behind `torch.compile`, peft's wrapper, `DataParallel` and `DistributedDataParallel`."""
    compiled, base = getattr(model, "_orig_mod", None), getattr(model, "get_base_model", None)
    if isinstance(compiled, nn.Module):
        return unwrapped(compiled)
    if hasattr(model, "peft_config") and base is not None:
        return unwrapped(base())
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if any(hasattr(module, "_fsdp_wrapped_module") for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} holds FullyShardedDataParallel modules, which keep their weights in flat pieces. "
            "Find, mask and prune heads before the model is wrapped."
        )
    return model
