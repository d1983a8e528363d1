"""Attention whose output projection is used without being called, so that no hook on it would fire: opened.

PyTorch's own attention and WavLM's hand the weights to a function, XLNet's to an einsum. An opened block computes the
same and calls its projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@contextmanager
def called_projections(model: nn.Module) -> Iterator[None]:
    """Let every attention of the model call its output projection as a module, so that hooks on it fire.

    The fast path of PyTorch's encoder layers does not even call the attention: it is off until the block ends.
    """
    opened = [module for module in model.modules() if open_(module)]
    fast = torch.backends.mha.get_fastpath_enabled()
    multihead = any(isinstance(module, nn.MultiheadAttention) for module in opened)
    try:
        torch.backends.mha.set_fastpath_enabled(fast and not multihead)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in opened:
            close_(module)


def open_(module: nn.Module) -> bool:
    """Open one attention; whether there was anything to do."""
    if type(module) is nn.MultiheadAttention and "forward" not in vars(module):
        module.forward = OpenMultihead(module)  # type: ignore[method-assign]
    elif is_wavlm(module) and "forward" not in vars(module):
        module.forward = OpenWavLM(module, None)
    else:
        return False
    return True


def close_(module: nn.Module) -> None:
    """Undo `open_`; a pruned block stays as it is."""
    forward = vars(module).get("forward")
    if isinstance(forward, OpenMultihead) or (isinstance(forward, OpenWavLM) and forward.kept is None):
        vars(module).pop("forward")


class OpenMultihead:
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


class OpenWavLM:
    """WavLM's attention, step by step: a position bias of all heads, gated by each head's slice of the input.

    The first layer makes the bias of all layers, and slice and bias are those of the original heads: both are cut here
    to the heads that are `kept`.
    """

    def __init__(self, module: nn.Module, kept: tuple[int, ...] | None) -> None:
        self.module, self.kept = module, kept

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        module: Any = self.module
        batch, length, _ = hidden_states.shape
        if position_bias is None:
            position_bias = module.compute_bias(length, length).repeat(batch, 1, 1)  # (batch * heads, length, length)
        bias = self._cut(position_bias.unflatten(0, (batch, module.num_heads)))
        bias = bias * self._gate(self._cut(hidden_states.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)))
        if attention_mask is not None:
            bias = bias.masked_fill(attention_mask.ne(1)[:, None, None, :], float("-inf"))
        query, key, value = (
            projection(hidden_states).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
            for projection in (module.q_proj, module.k_proj, module.v_proj)
        )  # (batch, heads, length, width)
        weights = (query * module.head_dim**-0.5 @ key.transpose(-1, -2) + bias).softmax(-1)
        context = F.dropout(weights, module.dropout, module.training) @ value
        output = module.out_proj(context.transpose(1, 2).flatten(2))
        averaged = weights.mean(1, keepdim=True).expand_as(weights)  # as WavLM returns them
        return output, averaged, position_bias

    def _cut(self, by_head: Tensor) -> Tensor:
        """The kept heads of (batch, heads, …)."""
        return by_head if self.kept is None else by_head[:, list(self.kept)]

    def _gate(self, inputs: Tensor) -> Tensor:
        module: Any = self.module
        two = module.gru_rel_pos_linear(inputs).unflatten(-1, (2, 4)).sum(-1).sigmoid()
        update, reset = two.chunk(2, dim=-1)
        gate: Tensor = update * (reset * module.gru_rel_pos_const - 1.0) + 2.0  # (batch, heads, length, 1)
        return gate


def is_wavlm(module: nn.Module) -> bool:
    return type(module).__name__ == "WavLMAttention"


def keep_wavlm_heads_(module: nn.Module, kept: tuple[int, ...]) -> Callable[[], None]:
    """Let a block go on with these of its original heads; returns what undoes it."""
    before = vars(module).get("forward")
    module.forward = OpenWavLM(module, kept)

    def undo() -> None:
        if before is None:
            vars(module).pop("forward", None)
        else:
            module.forward = before

    return undo


JOINED_HEADS = "heads_joined"  # the name of the child that stands for the parameter


class JoinedHeads(nn.Module):
    """Where XLNet's heads meet: a linear map by the bare parameter `o` of its attention. Nothing to save."""

    attention: Any

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.__dict__["attention"] = attention  # not as a child: the attention holds this

    @property
    def weight(self) -> Tensor:
        """(width of the model, heads * width of a head), sharing its memory with `o`."""
        parameter: Tensor = self.attention.o
        return parameter.flatten(1)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight)


class _JoiningHeads:
    """What is put before the class of XLNet's attention."""

    heads_joined: JoinedHeads
    dropout: nn.Module
    layer_norm: nn.Module

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class is made here, so that a copy in another process has to be made anew, too."""
        return _unfilled, (type(self).__bases__[1],), self.__dict__

    def post_attention(self, h: Tensor, attn_vec: Tensor, residual: bool = True) -> Tensor:
        output = self.dropout(self.heads_joined(attn_vec.flatten(-2)))  # (length, batch, width)
        normed: Tensor = self.layer_norm(output + h if residual else output)
        return normed


def join_heads_(model: nn.Module) -> None:
    """Give every attention of XLNet a projection that can be called. It stays: the model computes as before."""
    for module in list(model.modules()):
        if type(module).__name__ == "XLNetRelativeAttention" and not isinstance(module, _JoiningHeads):
            setattr(module, JOINED_HEADS, JoinedHeads(module))
            kind: Any = type(module)
            module.__class__ = _joining(kind)


def _unfilled(original: Any) -> Any:
    made = _joining(original)
    return made.__new__(made)


@cache
def _joining(original: Any) -> Any:
    return type(original.__name__, (_JoiningHeads, original), {"__module__": original.__module__})
