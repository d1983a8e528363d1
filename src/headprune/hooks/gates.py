"""Gates on heads: hooks that stay, and multiply each head by what the model's gates say now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from headprune.hooks.masks import HeadFactor
from headprune.hooks.unfused_attention import keep_open_, let_close_


class GateSource(Protocol):
    """Where the hooks ask."""

    def draw(self) -> None:
        """A forward pass of the model begins: one sample per gate for all of it."""

    def value(self, site: str) -> Tensor:
        """What the heads of a site are multiplied by, (heads,)."""


class HeadGate:
    """Before an output projection: multiply its heads. A class, not a closure, so that copies of a model copy it."""

    def __init__(self, source: GateSource, site: str) -> None:
        self.source, self.site, self.paused = source, site, False

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.paused:
            return None
        return HeadFactor(self.site, self.source.value(self.site))(module, args)


class ForwardBegins:
    """Before the model's forward: let the gates draw."""

    def __init__(self, source: GateSource) -> None:
        self.source = source

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
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


@contextmanager
def paused_gates(model: nn.Module) -> Iterator[None]:
    """The model as if it had no gates: a closed gate would hide which weights belong to its head."""
    found = [
        hook
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, HeadGate) and not hook.paused
    ]
    for hook in found:
        hook.paused = True
    try:
        yield
    finally:
        for hook in found:
            hook.paused = False


def is_gated(model: nn.Module) -> bool:
    """Whether gates sit on this model or a part of it."""
    return any(isinstance(hook, HeadGate) for module in model.modules() for hook in module._forward_pre_hooks.values())
