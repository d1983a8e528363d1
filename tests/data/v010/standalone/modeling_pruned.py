# LlamaForCausalLM with attention heads removed. The config's entry `headprune` says which rows and columns are
# gone; here the empty model is cut to them before its weights are loaded. Load it with trust_remote_code=True.

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cache
from functools import partial
from torch import Tensor
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM as Whole
from typing import Any
import contextlib
import math
import sys
import torch
import torch.nn.functional as F


class HeadpruneError(Exception):
    """Root of the tree: everything that headprune refuses on purpose is one of these.

    Raised by itself only where no other error says more: a device that cannot be used, words of a command that do not
    go together.

    - The message names the option at fault: `headprune COMMAND --help` shows what it takes.
    - `headprune --debug COMMAND …` shows the traceback; `headprune doctor` shows versions and devices.
    - An error that is not one of these is a fault of headprune. Please report it, with the output of both.

    Example:
        try:
            hp.HeadMask.full(heads).without("encoder.99")
        except hp.HeadpruneError as error:
            raise hp.HeadpruneError(f"any of them is caught: {error}")
    """

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        self.add_note(f"More: headprune explain {type(self).__name__}")  # shown below the message in a traceback


class CheckpointError(HeadpruneError, RuntimeError):
    """A checkpoint that cannot be read or written, or that does not hold what its config promises.

    - The folder or the name on the hub does not exist, or lacks `config.json` or the weights.
    - `config.json` was edited: its entry `headprune` says which heads are left, and the weights must be of these.
    - Where headprune was not imported, loading a pruned checkpoint stops with a size-mismatch error of transformers:
      import it first, or use `export(format="standalone")`.

    Example:
        model.config.headprune = {"version": 99}
        type(model)(model.config)
    """


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


_RESHAPES = {Tensor.view, Tensor.reshape, torch.reshape}


@dataclass(frozen=True)
class Width:
    """The width that a block's code counts on, and the heads that it has."""

    whole: int  # of the original heads together
    heads: int  # that are left
    head_dim: int

    def shape(self, asked: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape that was meant by `asked` for a tensor of shape `given`; as asked where that is right.

        Widths stand last. Elsewhere the same number is a length, and is left alone.
        """
        if any(type(size) is not int for size in (*asked, *given)):
            return asked
        per_head = self.whole // self.heads  # what code that divides the width by its heads takes for a head's
        meant = {self.whole: self.heads * self.head_dim, per_head: self.head_dim}.get(asked[-1])
        if meant is None:
            return asked
        shape = (*asked[:-1], meant)
        if -1 not in asked:
            return shape if math.prod(asked) != math.prod(given) == math.prod(shape) else asked
        # The rest may divide by the wrong width, too, so what is reshaped must tell.
        if asked[-1] == per_head and len(asked) > 1 and asked[-2] > 0 and asked[-2] % self.heads == 0:
            is_of_maps = asked[0] == -1 and given[-2:] == asked[-2:]  # queries and keys that happen to be as many
            return asked if is_of_maps else shape
        return asked if given[-1] == asked[-1] else shape


class _Following(TorchFunctionMode):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width = width

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RESHAPES and len(args) > 1 and not isinstance(args[1], torch.dtype):
            given = args[1] if isinstance(args[1], tuple | list) else args[1:]
            args = (args[0], self.width.shape(tuple(given), tuple(args[0].shape)))
        return func(*args, **(kwargs or {}))


@dataclass
class FollowWidth:
    """A pair of hooks around a block's forward."""

    width: Width
    active: list[_Following] = field(default_factory=list)

    def enter(self, module: nn.Module, args: Any) -> None:
        mode = _Following(self.width)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self.active.append(mode)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.active.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]


def follow_width_(module: nn.Module, width: Width) -> Callable[[], None]:
    """Let reshapes in a block's forward follow the heads it has, from now on; returns the undo."""
    old = width_followed_by(module)
    _forget(module)
    _register(module, width)

    def undo() -> None:
        _forget(module)
        if old is not None:
            _register(module, old)

    return undo


