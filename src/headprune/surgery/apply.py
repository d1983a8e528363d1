"""Making edits on a model, in memory or on an empty skeleton, and undoing them; what stands in for layers.

The stub of an output projection saves a `weight` of one number. A checkpoint with it cannot be loaded by plain
transformers without a size-mismatch error, so a model with emptied sites is never silently filled with random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import find_module
from headprune.errors import CheckpointError
from headprune.hooks import (
    JOINED_HEADS,
    PRUNED_ATTENTION,
    SlicedMultihead,
    arguments_sliced_by,
    follow_width_,
    keep_open_,
    register_attention_function,
    slice_arguments_,
    width_followed_by,
)
from headprune.structure.projections import layout, weight
from headprune.surgery.edits import Attention, Edits, Slice, Stub, to_ranges

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
            parent, _, name = path.rpartition(".")
            if name == JOINED_HEADS and (attention_module := module_at(parent)) is not None:
                journal.did(keep_open_(attention_module, "bare_output"))  # its output projection is there from now on
            if (module := module_at(path)) is not None:
                _replace_by_stub(model, path, module, stub, journal, stored)
        for path in {**edits.configs, **edits.attention}:
            if (module := module_at(path)) is not None:
                attention = edits.attention.get(path)
                if attention is not None and attention.bias_heads is not None and not hasattr(module, "config"):
                    form = attention.unfused or "gated_bias"  # 0.1.0 did not say it, and had no other
                    journal.did(keep_open_(module, form, attention.bias_heads))
                else:
                    _give_view(module, edits.configs.get(path, {}), attention, journal)
        for path, arguments in edits.arguments.items():
            if (module := module_at(path)) is not None and arguments_sliced_by(module) != arguments:
                journal.did(slice_arguments_(module, arguments))
        for path, width in edits.reshapes.items():
            if (module := module_at(path)) is not None and width_followed_by(module) != width:
                journal.did(follow_width_(module, width))
        for path, names in edits.frozen.items():
            if (module := module_at(path)) is not None:
                _freeze(module, names, journal)
    except BaseException:
        journal.roll_back()
        raise
    return journal


def _freeze(module: nn.Module, names: Sequence[str], journal: Journal) -> None:
    """What no answer depends on any more gets no gradient, and processes that train together would wait for it."""
    for name in names:
        parameter = module._parameters.get(name)
        if parameter is not None and parameter.requires_grad:
            parameter.requires_grad_(False)
            journal.did(partial(parameter.requires_grad_, True))  # type: ignore[arg-type]


def freeze_stored_(model: nn.Module, entry: config_entry.Entry) -> None:
    """After the weights were loaded, which makes parameters anew."""
    apply_(model, Edits(frozen=Edits.from_dict(entry.get("edits")).frozen), stored=True)


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


def untie_removed_(model: nn.Module) -> None:
    """Forget ties to weights that are gone: transformers would look for them while it loads (Zamba's layers)."""
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    left = dict(model.named_parameters(remove_duplicate=False))
    for target, source in list(ties.items()):
        if target not in left or source not in left:
            del ties[target]


def tie_again_(model: nn.Module) -> None:
    """Weights that layers share, and that were cut alike, are one tensor again."""
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    left = dict(model.named_parameters(remove_duplicate=False))
    for target, source in ties.items():
        if target not in left or source not in left or left[target] is left[source]:
            continue
        same_place = left[target].device == left[source].device
        if same_place and left[target].shape == left[source].shape and bool(left[target].eq(left[source]).all()):
            path, _, name = target.rpartition(".")
            model.get_submodule(path).register_parameter(name, left[source])


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
    new = selected(old.detach(), cut)
    if cut.is_placeholder and isinstance(old, nn.Parameter):
        _make_placeholder(module, name, torch.zeros_like(new), journal)
        return
    tensors[name] = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
    journal.did(lambda: tensors.__setitem__(name, old))


def selected(tensor: torch.Tensor, cut: Slice) -> torch.Tensor:
    """The kept entries. Heads are runs of entries, which are copied as such; single ones are picked."""
    runs = to_ranges(cut.keep)
    if 0 < len(runs) <= len(cut.keep) // 4:
        return torch.cat([tensor.narrow(cut.dim, start, stop - start) for start, stop in runs], cut.dim).contiguous()
    index = torch.tensor(cut.keep, dtype=torch.long, device=tensor.device)
    return tensor.index_select(cut.dim, index).contiguous()


def _make_placeholder(module: nn.Module, name: str, zeros: torch.Tensor, journal: Journal) -> None:
    """A parameter becomes a buffer that is neither trained nor counted nor saved."""
    before = dict(module._parameters)
    del module._parameters[name]
    module.register_buffer(name, zeros, persistent=False)

    def undo() -> None:
        del module._buffers[name]
        module._non_persistent_buffers_set.discard(name)
        module._parameters.clear()  # so that they are in the order in which they were
        module._parameters.update(before)

    journal.did(undo)


def _set_attributes(module: nn.Module, path: str, values: dict[str, int], journal: Journal) -> None:
    for name, value in values.items():
        old = vars(module).get(name)
        if type(old) is not int:
            raise CheckpointError(f"The checkpoint sets {path}.{name}, which is not a count of this model.")
        setattr(module, name, value)
        journal.did(partial(setattr, module, name, old))


def _replace_by_stub(
    model: nn.Module, path: str, module: nn.Module, stub: Stub, journal: Journal, stored: bool
) -> None:
    if isinstance(module, ZeroProjection | BiasOnly):
        return
    bias = getattr(module, "bias", None)
    shape = layout(module)
    size = 0 if shape is None else weight(module).shape[shape.out_dim]
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
    _rename_child(parent, name, f"{HIDDEN}{name}", stub)
    parent.__dict__[name] = stub


def _unhide(parent: nn.Module, name: str, old: nn.Module) -> None:
    del parent.__dict__[name]
    _rename_child(parent, f"{HIDDEN}{name}", name, old)


def _rename_child(parent: nn.Module, name: str, new_name: str, module: nn.Module) -> None:
    """Another child under another name, in the same place among its siblings."""
    children = [(new_name, module) if key == name else (key, child) for key, child in parent._modules.items()]
    parent._modules.clear()
    parent._modules.update(children)


def _give_view(module: nn.Module, counts: dict[str, int], attention: Attention | None, journal: Journal) -> None:
    old = getattr(module, "config", None)
    if old is None:
        raise CheckpointError(f"The checkpoint changes the config of {type(module).__name__}, which has none.")
    overrides: dict[str, object] = dict(counts)
    if attention is not None:
        register_attention_function()
        overrides |= {
            "_attn_implementation": PRUNED_ATTENTION,
            "headprune_empty": attention.empty,
            "headprune_bias_heads": attention.bias_heads,
        }
    module.config = ConfigView(old, overrides)  # type: ignore[assignment]
    journal.did(lambda: setattr(module, "config", old))


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

    def __init__(self, base: object, overrides: dict[str, object]) -> None:
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
