"""Linear maps as models store them: which dimension of the weight is input, which is output, and how it is counted."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.hooks import JoinedHeads


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


def is_projection(module: nn.Module) -> bool:
    """Whether a module acts as a linear map, whatever it keeps inside."""
    if isinstance(module, nn.Embedding):
        return False
    return layout(module) is not None or (hasattr(module, "in_features") and hasattr(module, "out_features"))


def weight(module: nn.Module) -> Tensor:
    """The weight of a linear map, as it is stored."""
    found = module.weight
    assert isinstance(found, Tensor), "the caller asked for its layout"
    return found


def input_width(module: nn.Module) -> int:
    shape = layout(module)
    if shape is not None:
        return int(weight(module).shape[shape.in_dim])
    return int(getattr(module, "in_features"))  # noqa: B009  # of whatever acts as a linear map


def why_not_sliceable(module: nn.Module) -> str | None:
    """Why a projection cannot be cut, with what to do about it; None if it can."""
    if layout(module) is not None:
        if module.weight.is_meta:
            return "its weights are not in memory (meta device or offloaded). Load the model without offloading first."
        return None
    if hasattr(module, "base_layer"):
        return "it carries an adapter such as LoRA. Merge it first: model = model.merge_and_unload()."
    name = type(module).__name__
    return (
        f"{name} is not a plain linear layer, and headprune cuts no other. If the model is quantised, prune the "
        "unquantised one, save it, and quantise it while loading."
    )


def _plain(module: nn.Linear) -> bool:
    """Tensor subclasses (torchao and others) keep numbers in a packed form that cannot be indexed."""
    from torch.nn.parameter import Parameter

    return type(module.weight) in (Parameter,) and type(module.weight.data).__name__ == "Tensor"


def matrix(module: nn.Module) -> Tensor:
    """The weight of a projection as (outputs, inputs), however it is stored."""
    shape = layout(module)
    if shape is None:
        raise UnsupportedModelError(f"{type(module).__name__} does not show its weight as a plain matrix.")
    return weight(module).detach() if shape.in_dim == 1 else weight(module).detach().t()


def parameter(module: nn.Module) -> nn.Parameter:
    """The trained parameter behind a projection's weight."""
    found = module.attention.o if isinstance(module, JoinedHeads) else module.weight
    assert isinstance(found, nn.Parameter)
    return found