def width_followed_by(module: nn.Module) -> Width | None:
    owner = next((_owner(hook) for hook in module._forward_pre_hooks.values() if _owner(hook)), None)
    return owner.width if owner is not None else None


def _register(module: nn.Module, width: Width) -> None:
    follow = FollowWidth(width)
    module.register_forward_pre_hook(follow.enter)
    module.register_forward_hook(follow.leave, always_call=True)


def _forget(module: nn.Module) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if _owner(hook)]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)


def _owner(hook: Any) -> FollowWidth | None:
    owner = getattr(hook, "__self__", None)
    return owner if isinstance(owner, FollowWidth) else None


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
        if value.shape[self.dim] == 1:
            return value  # the same for all heads this time
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


@dataclass(frozen=True)
class Slice:
    """Entries of one dimension of a tensor, by their place in the original."""

    dim: int
    size: int  # of the original
    keep: tuple[int, ...]
    is_placeholder: bool = False  # of a site without heads: the shape is needed, the numbers are not


@dataclass(frozen=True)
class Stub:
    """A linear map replaced by one without weights."""

    kind: str  # "zeros" or "bias"
    width: int
    bias: bool = False


@dataclass(frozen=True)
class Attention:
    """What the attention function of a block must know."""

    empty: bool = False
    bias_heads: tuple[int, ...] | None = None


@dataclass
class Edits:
    """All changes, by the path of the module they touch."""

    multihead: set[str] = field(default_factory=set)
    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)
    attributes: dict[str, dict[str, int]] = field(default_factory=dict)
    stubs: dict[str, Stub] = field(default_factory=dict)
    configs: dict[str, dict[str, int]] = field(default_factory=dict)
    attention: dict[str, Attention] = field(default_factory=dict)
    arguments: dict[str, tuple[SlicedArgument, ...]] = field(default_factory=dict)
    reshapes: dict[str, Width] = field(default_factory=dict)
    biases: dict[str, int] = field(default_factory=dict)  # that a repair gave to projections which had none

    def then(self, later: Edits) -> Edits:
        """One set of edits that does what both do one after the other."""
        slices = {path: dict(tensors) for path, tensors in self.slices.items()}
        for path, tensors in later.slices.items():
            for name, new in tensors.items():
                old = slices.setdefault(path, {}).get(name)
                slices[path][name] = (
                    new
                    if old is None
                    else Slice(old.dim, old.size, tuple(old.keep[i] for i in new.keep), new.is_placeholder)
                )
        for path in later.stubs:
            slices.pop(path, None)
        return Edits(
            multihead=self.multihead | later.multihead,
            slices=slices,
            attributes=_merged(self.attributes, later.attributes, without=later.stubs),
            stubs={**self.stubs, **later.stubs},
            configs=_merged(self.configs, later.configs),
            attention={**self.attention, **later.attention},
            arguments={**self.arguments, **later.arguments},
            reshapes={**self.reshapes, **later.reshapes},
            biases={**self.biases, **later.biases},
        )

    def renamed(self, rename: Callable[[str], str]) -> Edits:
        """The same edits under other paths."""
        return Edits(
            multihead={rename(path) for path in self.multihead},
            **{name: {rename(path): v for path, v in getattr(self, name).items()} for name in _TABLES},
        )

    def paths(self) -> set[str]:
        return set(self.multihead).union(*(getattr(self, name) for name in _TABLES))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "multihead": sorted(self.multihead),
            "slices": {
                path: {name: _slice_entry(cut) for name, cut in tensors.items()}
                for path, tensors in self.slices.items()
            },
            "attributes": {path: dict(values) for path, values in self.attributes.items()},
            "stubs": {path: {"kind": s.kind, "width": s.width, "bias": s.bias} for path, s in self.stubs.items()},
            "configs": {path: dict(values) for path, values in self.configs.items()},
            "attention": {
                path: {"empty": a.empty, "bias_heads": None if a.bias_heads is None else list(a.bias_heads)}
                for path, a in self.attention.items()
            },
            "arguments": {
                path: [
                    {"name": a.name, "position": a.position, "dim": a.dim, "heads": a.heads, "kept": list(a.kept)}
                    for a in arguments
                ]
                for path, arguments in self.arguments.items()
            },
            "reshapes": {
                path: {"whole": w.whole, "heads": w.heads, "head_dim": w.head_dim} for path, w in self.reshapes.items()
            },
            "biases": dict(self.biases),
        }

    @classmethod
    def from_dict(cls, content: Any, most: int | None = None) -> Edits:
        """Read what `to_dict` wrote, from a file that anybody may have touched; with at most so many kept entries."""
        try:
            if most is not None:
                _check_sizes(content["slices"], most)
            edits = cls(
                multihead={_text(path) for path in content["multihead"]},
                slices={
                    _text(path): {_text(name): _read_slice(value) for name, value in tensors.items()}
                    for path, tensors in content["slices"].items()
                },
                attributes={
                    _text(p): {_name(k): _whole(v) for k, v in d.items()} for p, d in content["attributes"].items()
                },
                stubs={_text(path): _read_stub(value) for path, value in content["stubs"].items()},
                configs={_text(p): {_name(k): _whole(v) for k, v in d.items()} for p, d in content["configs"].items()},
                attention={_text(path): _read_attention(value) for path, value in content["attention"].items()},
                arguments={
                    _text(path): tuple(_read_argument(value) for value in values)
                    for path, values in content["arguments"].items()
                },
                reshapes={_text(path): _read_width(value) for path, value in content.get("reshapes", {}).items()},
                biases={_text(path): _whole(value) for path, value in content.get("biases", {}).items()},
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"The config's 'headprune' entry cannot be read ({type(error).__name__}: {error}). "
                "It was edited or damaged: save the pruned model again."
            ) from error
        return edits


