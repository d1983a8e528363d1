"""A model that answers in double precision, with the weights of one module at a time in it.

A copy of a model in float64 takes four times what its weights in bfloat16 take. Modules are raised during their own
call instead: linear maps in pieces of their weight, tables only in the rows that are looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.hooks.scope import own_scope
from headprune.types import Args, Function, Kwargs

PIECE = 1 << 22  # numbers of a weight that are raised at a time: 32 MiB


@contextmanager
def raised_to_double(model: nn.Module) -> Iterator[None]:
    """What the model computes inside the block is in float64; its weights stay what they are between calls."""
    raised = _Raised()
    patched: list[nn.Module] = []
    with own_scope() as scope:
        try:
            for module in model.modules():
                if type(module) is nn.Linear and "forward" not in vars(module):
                    vars(module)["forward"] = _in_pieces(module)
                    patched.append(module)
                elif isinstance(module, nn.Embedding):
                    scope.after(module, _raise_output)
                elif module is model or module._parameters or module._buffers:
                    scope.before(module, raised.enter, with_kwargs=True)
                    scope.after(module, raised.leave, always_call=True)
            yield
        finally:
            for module in patched:
                del module.forward
            raised.put_back()


def _in_pieces(module: nn.Linear) -> Function:
    """A linear map whose weight is raised a few rows at a time."""

    def forward(inputs: Tensor) -> Tensor:
        weight, bias = module.weight, module.bias
        if not weight.is_floating_point():
            return F.linear(inputs, weight, bias)
        rows = max(1, PIECE // max(1, weight.shape[1]))
        exact = inputs.double()
        found = torch.cat([F.linear(exact, part.double()) for part in weight.detach().split(rows)], dim=-1)
        return found if bias is None else found + bias.detach().double()

    return forward


def _raise_output(module: nn.Module, args: Args, output: object) -> object:
    return output.double() if isinstance(output, Tensor) else output


@dataclass
class _Raised:
    """Tensors that are in float64 at the moment, with what they were; and in how many calls that are under way."""

    weights: dict[int, tuple[nn.Parameter, Tensor]] = field(default_factory=dict)
    buffers: dict[int, tuple[nn.Module, dict[str, Tensor]]] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        self.calls[id(module)] = self.calls.get(id(module), 0) + 1
        if self.calls[id(module)] == 1:
            for parameter in module._parameters.values():
                if parameter is not None and parameter.is_floating_point() and id(parameter) not in self.weights:
                    self.weights[id(parameter)] = parameter, parameter.data
                    parameter.data = parameter.data.double()
            own = {name: x for name, x in module._buffers.items() if x is not None and x.is_floating_point()}
            self.buffers[id(module)] = module, own
            module._buffers.update({name: value.double() for name, value in own.items()})
        return _doubled(args), _doubled(kwargs)

    def leave(self, module: nn.Module, args: Args, output: object) -> None:
        self.calls[id(module)] -= 1
        if not self.calls[id(module)]:
            self._lower(module)

    def _lower(self, module: nn.Module) -> None:
        for parameter in module._parameters.values():
            before = self.weights.pop(id(parameter), None)
            if before is not None:
                before[0].data = before[1]
        if id(module) in self.buffers:
            module._buffers.update(self.buffers.pop(id(module))[1])

    def put_back(self) -> None:
        """Whatever a failure left raised."""
        for parameter, value in self.weights.values():
            parameter.data = value
        for module, own in self.buffers.values():
            module._buffers.update(own)
        self.weights.clear()
        self.buffers.clear()


def _doubled(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if type(value) is tuple or type(value) is list:
        return type(value)(_doubled(item) for item in value)
    if type(value) is dict:
        return {name: _doubled(item) for name, item in value.items()}
    return value
