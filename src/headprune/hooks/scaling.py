"""Multiplying heads while a block of code runs, and listening in on projections."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune.errors import MaskError


@dataclass(frozen=True)
class HeadFactor:
    """What each head's slice of a projection's input is multiplied by."""

    name: str  # of the site, for messages
    factor: Tensor  # (heads,), (batch, heads) or (batch, positions, heads)
    batch_axis: int = 0  # which dimension of the projection's input is the batch

    def __deepcopy__(self, memo: dict[int, Any]) -> HeadFactor:
        raise MaskError(
            "The model is inside a `masked` block: a copy would stay masked for ever. Leave the block first."
        )

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
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
    """Multiply each head's slice of a projection's input by its factor until the block ends."""
    handles = []
    try:
        for module, factor in factors.items():
            handles.append(module.register_forward_pre_hook(factor))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def silent_outputs(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let these modules answer zero until the block ends."""
    handles = []
    try:
        for module in modules:
            handles.append(module.register_forward_hook(lambda module, args, output: torch.zeros_like(output)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def called_projections(model: nn.Module) -> Iterator[None]:
    """Let every `nn.MultiheadAttention` call its `out_proj` as a module, so that hooks on it fire.

    PyTorch's own forward passes the weights of `out_proj` to a function and never calls the module, and the fast path
    of its encoder layers does not even call the attention.
    """
    opened = []
    fast = torch.backends.mha.get_fastpath_enabled()
    for module in model.modules():
        if type(module) is nn.MultiheadAttention and "forward" not in vars(module):
            module.forward = _OpenMultihead(module)  # type: ignore[method-assign]
            opened.append(module)
    try:
        torch.backends.mha.set_fastpath_enabled(fast and not opened)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in opened:
            vars(module).pop("forward", None)


class _OpenMultihead:
    """`nn.MultiheadAttention.forward` in two steps: the function with an identity projection, then `out_proj`.

    Multiplying by the identity is exact, so the result has the bits of the ordinary forward outside its fast path.
    """

    def __init__(self, module: nn.MultiheadAttention) -> None:
        self.module = module

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        module = self.module
        swap = module.batch_first and query.dim() == 3
        given = {id(x): x.transpose(0, 1) if swap else x for x in (query, key, value)}  # one tensor stays one tensor
        same_width = module._qkv_same_embed_dim
        width = module.embed_dim
        context, weights = F.multi_head_attention_forward(
            given[id(query)],
            given[id(key)],
            given[id(value)],
            width,
            module.num_heads,
            module.in_proj_weight if same_width else None,
            module.in_proj_bias,
            module.bias_k,
            module.bias_v,
            module.add_zero_attn,
            module.dropout,
            torch.eye(width, dtype=query.dtype, device=query.device),
            None,
            training=module.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not same_width,
            q_proj_weight=None if same_width else module.q_proj_weight,
            k_proj_weight=None if same_width else module.k_proj_weight,
            v_proj_weight=None if same_width else module.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        if query.dim() == 2:
            return module.out_proj(context), weights
        output = module.out_proj(context.transpose(0, 1))  # always batch first, for weights per example
        return output if swap else output.transpose(0, 1), weights


@contextmanager
def fresh_compilation() -> Iterator[None]:
    """Make compiled code notice that hooks come and go.

    Code compiled by `torch.compile` does not check for hooks that were added later: it would ignore a mask, or keep
    one that is gone. Forgetting what was compiled costs a recompilation and is right.
    """
    _forget_compiled_code()
    try:
        yield
    finally:
        _forget_compiled_code()


def _forget_compiled_code() -> None:
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or torch.compiler.is_compiling():
        return
    if dynamo.utils.counters["frames"]["total"] > 0:  # nothing was compiled in most processes
        dynamo.reset()


@contextmanager
def captured_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a projection receives."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0])

    handle = module.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def captured_output(module: nn.Module) -> Iterator[list[Any]]:
    """Collect what a module returns."""
    seen: list[Any] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(output)

    handle = module.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def captured_inputs(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """The last input of each projection, by name; gradients can be asked for with respect to them."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            inputs = args[0]
            if torch.is_grad_enabled() and not inputs.requires_grad:
                inputs = inputs.detach().requires_grad_()
            seen[name] = inputs
            return (inputs, *args[1:])

        return hook

    handles = []
    try:
        with called_projections(model):
            for name, module in modules.items():
                handles.append(module.register_forward_pre_hook(keep(name)))
            yield seen
    finally:
        for handle in handles:
            handle.remove()