LARGEST = 1 << 20  # entries of one dimension that is cut: more than any model has


_TABLES = ("slices", "attributes", "stubs", "configs", "attention", "arguments", "reshapes", "biases")


def _merged(
    first: dict[str, dict[str, int]], second: dict[str, dict[str, int]], without: Any = ()
) -> dict[str, dict[str, int]]:
    paths = [path for path in {**first, **second} if path not in without]
    return {path: {**first.get(path, {}), **second.get(path, {})} for path in paths}


def _to_ranges(indices: Sequence[int]) -> list[list[int]]:
    """[[0, 64], [128, 192]] for 0..63 and 128..191."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def _slice_entry(cut: Slice) -> dict[str, Any]:
    entry: dict[str, Any] = {"dim": cut.dim, "size": cut.size, "keep": _to_ranges(cut.keep)}
    return {**entry, "placeholder": True} if cut.is_placeholder else entry


def _check_sizes(slices: Any, most: int) -> None:
    """Ranges are short in the file and long in memory: they are counted before they are written out."""
    ranges = [pair for tensors in slices.values() for cut in tensors.values() for pair in cut["keep"]]
    total = sum(max(0, stop - start) for start, stop in ranges)
    if not total <= most:
        raise ValueError(f"{total} entries are kept: more than any model has")


def _read_slice(value: Any) -> Slice:
    dim, size = _whole(value["dim"]), _whole(value["size"])
    if size > LARGEST:
        raise ValueError(f"{size} entries in one dimension")
    keep: list[int] = []
    for start, stop in value["keep"]:
        if not 0 <= _whole(start) < _whole(stop) <= size:
            raise ValueError(f"range {start}:{stop} of {size}")
        keep.extend(range(start, stop))
        if len(keep) > LARGEST:
            raise ValueError("more entries than any model has")
    is_placeholder = value.get("placeholder", False)
    if type(is_placeholder) is not bool:
        raise ValueError(f"placeholder is {is_placeholder!r}")
    return Slice(dim, size, tuple(keep), is_placeholder)


def _read_stub(value: Any) -> Stub:
    if value["kind"] not in ("zeros", "bias") or type(value["bias"]) is not bool:
        raise ValueError(f"stub {value!r}")
    return Stub(value["kind"], _whole(value["width"]), value["bias"])


def _read_attention(value: Any) -> Attention:
    heads = value["bias_heads"]
    if type(value["empty"]) is not bool:
        raise ValueError(f"attention {value!r}")
    return Attention(value["empty"], None if heads is None else tuple(_whole(h) for h in heads))


def _read_argument(value: Any) -> SlicedArgument:
    position = value["position"]
    if type(position) is not int or position < -1:
        raise ValueError(f"position {position!r}")
    kept = tuple(_whole(head) for head in value["kept"])
    heads = _whole(value["heads"])
    if any(head >= heads for head in kept):
        raise ValueError(f"heads {kept} of {heads}")
    return SlicedArgument(_text(value["name"]), position, _whole(value["dim"]), heads, kept)


def _read_width(value: Any) -> Width:
    width = Width(_whole(value["whole"]), _whole(value["heads"]), _whole(value["head_dim"]))
    if not 0 < width.heads * width.head_dim <= width.whole:
        raise ValueError(f"{width.heads} heads of {width.head_dim} in {width.whole}")
    return width


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"found {value!r}, expected a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {value!r}, expected text")
    return value


def _name(value: Any) -> str:
    """A plain public attribute name: nothing that could reach into Python's own machinery."""
    if not _text(value).isidentifier() or value.startswith("_"):
        raise ValueError(f"found {value!r}, expected the name of a count")
    return str(value)


