"""Multiplying heads: while a block of code runs (masks), or by what gates say (hooks that stay); and listening in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from headprune import patches
from headprune.errors import MaskError
from headprune.hooks.scope import called_projections, own_scope
from headprune.hooks.unfused_attention import keep_open_, let_close_
from headprune.types import Args, Function


@dataclass(frozen=True)
class HeadFactor:
    """What each head's slice of a projection's input is multiplied by."""

    name: str  # of the site, for messages
    factor: Tensor  # (heads,), (batch, heads) or (batch, positions, heads)
    batch_axis: int = 0  # which dimension of the projection's input is the batch

    def __call__(self, module: nn.Module, args: Args) -> Args:
        inputs = args[0]  # (..., heads * width)
        factor = self.factor.to(device=inputs.device, dtype=inputs.dtype)
        if factor.dim() == 3 and self.batch_axis == 1:
            factor = factor.transpose(0, 1)  # (positions, batch, heads)
        if factor.dim() == 3 and factor.shape[:-1] != inputs.shape[:-1]:
            raise MaskError(
                f"{self.name}: weights per position were given as {tuple(factor.shape)}, but the output projection "
                f"receives {tuple(inputs.shape)}."
            )
        if factor.dim() == 2:
            if inputs.dim() < 3 or inputs.shape[self.batch_axis] != factor.shape[0]:
                raise MaskError(
                    f"{self.name}: weights per example were given for {factor.shape[0]} examples, but the output "
                    f"projection receives {tuple(inputs.shape)}, whose dimension {self.batch_axis} is not that batch. "
                    "Use one example at a time, or weights for the whole batch."
                )
            ones = [1] * (inputs.dim() - 1)
            ones[self.batch_axis] = factor.shape[0]
            factor = factor.view(*ones, -1)  # (batch, 1…, heads), or (1, batch, heads)
        split = inputs.unflatten(-1, (factor.shape[-1], -1))  # (..., heads, width)
        return ((split * factor.unsqueeze(-1)).flatten(-2), *args[1:])


@contextmanager
def scaled_inputs(factors: Mapping[nn.Module, HeadFactor]) -> Iterator[None]:
    """Multiply each head's slice of a projection's input by its factor until the block ends, in its context."""
    with own_scope(alters=True) as scope:
        for module, factor in factors.items():
            scope.before(module, factor)
        yield


@contextmanager
def silent_outputs(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let these modules answer zero until the block ends, in its context."""
    with own_scope(alters=True) as scope:
        for module in modules:
            scope.after(module, lambda module, args, output: torch.zeros_like(output))
        yield


@contextmanager
def fresh_compilation(model: nn.Module) -> Iterator[None]:
    """Make compiled code of this model notice that hooks come and go.

    Code compiled by `torch.compile` does not check for hooks that were added later: it would ignore a mask, or keep
    one that is gone. Forgetting what was compiled costs a recompilation and is right. Where this model was never
    compiled, nothing is forgotten.
    """
    _forget_compilation_of(model)
    try:
        yield
    finally:
        _forget_compilation_of(model)


