"""What stands in for layers that pruning removed, and for the config of blocks that it changed.

The stub of an output projection saves a `weight` of one number. A checkpoint with it cannot be loaded by plain
transformers without a size-mismatch error, so a model with emptied sites is never silently filled with random weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ZeroProjection(nn.Module):
    """The queries, keys or values of a site without heads: zeros for one placeholder head, nothing to save."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, width: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("weight", torch.zeros(1, 1), persistent=False)  # for initialisers and questions of dtype
        _add_unused_bias(self, width if has_bias else 0)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.new_zeros(*inputs.shape[:-1], self.width)

    def extra_repr(self) -> str:
        return f"width={self.width}"


class BiasOnly(nn.Module):
    """The output projection of a site without heads: its bias, or nothing."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, width: int, bias: nn.Parameter | None, *, has_bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("weight", torch.zeros(1, 1))
        self.adds_bias = bias is not None
        if bias is not None:
            self.register_parameter("bias", bias)
        else:
            _add_unused_bias(self, width if has_bias else 0)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.adds_bias or self.bias is None:
            return inputs.new_zeros(*inputs.shape[:-1], self.width)
        # A tensor of its own: the model may go on to add to it in place.
        return self.bias.to(inputs.dtype).expand(*inputs.shape[:-1], self.width).clone()

    def extra_repr(self) -> str:
        # peft shows this where it stops at a layer that it does not know
        left_out = "[s.output for s in hp.find_heads(model, neurons=True) if not s.num_heads]"
        return f"width={self.width}, bias={self.adds_bias}; for LoRA: exclude_modules={left_out}"


def _add_unused_bias(module: nn.Module, width: int) -> None:
    """The initialisers of some families write to the bias of every projection that had one: give them one."""
    module.register_buffer("bias", torch.zeros(width) if width else None, persistent=False)


class ConfigView:
    """A config as one pruned block sees it: its own head counts, everything else read from the model's config."""

    def __init__(self, base: Any, overrides: dict[str, object]) -> None:
        self.__dict__["headprune_base"] = base.headprune_base if isinstance(base, ConfigView) else base
        inherited = base.headprune_overrides if isinstance(base, ConfigView) else {}
        self.__dict__["headprune_overrides"] = {**inherited, **overrides}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "headprune_base" not in self.__dict__:
            raise AttributeError(name)
        if name in self.headprune_overrides:
            return self.headprune_overrides[name]
        if name in ("headprune_empty", "headprune_bias_heads"):
            return None
        return getattr(self.headprune_base, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.headprune_base, name, value)

    def __repr__(self) -> str:
        return f"ConfigView({type(self.headprune_base).__name__}, {self.headprune_overrides})"