@dataclass(frozen=True)
class Layout:
    """How a linear map keeps its weight."""

    in_dim: int
    out_dim: int
    in_name: str  # attribute that repeats the input width
    out_name: str


_LINEAR = Layout(in_dim=1, out_dim=0, in_name="in_features", out_name="out_features")


_JOINED = Layout(in_dim=1, out_dim=0, in_name="", out_name="")  # XLNet's, a view of a bare parameter


_CONV1D = Layout(in_dim=0, out_dim=1, in_name="nx", out_name="nf")  # GPT-2's transposed Linear


def layout(module: nn.Module) -> Layout | None:
    """The layout of a plain linear map; None for anything else, quantised and adapted ones included."""
    weight = getattr(module, "weight", None)
    if weight is None or not hasattr(weight, "dim") or weight.dim() != 2 or not weight.is_floating_point():
        return None
    if isinstance(module, JoinedHeads):
        return _JOINED
    if isinstance(module, nn.Linear) and not hasattr(module, "base_layer"):
        return _LINEAR if _plain(module) else None
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return _CONV1D
    return None


def _plain(module: nn.Linear) -> bool:
    """Tensor subclasses (torchao and others) keep numbers in a packed form that cannot be indexed."""
    from torch.nn.parameter import Parameter

    return type(module.weight) in (Parameter,) and type(module.weight.data).__name__ == "Tensor"


def base_prefix(model: nn.Module) -> str:
    """What to put before a recorded path: paths are stored as the base model sees them (`bert.` is left out)."""
    prefix = getattr(model, "base_model_prefix", "")
    return f"{prefix}." if prefix and isinstance(getattr(model, prefix, None), nn.Module) else ""


def find_module(model: nn.Module, stored: str) -> tuple[str, nn.Module] | None:
    """The module of a recorded path in this model, which may be the base class or a class with another head."""
    for path in (base_prefix(model) + stored, stored):
        try:
            return path, model.get_submodule(path)
        except AttributeError:
            continue
    return None


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
        return f"width={self.width}, bias={self.adds_bias}"


def _add_unused_bias(module: nn.Module, width: int) -> None:
    """The initialisers of some families write to the bias of every projection that had one: give them one."""
    module.register_buffer("bias", torch.zeros(width) if width else None, persistent=False)