def _forget_compilation_of(model: nn.Module) -> None:
    if is_compiled(model) and not torch.compiler.is_compiling():
        patches.forget_compiled_code()


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` ran this model or a part of it, by whatever name: as a module, a method, inside a
    function. It marks every weight that it hands to compiled code."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return any(hasattr(tensor, "_dynamo_static_input_type") for tensor in tensors)


@contextmanager
def captured_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a projection receives."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Args) -> None:
        seen.append(args[0])

    with own_scope() as scope:
        scope.before(module, keep)
        yield seen


@contextmanager
def captured_output(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a module returns."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Args, output: Tensor) -> None:
        seen.append(output)

    with own_scope() as scope:
        scope.after(module, keep)
        yield seen


@contextmanager
def captured_inputs(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """What each projection receives, by name, one tensor a call (layers may share a block); gradients can be asked for
    with respect to them."""
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}

    def keep(name: str) -> Function:
        def hook(module: nn.Module, args: Args) -> Args:
            inputs = args[0]
            if torch.is_grad_enabled() and not inputs.requires_grad:
                inputs = inputs.detach().requires_grad_()
            seen[name].append(inputs)
            return (inputs, *args[1:])

        return hook

    with called_projections(model), own_scope() as scope:
        for name, module in modules.items():
            scope.before(module, keep(name))
        yield seen


@contextmanager
def captured_outputs(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """What each projection answers, by name, one tensor a call; gradients can be asked for with respect to them."""
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}

    def keep(name: str) -> Function:
        def hook(module: nn.Module, args: Args, output: Tensor) -> Tensor:
            if torch.is_grad_enabled() and not output.requires_grad:
                output = output.detach().requires_grad_()
            seen[name].append(output)
            return output

        return hook

    handles = []
    try:
        with called_projections(model):
            for name, module in modules.items():
                handles.append(module.register_forward_hook(keep(name)))
            yield seen
    finally:
        for handle in handles:
            handle.remove()


class StopForward(Exception):  # noqa: N818  # not an error: enough was heard
    """Raised by a listener to end the forward pass."""


@contextmanager
def heard_inputs(
    model: nn.Module, modules: Mapping[str, nn.Module], listener: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Tell a listener what each projection receives, at every call, before masks that are put on later."""

    def hear(name: str) -> Function:
        def hook(module: nn.Module, args: Args) -> None:
            listener(name, args[0])

        return hook

    with called_projections(model), own_scope() as scope:
        for name, module in modules.items():
            scope.before(module, hear(name))
        yield


class GateSource(Protocol):
    """Where the hooks ask."""

    def draw(self) -> None:
        """A forward pass of the model begins: one sample per gate for all of it."""

    def value(self, site: str) -> Tensor:
        """What the heads of a site are multiplied by, (heads,)."""


class HeadGate:
    """Before an output projection: multiply its heads. A class, not a closure, so that copies of a model copy it."""

    def __init__(self, source: GateSource, site: str) -> None:
        self.source, self.site = source, site

    def __call__(self, module: nn.Module, args: Args) -> Args | None:
        if not torch.compiler.is_compiling() and _paused.get():
            return None
        return HeadFactor(self.site, self.source.value(self.site))(module, args)


class ForwardBegins:
    """Before the model's forward: let the gates draw."""

    def __init__(self, source: GateSource) -> None:
        self.source = source

    def __call__(self, module: nn.Module, args: Args) -> None:
        self.source.draw()


def gate_projections_(model: nn.Module, source: GateSource, outputs: Mapping[str, str]) -> None:
    """Put gates before the output projections, given as site -> path of the module."""
    _common_module(model, list(outputs.values())).register_forward_pre_hook(ForwardBegins(source))
    for site, path in outputs.items():
        keep_open_(model.get_submodule(path.rpartition(".")[0]))
        model.get_submodule(path).register_forward_pre_hook(HeadGate(source, site))


def _common_module(model: nn.Module, paths: list[str]) -> nn.Module:
    """The smallest whole model around all gated projections. Some classes call only their decoder, not the base model
    around it; a block alone may be called once per layer."""
    parts = paths[0].split(".")
    for size in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:size])
        module = model.get_submodule(path)
        if all(other.startswith(f"{path}.") for other in paths) and hasattr(module, "post_init"):
            return module
    return model


def ungate_projections_(model: nn.Module) -> None:
    """Take all gate hooks off."""
    for module in model.modules():
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, HeadGate | ForwardBegins)]:
            del hooks[key]
        let_close_(module)


_paused: ContextVar[bool] = ContextVar("headprune_paused_gates", default=False)


@contextmanager
def paused_gates() -> Iterator[None]:
    """In this context, models as if they had no gates: a closed gate would hide which weights belong to its head."""
    before = _paused.get()
    _paused.set(True)
    try:
        yield
    finally:
        _paused.set(before)


def is_gated(model: nn.Module) -> bool:
    """Whether gates sit on this model or a part of it."""
    return any(isinstance(hook, HeadGate) for module in model.modules() for hook in module._forward_pre_hooks.values())
