"""What a model is made of besides its weights: modules, attributes, configs, buffers. A run leaves no trace in it."""

from __future__ import annotations

import collections
import copy
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, weakref.ref)
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
        if id(value) in self._seen or depth > _DEPTH:
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
                if key != "_parameters":
                    self._note(f"{name}.{key}", item, 1)
        elif hasattr(value, "__dict__") and not type(value).__module__.startswith(("torch", "weakref")):
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
            table.clear()
            table.extend(before) if isinstance(table, list | collections.deque) else table.update(before)
        for _, tensor, version, before in self._tensors:
            if _rewritten(tensor, version, before):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.data = before.clone() if tensor.shape != before.shape else tensor.data.copy_(before)


def _differs(table: Any, before: Any) -> bool:
    if isinstance(table, dict):
        return list(table) != list(before) or any(table[key] is not value for key, value in before.items())
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
