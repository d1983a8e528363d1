"""Neurons of a feed-forward part go: rows of the projections that make them, columns of the one that reads them."""

from __future__ import annotations

from torch import nn

from headprune.errors import UnsupportedModelError
from headprune.structure import projections
from headprune.structure.neurons import FeedForward, channels
from headprune.surgery.edits import Cut, Edits, Slice, Stub


def neuron_edits(model: nn.Module, part: FeedForward, cut: Cut, *, skip_bias: bool) -> Edits:
    """The tensors of a part, cut."""
    edits = Edits()
    for path in (*part.sources, part.output):
        reason = projections.why_not_sliceable(model.get_submodule(path))
        if reason:
            raise UnsupportedModelError(f"{cut.site.id} cannot be pruned: {path}: {reason}")
    for path, kind in part.sources.items():
        module = model.get_submodule(path)
        layout = projections.layout(module)
        assert layout is not None, "checked above"
        keep, size = tuple(channels(kind, cut.positions, part.size)), len(channels(kind, range(part.size), part.size))
        if cut.is_empty:
            edits.stubs[path] = Stub("zeros", len(keep))
            continue
        edits.slices[path] = {"weight": Slice(layout.out_dim, size, keep)}
        if getattr(module, "bias", None) is not None:
            edits.slices[path]["bias"] = Slice(0, size, keep)
        if type(vars(module).get(layout.out_name)) is int:
            edits.attributes[path] = {layout.out_name: len(keep)}
    output = model.get_submodule(part.output)
    layout = projections.layout(output)
    assert layout is not None, "checked above"
    if cut.is_empty:
        bias = getattr(output, "bias", None) is not None and not skip_bias
        edits.stubs[part.output] = Stub("bias", projections.matrix(output).shape[0], bias)
        return edits
    edits.slices[part.output] = {"weight": Slice(layout.in_dim, part.size, tuple(cut.positions))}
    if type(vars(output).get(layout.in_name)) is int:
        edits.attributes[part.output] = {layout.in_name: len(cut.positions)}
    return edits
