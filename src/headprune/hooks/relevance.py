"""Layer-wise relevance propagation: a forward pass whose backward pass carries relevance instead of gradients.

Every operation that a relevance rule is about is replaced by one whose "gradient" is that rule; the rest (views,
indexing, transposing) moves relevance about as it moves gradients. Each rule hands on exactly what it receives, so
that the total is conserved; whether that held for a whole model can be checked at its inputs.

* Linear maps, sums of two branches and the mixing of values: the alpha-beta rule. Positive and negative contributions
  are normalised separately; `alpha` of the relevance follows the positive ones, the rest the negative ones (all of it
  follows one side where the other is empty). The share of a bias is spread evenly over the inputs.
* Attention weights count as constants: relevance goes through the values.
* Norms, activations and multiplications by constants hand relevance on unchanged; products of two branches halve it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headprune.hooks.scope import own_scope, settled
from headprune.types import Args, Function, Kwargs

TINY = 1e-12
Gradients: TypeAlias = tuple[Tensor | None, ...]  # one for each argument of the forward pass


def _safe(total: Tensor) -> Tensor:
    return torch.where(total.abs() < TINY, torch.ones_like(total), total)


def _shares(relevance: Tensor, positive: Tensor, negative: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Relevance per unit of positive and of negative contribution."""
    has_positive, has_negative = positive.abs() >= TINY, negative.abs() >= TINY
    up = torch.where(has_negative, alpha, 1.0) * has_positive
    down = torch.where(has_positive, 1 - alpha, 1.0) * has_negative
    return relevance * up / _safe(positive), relevance * down / _safe(negative)


class _Linear(torch.autograd.Function):
    """y = x W^T + b, x (…, inputs), W (outputs, inputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, alpha: float) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.alpha = alpha
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        x, weight, bias = ctx.saved_tensors
        xp, xn, wp, wn = x.clamp(min=0), x.clamp(max=0), weight.clamp(min=0), weight.clamp(max=0)
        bp, bn = (bias.clamp(min=0), bias.clamp(max=0)) if bias is not None else (0.0, 0.0)
        positive, negative = xp @ wp.T + xn @ wn.T + bp, xp @ wn.T + xn @ wp.T + bn
        up, down = _shares(relevance, positive, negative, ctx.alpha)
        out = xp * (up @ wp) + xn * (up @ wn) + xp * (down @ wn) + xn * (down @ wp)
        lost = (up * bp + down * bn).sum(-1, keepdim=True)  # what biases would take
        # An output without any contribution has nothing to divide by: its relevance is spread evenly too.
        lost = lost + (relevance * ((positive.abs() < TINY) & (negative.abs() < TINY))).sum(-1, keepdim=True)
        return out + lost / x.shape[-1], None, None, None


class _Mix(torch.autograd.Function):
    """y = A v with constant A (…, queries, keys), v (…, keys, width)."""

    @staticmethod
    def forward(ctx: Any, attention: Tensor, values: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(attention, values)
        ctx.alpha = alpha
        return attention @ values

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        attention, values = ctx.saved_tensors
        ap, an = attention.clamp(min=0), attention.clamp(max=0)
        vp, vn = values.clamp(min=0), values.clamp(max=0)
        positive, negative = ap @ vp + an @ vn, ap @ vn + an @ vp
        up, down = _shares(relevance, positive, negative, ctx.alpha)
        apt, ant = ap.transpose(-1, -2), an.transpose(-1, -2)
        out = vp * (apt @ up) + vn * (ant @ up) + vp * (ant @ down) + vn * (apt @ down)
        return None, _reduced(out, values.shape), None


class _Convolution(torch.autograd.Function):
    """y = conv(x, weight, bias, …): a linear map, by the same rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, conv: Function, args: Args, kwargs: Kwargs, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.conv, ctx.args, ctx.kwargs, ctx.alpha = conv, args, kwargs, alpha
        result: Tensor = conv(x, *args, **kwargs)
        return result

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        weight, rest = ctx.args[0], ctx.args[2:]
        bias = ctx.args[1] if len(ctx.args) > 1 else ctx.kwargs.get("bias")
        more = {name: value for name, value in ctx.kwargs.items() if name != "bias"}
        signs = [(x.clamp(min=0), weight.clamp(min=0)), (x.clamp(max=0), weight.clamp(max=0)),
                 (x.clamp(min=0), weight.clamp(max=0)), (x.clamp(max=0), weight.clamp(min=0))]  # fmt: skip
        with torch.enable_grad():
            parts = [part.detach().requires_grad_() for part, _ in signs]
            made = [ctx.conv(part, w, None, *rest, **more) for part, (_, w) in zip(parts, signs, strict=True)]
        shape = (1, -1, *[1] * (relevance.dim() - 2))
        zero = torch.zeros(relevance.shape[1], dtype=relevance.dtype, device=relevance.device)
        given = (bias if bias is not None else zero).view(shape)
        positive = made[0] + made[1] + given.clamp(min=0)
        negative = made[2] + made[3] + given.clamp(max=0)
        up, down = _shares(relevance, positive.detach(), negative.detach(), ctx.alpha)
        flows = torch.autograd.grad(made, parts, [up, up, down, down])
        out = sum(part.detach() * flow for part, flow in zip(parts, flows, strict=True))
        lost = (up * given.clamp(min=0) + down * given.clamp(max=0)).sum()  # of this batch, spread over its inputs
        return out + lost / x.numel(), None, None, None, None