class SlicedMultihead(nn.Module):
    """`nn.MultiheadAttention` with fewer heads than its width allows; same parameter names, same calling convention."""

    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        packed = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")
        for name in (*packed, "bias_k", "bias_v"):
            self.register_parameter(name, getattr(original, name))
        self.out_proj = nn.Linear(1, 1)
        self.out_proj = original.out_proj
        self.embed_dim = original.embed_dim
        self.num_heads = original.num_heads
        self.head_dim = original.head_dim
        self.dropout = original.dropout
        self.batch_first = original.batch_first
        self.add_zero_attn = original.add_zero_attn
        self._qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from its fast path, which knows one width
        self.train(original.training)

    def forward(
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
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)  # (batch, heads, length, width)
        bias = self._bias(q, key_padding_mask, attn_mask)
        seen = k.shape[-2]
        k, v = self._with_own_entries(k, self.bias_k), self._with_own_entries(v, self.bias_v)
        if bias is not None:
            bias = F.pad(bias, (0, k.shape[-2] - seen))  # which no mask hides
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5  # (batch, heads, queries, keys)
            weights = (scores if bias is None else scores + bias).softmax(-1)
            context = F.dropout(weights, dropout) @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            causal = is_causal and bias is None
            context = F.scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=causal)
        output = self.out_proj(context.transpose(1, 2).flatten(2))  # (batch, queries, embed)
        if unbatched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        packed: Any = self.in_proj_weight
        split = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        parts = packed.chunk(3) if packed is not None else split
        packed_bias: Any = self.in_proj_bias
        biases = packed_bias.chunk(3) if packed_bias is not None else (None, None, None)
        return [
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), parts, biases, strict=True)
        ]

    def _with_own_entries(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Keys or values, with the entries that are no input's: a learned one, and zeros."""
        batch, heads, _, width = x.shape
        if learned is not None:
            x = torch.cat([x, learned.view(1, heads, 1, width).expand(batch, -1, -1, -1)], dim=2)
        return torch.cat([x, x.new_zeros(batch, heads, 1, width)], dim=2) if self.add_zero_attn else x

    def _bias(self, q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Both masks as one additive bias (batch, heads, queries, keys)."""
        total = None
        if padding is not None:
            rows = padding if padding.dim() == 2 else padding[None]  # of an input without a batch
            total = _additive(rows, q.dtype)[:, None, None, :]
        if mask is not None:
            added = _additive(mask, q.dtype)
            if added.dim() == 3:
                added = added.unflatten(0, (q.shape[0], -1))
            total = added if total is None else total + added
        return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, float("-inf"))


class ConfigView:
    """A config as one pruned block sees it: its own head counts, everything else read from the model's config."""

    def __init__(self, base: Any, overrides: dict[str, Any]) -> None:
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

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.headprune_base, name, value)

    def __repr__(self) -> str:
        return f"ConfigView({type(self.headprune_base).__name__}, {self.headprune_overrides})"


HIDDEN = "headprune_no_"  # headprune_no_query: the place of a projection that is gone


class Journal:
    """What was done, so that it can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def did(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def roll_back(self) -> None:
        while self._undo:
            self._undo.pop()()


def apply_(model: nn.Module, edits: Edits, *, stored: bool = False) -> Journal:
    """Make the edits on a model; returns the journal to undo them. On an error nothing is left half done.

    `stored` edits come from a checkpoint: paths are the base model's, parts that this class does not have are left
    out, and what was done already (by an inner model's constructor) is not done again.
    """
    journal = Journal()
    join_heads_(model)

    def module_at(path: str) -> nn.Module | None:
        if not stored:
            return model.get_submodule(path)
        place = find_module(model, path)
        return place[1] if place else None

    try:
        for path in sorted(edits.multihead):
            _replace_multihead(model, path, module_at(path), journal, stored)
        for path, size in edits.biases.items():
            if (module := module_at(path)) is not None:
                _add_bias(module, path, size, journal)
        for path, tensors in edits.slices.items():
            if (module := module_at(path)) is not None:
                for name, cut in tensors.items():
                    _slice(module, path, name, cut, journal)
        for path, values in edits.attributes.items():
            if (module := module_at(path)) is not None:
                _set_attributes(module, path, values, journal)
        for path, stub in edits.stubs.items():
            if (module := module_at(path)) is not None:
                _replace_by_stub(model, path, module, stub, journal, stored)
        for path in {**edits.configs, **edits.attention}:
            if (module := module_at(path)) is not None:
                attention = edits.attention.get(path)
                if is_wavlm(module) and attention is not None and attention.bias_heads is not None:
                    journal.did(keep_wavlm_heads_(module, attention.bias_heads))
                else:
                    _give_view(module, edits.configs.get(path, {}), attention, journal)
        for path, arguments in edits.arguments.items():
            if (module := module_at(path)) is not None and arguments_sliced_by(module) != arguments:
                journal.did(slice_arguments_(module, arguments))
        for path, width in edits.reshapes.items():
            if (module := module_at(path)) is not None and width_followed_by(module) != width:
                journal.did(follow_width_(module, width))
    except BaseException:
        journal.roll_back()
        raise
    return journal


def _add_bias(module: nn.Module, path: str, size: int, journal: Journal) -> None:
    """Where a repair needed one: the loaded skeleton gets a place for it."""
    if getattr(module, "bias", None) is not None:
        return
    shape = layout(module)
    if not isinstance(module, nn.Linear) or shape is None or module.weight.shape[shape.out_dim] != size:
        raise CheckpointError(f"The checkpoint gives {path} a bias of {size} numbers, which does not fit this model.")
    bias = torch.zeros(size, dtype=module.weight.dtype, device=module.weight.device)
    module.bias = nn.Parameter(bias, requires_grad=module.weight.requires_grad)
    journal.did(lambda: setattr(module, "bias", None))


def _slice(module: nn.Module, path: str, name: str, cut: Slice, journal: Journal) -> None:
    tensors: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
    old = tensors.get(name)
    if old is None or cut.dim >= old.dim():
        raise CheckpointError(f"The checkpoint cuts {path}.{name}, which this model does not have in that shape.")
    if old.shape[cut.dim] == len(cut.keep) != cut.size:
        return  # done by the constructor of an inner model
    if old.shape[cut.dim] != cut.size:
        raise CheckpointError(
            f"{path}.{name} has {old.shape[cut.dim]} entries in dimension {cut.dim}; the pruning was made on a model "
            f"with {cut.size}. The config was edited, or it belongs to another model."
        )
    index = torch.tensor(cut.keep, dtype=torch.long, device=old.device)
    new = old.detach().index_select(cut.dim, index).contiguous()
    if cut.is_placeholder and isinstance(old, nn.Parameter):
        _make_placeholder(module, name, torch.zeros_like(new), journal)
        return
    tensors[name] = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
    journal.did(lambda: tensors.__setitem__(name, old))


def _make_placeholder(module: nn.Module, name: str, zeros: torch.Tensor, journal: Journal) -> None:
    """A parameter becomes a buffer that is neither trained nor counted nor saved."""
    old = module._parameters.pop(name)
    module.register_buffer(name, zeros, persistent=False)

    def undo() -> None:
        del module._buffers[name]
        module._non_persistent_buffers_set.discard(name)
        module._parameters[name] = old

    journal.did(undo)


def _set_attributes(module: nn.Module, path: str, values: dict[str, int], journal: Journal) -> None:
    for name, value in values.items():
        old = vars(module).get(name)
        if type(old) is not int:
            raise CheckpointError(f"The checkpoint sets {path}.{name}, which is not a count of this model.")
        setattr(module, name, value)
        journal.did(lambda name=name, old=old: setattr(module, name, old))  # type: ignore[misc]


def _replace_by_stub(
    model: nn.Module, path: str, module: nn.Module, stub: Stub, journal: Journal, stored: bool
) -> None:
    if isinstance(module, ZeroProjection | BiasOnly):
        return
    bias: Any = getattr(module, "bias", None)
    shape = layout(module)
    size = 0 if shape is None else module.weight.shape[shape.out_dim]  # type: ignore[index]
    if not 0 < stub.width <= size or (stub.kind == "bias" and stub.width != size):
        raise CheckpointError(f"The checkpoint puts a stub of width {stub.width} in place of {path}, which has {size}.")
    if stub.kind == "zeros":
        new: nn.Module = ZeroProjection(stub.width, has_bias=bias is not None)
    elif not stub.bias:
        new = BiasOnly(stub.width, None, has_bias=bias is not None)
    elif isinstance(bias, nn.Parameter) and bias.shape == (stub.width,):
        new = BiasOnly(stub.width, bias)
    else:
        raise CheckpointError(
            f"The checkpoint keeps a bias of {stub.width} numbers at {path}; the model has none such."
        )
    like = next(iter(module.parameters()), None)
    if like is not None:
        new.to(device=like.device, dtype=like.dtype)
    _swap(model, path, new, journal, stored)


def _replace_multihead(model: nn.Module, path: str, module: nn.Module | None, journal: Journal, stored: bool) -> None:
    if module is None or isinstance(module, SlicedMultihead):
        return
    if not isinstance(module, nn.MultiheadAttention):
        raise CheckpointError(f"The checkpoint expects nn.MultiheadAttention at {path}, found {type(module).__name__}.")
    around = [m for m in model.modules() if isinstance(m, nn.TransformerEncoder) and module in set(m.modules())]
    _swap(model, path, SlicedMultihead(module), journal, stored)
    for encoder in around:  # would hand its layers nested tensors, which only the fast path understands
        journal.did(partial(setattr, encoder, "use_nested_tensor", encoder.use_nested_tensor))
        encoder.use_nested_tensor = False


def _swap(model: nn.Module, path: str, new: nn.Module, journal: Journal, stored: bool) -> None:
    place = find_module(model, path) if stored else (path, model.get_submodule(path))
    assert place is not None, "the caller has just found it"
    parent_path, _, name = place[0].rpartition(".")
    parent, old = model.get_submodule(parent_path), place[1]
    new.train(old.training)
    if isinstance(new, ZeroProjection) and not isinstance(parent, nn.Sequential):  # which runs what is in it, in order
        _hide(parent, name, new)
        journal.did(lambda: _unhide(parent, name, old))
    else:
        setattr(parent, name, new)
        journal.did(lambda: setattr(parent, name, old))


def _hide(parent: nn.Module, name: str, stub: ZeroProjection) -> None:
    """The model's code still finds the stub by its name; tools that pick layers by name (LoRA) do not."""
    del parent._modules[name]
    parent._modules[f"{HIDDEN}{name}"] = stub
    parent.__dict__[name] = stub


def _unhide(parent: nn.Module, name: str, old: nn.Module) -> None:
    del parent._modules[f"{HIDDEN}{name}"], parent.__dict__[name]
    parent._modules[name] = old


def _give_view(module: nn.Module, counts: dict[str, int], attention: Attention | None, journal: Journal) -> None:
    old: Any = getattr(module, "config", None)
    if old is None:
        raise CheckpointError(f"The checkpoint changes the config of {type(module).__name__}, which has none.")
    overrides: dict[str, Any] = dict(counts)
    if attention is not None:
        register_attention_function()
        overrides |= {
            "_attn_implementation": PRUNED_ATTENTION,
            "headprune_empty": attention.empty,
            "headprune_bias_heads": attention.bias_heads,
        }
    module.config = ConfigView(old, overrides)  # type: ignore[assignment]
    journal.did(lambda: setattr(module, "config", old))


class LlamaForCausalLM(Whole):
    """LlamaForCausalLM without the heads that were removed."""

    @classmethod
    def is_custom_code(cls) -> bool:
        return False  # its weights have the library's own names, which some classes change while saving and loading

    def post_init(self) -> None:
        super().post_init()
        entry = getattr(self.config, "headprune", None)
        if entry is not None and not getattr(type(self), "_headprune_installed", False):  # it would have done it
            apply_(self, Edits.from_dict(entry["edits"]), stored=True)
