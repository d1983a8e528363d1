"""The only file that registers hooks or wraps attention functions.

Three uses: multiplying heads (masks and gates), watching one forward pass (finding heads), and slicing what a
pruned block receives for all heads although it has only some (position biases made elsewhere in the model).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headprune.errors import MaskError

# ---------------------------------------------------------------- multiplying heads


@dataclass(frozen=True)
class HeadFactor:
    """What each head's slice of a projection's input is multiplied by."""

    name: str  # of the site, for messages
    factor: Tensor  # (heads,) or (batch, heads)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs = args[0]  # (..., heads * width)
        factor = self.factor.to(device=inputs.device, dtype=inputs.dtype)
        if factor.dim() == 2:
            if inputs.dim() < 3 or inputs.shape[0] != factor.shape[0]:
                raise MaskError(
                    f"{self.name}: weights per example were given for {factor.shape[0]} examples, but the output "
                    f"projection receives {tuple(inputs.shape)}, whose first dimension is not that batch. "
                    "Use one example at a time, or weights for the whole batch."
                )
            factor = factor.view(factor.shape[0], *[1] * (inputs.dim() - 2), -1)  # (batch, 1…, heads)
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

    PyTorch's own forward passes the weights of `out_proj` to a function and never calls the module.
    """
    opened = []
    for module in model.modules():
        if type(module) is nn.MultiheadAttention and "forward" not in vars(module):
            module.forward = _OpenMultihead(module)  # type: ignore[method-assign]
            opened.append(module)
    try:
        yield
    finally:
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
        output = module.out_proj(context.transpose(0, 1) if swap else context)
        return output, weights


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


# ---------------------------------------------------------------- watching one forward pass


@dataclass(frozen=True)
class Call:
    """A call of a module: what went in and came out, and when."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    order: int  # when it began


@dataclass(frozen=True)
class AttentionEvent:
    """Softmax attention took place: `tensor` holds the result (or the probabilities), one entry per head on `axis`."""

    path: str  # the module in whose forward it happened
    tensor: Tensor
    axis: int
    heads: int
    order: int
    key_input: Tensor | None = None  # what nn.MultiheadAttention projects to keys and values
    query_is_key: bool = False


@dataclass
class Watch:
    """Everything seen during one forward pass."""

    calls: list[Call] = field(default_factory=list)
    events: list[AttentionEvent] = field(default_factory=list)
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}


class _AttentionOperations(TorchFunctionMode):
    """Sees softmax and fused attention wherever they are called."""

    def __init__(self, watch: Watch, current: Callable[[], str | None]) -> None:
        super().__init__()
        self.watch, self.current = watch, current
        self.muted = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.muted or not torch.is_grad_enabled():
            return result
        if func is F.scaled_dot_product_attention and result.dim() == 4:
            return self.note(result, axis=1)  # (batch, heads, queries, width)
        if func in _SOFTMAX and result.dim() == 4 and _last_dimension(result, args, kwargs):
            return self.note(result, axis=1)  # (batch, heads, queries, keys)
        if func is F.multi_head_attention_forward:
            query, key, heads = args[0], args[1], args[4]
            context = self.note(
                result[0].unflatten(-1, (heads, -1)), axis=-2, key_input=key, query_is_key=query is key
            )  # (queries, batch, heads, width)
            return context.flatten(-2), result[1]
        return result

    def note(self, result: Tensor, *, axis: int, **more: Any) -> Tensor:
        path = self.current()
        if path is None:
            return result
        if not result.requires_grad:
            result = result.detach().requires_grad_()  # frozen weights: dependence must show all the same
        self.watch.events.append(
            AttentionEvent(path, result, axis % result.dim(), result.shape[axis], self.watch.tick(), **more)
        )
        return result


def _last_dimension(result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(dim, int) and dim % result.dim() == result.dim() - 1


@contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Record every module call and every softmax attention of the forward passes inside the block."""
    watch = Watch()
    paths = {module: path for path, module in model.named_modules()}
    has_weights = {module: any(True for _ in module.parameters()) for module in paths}
    stack: list[nn.Module] = []
    starts: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = []

    def current() -> str | None:
        return next((paths[module] for module in reversed(stack) if has_weights[module]), None)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack.append(module)
        starts.append((watch.tick(), args, kwargs))

    def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        stack.pop()
        order, given, named = starts.pop()
        if isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad:
            # A frozen projection of a frozen input: give gradients a place to arrive at.
            output = output.detach().requires_grad_() if torch.is_grad_enabled() else output
        watch.calls.append(Call(paths[module], module, given, named, output, order))
        return output

    operations = _AttentionOperations(watch, current)
    handles = []
    try:
        with _unscaled(model), called_projections(model), _watched_interface(operations, paths), operations:
            for module in paths:
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(leave, with_kwargs=True))
            yield watch
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _unscaled(model: nn.Module) -> Iterator[None]:
    """Look at the model as it is without masks, also inside a `masked` block."""
    paused = []
    for module in model.modules():
        hooks = module._forward_pre_hooks
        paused += [(hooks, key, hooks.pop(key)) for key in list(hooks) if isinstance(hooks[key], HeadFactor)]
    try:
        yield
    finally:
        for hooks, key, factor in paused:
            hooks[key] = factor