class _Add(torch.autograd.Function):
    """y = a + b: two branches."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(a.clone(), b.clone())  # what is added in place later must not change them
        ctx.alpha = alpha
        return a + b

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        a, b = ctx.saved_tensors
        positive, negative = a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0)
        up, down = _shares(relevance, positive, negative, ctx.alpha)
        nothing = relevance * ((positive.abs() < TINY) & (negative.abs() < TINY)) / 2
        parts = [x.clamp(min=0) * up + x.clamp(max=0) * down + nothing for x in (a, b)]
        return _reduced(parts[0], a.shape), _reduced(parts[1], b.shape), None


class _HandOn(torch.autograd.Function):
    """y = anything of the shape that x broadcasts to; relevance goes to x as it is, times a share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, result: Tensor, share: float) -> Tensor:
        ctx.shape, ctx.share = x.shape, share
        return result.detach().clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        return _reduced(relevance, ctx.shape) * ctx.share, None, None


class _Halved(torch.autograd.Function):
    """y = a * b: half to each."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.shapes = (a.shape, b.shape)
        return a * b

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Gradients:
        return tuple(_reduced(relevance / 2, shape) for shape in ctx.shapes)


def _reduced(relevance: Tensor, shape: torch.Size) -> Tensor:
    """Summed over the dimensions that were broadcast."""
    while relevance.dim() > len(shape):
        relevance = relevance.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and relevance.shape[axis] != 1:
            relevance = relevance.sum(axis, keepdim=True)
    return relevance


_ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
_SUB = {torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__}
_MUL = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
_DIV = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_CONV = {F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d}
_ALONE = {
    F.gelu, F.relu, F.silu, F.layer_norm, F.rms_norm, F.dropout, F.leaky_relu, F.elu, torch.tanh, Tensor.tanh, F.tanh,
    torch.relu, Tensor.relu, torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.nn.functional.mish, F.hardswish,
    torch.clamp, Tensor.clamp, torch.nan_to_num,
}  # fmt: skip


class _Rules(TorchFunctionMode):
    def __init__(self, alpha: float, inputs: list[Tensor]) -> None:
        super().__init__()
        self.alpha, self.inputs = alpha, inputs
        self.quiet = 0  # inside a module that is handled as a whole

    def leaf(self, part: Tensor) -> Tensor:
        """Something that the model adds to its inputs of its own, such as a class token: relevance may end there."""
        if not part.is_floating_point():
            return part
        made = part.detach().clone().requires_grad_()
        self.inputs.append(made)
        return made

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() or self.quiet:
            return func(*args, **kwargs)
        if func is F.linear and _carries(args[0]):
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            return _apply(_Linear, args[0], weight, args[2] if len(args) > 2 else kwargs.get("bias"), self.alpha)
        if func is torch.addmm and _carries(args[1]):  # GPT-2's Conv1D: bias, x, weight (inputs, outputs)
            return _apply(_Linear, args[1], args[2].T, args[0], self.alpha)
        if func in _SOFTMAX:
            return func(*args, **kwargs).detach()
        if func in _MATMUL and not _carries(args[0]) and _carries(args[1]):
            return _apply(_Mix, args[0], args[1], self.alpha)
        if func in _MATMUL and _carries(args[0]) and not _carries(args[1]) and args[1].dim() > 1:
            turned = [x.transpose(-1, -2) for x in (args[1], args[0])]  # x W is (W^T x^T)^T
            return _apply(_Mix, *turned, self.alpha).transpose(-1, -2)
        if func in _CONV and _carries(args[0]):
            return _apply(_Convolution, args[0], func, args[1:], kwargs, self.alpha)
        if func is torch.cat and any(_carries(part) for part in args[0]):
            return func([part if _carries(part) else self.leaf(part) for part in args[0]], *args[1:], **kwargs)
        if func in _ALONE and _carries(args[0]):
            return _apply(_HandOn, args[0], func(*args, **kwargs), 1.0)
        if func in _ADD | _SUB | _MUL | _DIV and len(args) == 2 and not kwargs:
            return self._two(func, args[0], args[1], func(*args, **kwargs) if func not in _INPLACE else None)
        return func(*args, **kwargs)

    def _two(self, func: Function, a: Any, b: Any, result: Any) -> Any:
        """A sum, difference, product or quotient of two things, one of which may be a constant."""
        if result is None:  # in place: a new tensor, whose numbers the old one gets too in case it is used again
            func = _INPLACE[func]
            result = func(a, b)
            if isinstance(a, Tensor):
                made = self._two(func, a, b, result)
                a.data.copy_(result.detach())
                return made
        if func in _DIV and _carries(a):
            return _apply(_HandOn, a, result, 1.0)
        if not (_carries(a) and _carries(b)):
            carrier = a if _carries(a) else b
            return _apply(_HandOn, carrier, result, 1.0) if _carries(carrier) else result
        if func in _ADD:
            return _apply(_Add, a, b, self.alpha)
        if func in _SUB:
            return _apply(_HandOn, a, result, 1.0)  # a mean that is taken off is part of a norm
        if a.shape != b.shape:  # a norm's factor, one for many
            carrier = a if a.numel() > b.numel() else b
            return _apply(_HandOn, carrier, result, 1.0)
        return _apply(_Halved, a, b)


_INPLACE: dict[Function, Function] = {
    Tensor.add_: torch.add, Tensor.__iadd__: torch.add, Tensor.sub_: torch.sub, Tensor.__isub__: torch.sub,
    Tensor.mul_: torch.mul, Tensor.__imul__: torch.mul, Tensor.div_: torch.div, Tensor.__itruediv__: torch.div,
}  # fmt: skip


def _apply(rule: type[torch.autograd.Function], *args: object) -> Any:
    return rule.apply(*args)


def _carries(thing: object) -> TypeGuard[Tensor]:
    return isinstance(thing, Tensor) and thing.requires_grad


@contextmanager
def relevance_rules(model: nn.Module, *, alpha: float = 0.5) -> Iterator[list[Tensor]]:
    """Inside, gradients are relevance. Gives the embedded inputs, at which the total can be checked."""
    inputs: list[Tensor] = []

    def embed(module: nn.Module, args: Args, output: object) -> object:
        if not isinstance(output, Tensor):
            return output
        leaf = output.detach().requires_grad_()
        inputs.append(leaf)
        return leaf * 1.0

    seen: dict[int, nn.Module] = {}
    for part in model.modules():  # encoder and decoder may each have their own
        getter = getattr(part, "get_input_embeddings", None)
        if getter is not None:
            try:
                found = getter()
            except (NotImplementedError, AttributeError):
                continue
            if isinstance(found, nn.Module):
                seen[id(found)] = found
    rules = _Rules(alpha, inputs)

    def enter(module: nn.Module, args: Args) -> None:
        rules.quiet += 1

    def leave(module: nn.Module, args: Args, output: object) -> object:
        rules.quiet -= 1
        if not isinstance(output, Tensor) or not args or not _carries(args[0]) or output.shape != args[0].shape:
            return output
        return _apply(_HandOn, args[0], output, 1.0)

    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    set_attention = getattr(model, "set_attn_implementation", None) if before not in (None, "eager") else None
    try:
        if set_attention is not None:
            set_attention("eager")
        with settled(), own_scope() as scope:
            for found in seen.values():
                scope.after(found, embed)
            for part in model.modules():
                if not any(True for _ in part.children()) and not any(True for _ in part.parameters(recurse=False)):
                    scope.before(part, enter)  # an activation, whatever it computes inside
                    scope.after(part, leave, always_call=True)
            with torch.enable_grad(), rules:
                yield inputs
    finally:
        if set_attention is not None:
            set_attention(before)
