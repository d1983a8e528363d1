"""Attention whose output projection is used without being called, so that no hook on it would fire: opened.

PyTorch's own attention and WavLM's hand the weights to a function, XLNet's to an einsum. While a block of code needs
it, one method of such a module computes the same and calls its projection. Its class is never touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headprune import patches
from headprune.hooks.multihead import multihead_attention
from headprune.structure.adapters import MULTIHEAD, unfused_form

JOINED_HEADS = "heads_joined"  # the name of the child that stands for XLNet's bare parameter


class Unfused:
    """What stands in for one method of an attention, as an attribute of that module alone."""

    method: ClassVar[str] = "forward"

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.stays = False  # beyond the block of code that needs it: of a gated or pruned attention
        self.kept: tuple[int, ...] | None = None  # of the original heads, where the method has to know

    def install(self) -> None:
        setattr(self.module, self.method, self)

    def remove(self) -> None:
        vars(self.module).pop(self.method, None)

    @property
    def is_pruned(self) -> bool:
        return self.kept is not None


class UnfusedMultihead(Unfused):
    """Of `nn.MultiheadAttention`."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        return multihead_attention(self.module, *args, **kwargs)


class UnfusedGatedBias(Unfused):
    """Of WavLM: a position bias of all heads, gated by each head's slice of the input.

    The first layer makes the bias of all layers, and slice and bias are those of the original heads: both are cut here
    to the heads that are `kept`.
    """

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        index: int = 0,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor, Tensor]:
        module = self.module
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
        two = self.module.gru_rel_pos_linear(inputs).unflatten(-1, (2, 4)).sum(-1).sigmoid()
        update, reset = two.chunk(2, dim=-1)
        gate: Tensor = update * (reset * self.module.gru_rel_pos_const - 1.0) + 2.0  # (batch, heads, length, 1)
        return gate


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
        """As XLNet does it, so that it has the same bits."""
        by_head: Tensor = inputs.unflatten(-1, self.attention.o.shape[1:])
        return torch.einsum("...nd,hnd->...h", by_head, self.attention.o)


class UnfusedBareOutput(Unfused):
    """Of XLNet, whose output projection is a parameter: a child stands for it as long as this does."""

    method = "post_attention"

    def install(self) -> None:
        super().install()
        setattr(self.module, JOINED_HEADS, JoinedHeads(self.module))

    def remove(self) -> None:
        super().remove()
        self.module._modules.pop(JOINED_HEADS, None)

    @property
    def is_pruned(self) -> bool:
        """Whether it lost all its heads, so that a stub stands there."""
        return not isinstance(self.module.heads_joined, JoinedHeads)

    def __call__(self, h: Tensor, attn_vec: Tensor, residual: bool = True) -> Tensor:
        module = self.module
        joined = getattr(module, JOINED_HEADS, None) or JoinedHeads(
            module
        )  # gone: another thread's block ended just now
        output = module.dropout(joined(attn_vec.flatten(-2)))  # (length, batch, width)
        normed: Tensor = module.layer_norm(output + h if residual else output)
        return normed


# What adapters and edits call them.
BARE_OUTPUT = "bare_output"
FORMS: dict[str, type[Unfused]] = {"gated_bias": UnfusedGatedBias, BARE_OUTPUT: UnfusedBareOutput}
_lock = threading.RLock()
_blocks: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # attention -> blocks of code that need it open


def unfused(module: nn.Module) -> Unfused | None:
    """What stands in for a method of this attention now."""
    found = [vars(module).get(method) for method in ("forward", "post_attention")]
    return next((one for one in found if isinstance(one, Unfused)), None)


@contextmanager
def opened(forms: Mapping[nn.Module, str]) -> Iterator[None]:
    """Let these attentions call their output projections as modules.

    The fast path of PyTorch's encoder layers does not even call the attention: it is off until the block ends.
    """
    done = []
    with patches.no_multihead_fast_path() if MULTIHEAD in forms.values() else nullcontext():
        try:
            for module, form in forms.items():
                _open(module, _class_of(form))
                done.append(module)
            yield
        finally:
            for module in done:
                _close(module)


def _class_of(form: str) -> type[Unfused]:
    return UnfusedMultihead if form == MULTIHEAD else FORMS[form]


def _open(module: nn.Module, form: type[Unfused]) -> None:
    with _lock:
        _blocks[module] = _blocks.get(module, 0) + 1
        if unfused(module) is None and not {"forward", "post_attention"} & vars(module).keys():
            form(module).install()


def _close(module: nn.Module) -> None:
    with _lock:
        _blocks[module] -= 1
        if not _blocks[module]:
            del _blocks[module]
            _remove_unneeded(module)


def keep_open_(module: nn.Module, form: str = "", kept: tuple[int, ...] | None = None) -> Callable[[], None]:
    """Open one attention for good, and let it go on with some of its original heads; returns the undo.

    `form` is one of `FORMS`; without one, the module's own, if it has any.
    """
    if not form and not (form := unfused_form(module)):
        return lambda: None
    made = _class_of(form)
    found = unfused(module) or made(module)
    if unfused(module) is None:
        found.install()
    before = found.stays, found.kept
    found.stays, found.kept = True, kept if kept is not None else found.kept

    def undo() -> None:
        found.stays, found.kept = before
        _remove_unneeded(module)

    return undo


def let_close_(module: nn.Module) -> None:
    """Undo `keep_open_` of gates; a pruned block stays as it is."""
    found = unfused(module)
    if found is not None and not found.is_pruned:
        found.stays = False
        _remove_unneeded(module)


def _remove_unneeded(module: nn.Module) -> None:
    found = unfused(module)
    if found is not None and not found.stays and not _blocks.get(module):
        found.remove()