@contextmanager
def _watched_interface(operations: _AttentionOperations, paths: Mapping[nn.Module, str]) -> Iterator[None]:
    """See the attention functions that transformers models call by name, whatever kernel is behind them."""
    utils = sys.modules.get("transformers.modeling_utils")
    if utils is None:
        yield
        return
    interface = utils.AttentionInterface
    original = interface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if operations.muted:
                return function(module, *args, **kwargs)
            operations.muted += 1
            try:
                output, *rest = function(module, *args, **kwargs)
            finally:
                operations.muted -= 1
            if module in paths and output.dim() == 4 and torch.is_grad_enabled():
                event_module, operations.current = operations.current, lambda: paths[module]
                output = operations.note(output, axis=2)  # (batch, queries, heads, width)
                operations.current = event_module
            return (output, *rest)

        return attention

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original


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


# ---------------------------------------------------------------- what a pruned block receives for all heads


@dataclass(frozen=True)
class SlicedArgument:
    """An argument of a block with one entry per original head on `dim`, of which the block needs only some."""

    name: str  # keyword, or "" if it is positional only
    position: int  # place among the positional arguments, or -1
    dim: int
    heads: int  # entries in the argument
    kept: tuple[int, ...]

    def slice(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        kept = torch.tensor(self.kept, device=value.device)
        if value.shape[self.dim] == self.heads:
            return value.index_select(self.dim, kept)
        split = value.unflatten(self.dim, (-1, self.heads))  # batch and heads in one dimension (ALiBi)
        return split.index_select(self.dim + 1, kept).flatten(self.dim, self.dim + 1)


class SliceArguments:
    """A forward pre-hook that stays in the pruned model."""

    def __init__(self, arguments: Sequence[SlicedArgument]) -> None:
        self.arguments = tuple(arguments)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = list(args)
        for argument in self.arguments:
            if argument.name in kwargs:
                kwargs = kwargs | {argument.name: argument.slice(kwargs[argument.name])}
            elif 0 <= argument.position < len(values):
                values[argument.position] = argument.slice(values[argument.position])
        return tuple(values), kwargs


def arguments_sliced_by(module: nn.Module) -> tuple[SlicedArgument, ...] | None:
    """What an earlier pruning told a block to slice; None if nothing."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SliceArguments)]
    return hooks[0].arguments if hooks else None


def slice_arguments_(module: nn.Module, arguments: Sequence[SlicedArgument]) -> Callable[[], None]:
    """Slice these arguments at every call from now on; returns the undo."""
    old = [(key, hook) for key, hook in module._forward_pre_hooks.items() if isinstance(hook, SliceArguments)]
    for key, _ in old:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    handle = module.register_forward_pre_hook(SliceArguments(arguments), with_kwargs=True, prepend=True)

    def undo() -> None:
        handle.remove()
        for _, hook in old:
            module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)

    return undo


PRUNED_ATTENTION = "headprune"  # the name under which the function below is registered with transformers


def register_attention_function() -> None:
    """Tell transformers the attention function of pruned blocks whose bias or output needs care."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with contextlib.suppress(ValueError):
        ALL_ATTENTION_FUNCTIONS.register(PRUNED_ATTENTION, _pruned_attention)


def _pruned_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's own attention, after cutting a position bias of all heads down to the heads left.

    In an emptied block there is nothing to attend with: the one placeholder head answers zero.
    """
    config = module.config  # a ConfigView
    if config.headprune_empty:
        nothing = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        return nothing, query.new_zeros(query.shape[0], 0, query.shape[2], key.shape[2])
    bias = kwargs.get("position_bias")
    if bias is not None and config.headprune_bias_heads is not None:
        kept = torch.tensor(config.headprune_bias_heads, device=bias.device)
        kwargs["position_bias"] = bias.index_select(1, kept)  # (batch or 1, heads, queries, keys)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function = ALL_ATTENTION_FUNCTIONS.get_interface(config.headprune_base._attn_implementation, eager)
    result: tuple[Tensor, Tensor | None] = function(module, query, key, value, attention_mask, **kwargs)
    return result
