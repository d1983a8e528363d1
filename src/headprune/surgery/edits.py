"""A pruning as data: the changes that turn the original model's skeleton into the pruned one's.

The same edits are applied to a model in memory and, when a checkpoint is loaded, to its empty skeleton. They come
from a file then, so everything in them is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headprune.errors import CheckpointError
from headprune.hooks import (
    PRUNED_ATTENTION,
    SlicedArgument,
    arguments_sliced_by,
    register_attention_function,
    slice_arguments_,
)
from headprune.sites.projections import layout
from headprune.sites.record import find_module
from headprune.surgery.stubs import BiasOnly, ConfigView, SlicedMultihead, ZeroProjection


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
        }

    @classmethod
    def from_dict(cls, content: Any) -> Edits:
        """Read what `to_dict` wrote, from a file that anybody may have touched."""
        try:
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
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"The config's 'headprune' entry cannot be read ({type(error).__name__}: {error}). "
                "It was edited or damaged: save the pruned model again."
            ) from error
        return edits


LARGEST = 1 << 26  # entries of one dimension of a tensor: more than any model has, less than what exhausts memory

HIDDEN = "headprune_no_"  # headprune_no_query: the place of a projection that is gone

_TABLES = ("slices", "attributes", "stubs", "configs", "attention", "arguments")


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

    def module_at(path: str) -> nn.Module | None:
        if not stored:
            return model.get_submodule(path)
        place = find_module(model, path)
        return place[1] if place else None

    try:
        for path in sorted(edits.multihead):
            _replace_multihead(model, path, module_at(path), journal, stored)
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
                _give_view(module, edits.configs.get(path, {}), edits.attention.get(path), journal)
        for path, arguments in edits.arguments.items():
            if (module := module_at(path)) is not None and arguments_sliced_by(module) != arguments:
                journal.did(slice_arguments_(module, arguments))
    except BaseException:
        journal.roll_back()
        raise
    return journal


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
    _swap(model, path, SlicedMultihead(module), journal, stored)


def _swap(model: nn.Module, path: str, new: nn.Module, journal: Journal, stored: bool) -> None:
    place = find_module(model, path) if stored else (path, model.get_submodule(path))
    assert place is not None, "the caller has just found it"
    parent_path, _, name = place[0].rpartition(".")
    parent, old = model.get_submodule(parent_path), place[1]
    new.train(old.training)
    if isinstance(new, ZeroProjection):
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
