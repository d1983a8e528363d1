"""Linear maps as models store them, and which of their channels and parameters belong to which head.

That is found by gradients on one traced forward pass: the slice of head h of the output projection's input is sent
backwards, and whatever receives a gradient belongs to h. So fused layouts, shared keys and values, sinks and relative
tables are found without a naming rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.hooks import JOINED_HEADS, JoinedHeads


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


def projection_at(model: nn.Module, path: str) -> nn.Module:
    """An output projection, to look at its weights: also where it is no module at the moment."""
    parent, _, name = path.rpartition(".")
    if name == JOINED_HEADS and not hasattr(attention := model.get_submodule(parent), JOINED_HEADS):
        return JoinedHeads(attention)
    return model.get_submodule(path)


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
    name = type(module).__name__
    if isinstance(module, JoinedHeads) or (layout(module) is not None and _plain(module)):
        if module.weight.is_meta:
            return "its weights are not in memory (meta device or offloaded). Load the model without offloading first."
        return None
    if hasattr(module, "base_layer"):
        return "it carries an adapter such as LoRA. Merge it first: model = model.merge_and_unload()."
    if type(module) is nn.Linear or name == "Conv1D":
        return (
            f"the weight of this {name} is no plain matrix: it is sparse or packed, or made anew in every run from "
            "others (torch.nn.utils.prune, weight norm). Make it one: to_dense(), prune.remove, remove_weight_norm."
        )
    return (
        f"{name} is not a plain linear layer, and headprune cuts no other. If the model is quantised, prune the "
        "unquantised one, save it, and quantise it while loading."
    )


def _plain(module: nn.Module) -> bool:
    """Tensor subclasses (torchao and others) and sparse tensors keep numbers in a packed form that cannot be indexed;
    a weight that is no parameter is made anew from others in every run."""
    found = module.weight
    is_matrix = type(found) is nn.Parameter and type(found.data).__name__ == "Tensor"
    return is_matrix and found.layout is torch.strided


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


@dataclass(frozen=True)
class Reach:
    """Where gradients of the context arrive at a tensor's last dimension."""

    owners: Tensor  # (heads, channels) bool
    spread: Tensor  # (channels,) rows reached from the context's last row: 1 for queries, several for keys and values
    shares: Tensor  # (heads, channels): activation times gradient; a head's values add up to the head's own total
    later_rows: Tensor  # bool: rows after the context's first real row that are reached from it

    def with_another(self, call: Reach) -> Reach:
        """Together with a second call of the same projection."""
        longer = self if len(self.later_rows) >= len(call.later_rows) else call
        return Reach(
            self.owners | call.owners,
            torch.maximum(self.spread, call.spread),
            self.shares + call.shares,
            longer.later_rows,
        )


class Backward:
    """Gradients of a context (the output projection's input) with respect to tensors of the same pass."""

    def __init__(self, context: Tensor, heads: int, rows: tuple[int, int] = (0, -1), seed: int = 0) -> None:
        self.context, self.heads = context, heads
        self.first, self.last = rows  # real positions, in the flattened (batch, positions)
        self.width = context.shape[-1] // heads
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(context.shape, generator=generator) + 0.5  # no zero and no sign to cancel
        sign = torch.randint(0, 2, context.shape, generator=generator) * 2 - 1
        self.noise = (noise * sign).to(context)

    def of_head(self, head: int, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        sent = torch.zeros_like(self.context, memory_format=torch.contiguous_format)
        part = slice(head * self.width, (head + 1) * self.width)
        sent[..., part] = self.noise[..., part]
        return self._send(sent, tensors)

    def total(self, head: int) -> tuple[float, float]:
        """What is sent backwards from a head, times what the head said; and how far rounding may move that sum.

        Terms of both signs cancel, so that the sum may be smaller than what each of them was rounded by: the margin is
        that of as many independent roundings in the model's precision, four times over.
        """
        part = slice(head * self.width, (head + 1) * self.width)
        terms = self.context[..., part].detach().double() * self.noise[..., part].double()
        total = float(terms.sum())
        return total, 1e-3 * abs(total) + 4 * torch.finfo(self.context.dtype).eps * float(terms.norm())

    def of_row(self, row: int, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """From one position of one example, all heads."""
        sent = torch.zeros_like(self.context, memory_format=torch.contiguous_format)
        flat, noise = sent.view(-1, sent.shape[-1]), self.noise.reshape(-1, sent.shape[-1])
        flat[row] = noise[row]
        return self._send(sent, tensors)

    def _send(self, sent: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(self.context, list(tensors), sent, retain_graph=True, allow_unused=True)


def reaches(backward: Backward, tensors: Sequence[Tensor]) -> list[Reach | None]:
    """The reach of each activation (…, channels); None where no gradient arrives at all."""
    by_head = [_arrived(tensors, backward.of_head(head, tensors)) for head in range(backward.heads)] if tensors else []
    return _reaches(backward, tensors, by_head)


def reaches_of_entries(
    backward: Backward, result: Tensor, axis: int, tensors: Sequence[Tensor]
) -> list[Reach | None] | None:
    """`reaches`, if slice h of the context comes from entry h of the attention result, for every h; else None.

    A differential head comes from two entries, h and h + heads.
    """
    other = [dim for dim in range(result.dim()) if dim != axis]
    by_head = []
    for head in range(backward.heads):
        *grads, grad = backward.of_head(head, [*tensors, result])
        if grad is None:
            return None
        entries = (grad != 0).sum(dim=other).nonzero().flatten().tolist()
        if entries != list(range(head, result.shape[axis], backward.heads)):
            return None
        by_head.append(_arrived(tensors, grads))
    return _reaches(backward, tensors, by_head)


def _arrived(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """What a head sends to each activation: the channels where it arrives, and their shares."""
    return [(_channels(grad, x.shape[-1]), _shares(x, grad)) for x, grad in zip(tensors, grads, strict=True)]


def _reaches(
    backward: Backward, tensors: Sequence[Tensor], by_head: list[list[tuple[Tensor, Tensor]]]
) -> list[Reach | None]:
    if not tensors:
        return []
    first, last = backward.of_row(backward.first, tensors), backward.of_row(backward.last, tensors)
    found: list[Reach | None] = []
    for index, tensor in enumerate(tensors):
        channels = tensor.shape[-1]
        owners = torch.stack([arrived[index][0] for arrived in by_head])
        if not owners.any():
            found.append(None)
            continue
        later = _rows(first[index], channels).any(1)[backward.first + 1 :]
        shares = torch.stack([arrived[index][1] for arrived in by_head])
        found.append(Reach(owners, _rows(last[index], channels).sum(0), shares, later))
    return found


def parameter_owners(
    backward: Backward, parameters: Sequence[Tensor], groups: Sequence[Sequence[int]]
) -> list[tuple[int, Tensor] | None]:
    """For each parameter the dimension that separates heads (or groups) and who owns its entries; None if none does."""
    first = backward.of_head(0, parameters)
    used = [place for place, grad in enumerate(first) if grad is not None]  # a norm after the attention is not
    tensors = [parameters[place] for place in used]
    rest = [backward.of_head(head, tensors) for head in range(1, backward.heads)] if tensors else []
    found: list[tuple[int, Tensor] | None] = [None] * len(parameters)
    for index, place in enumerate(used):
        grads = [first[place], *(grads[index] for grads in rest)]
        found[place] = _separating_dimension(grads, parameters[place], groups)
    return found


def _separating_dimension(
    grads: list[Tensor | None], parameter: Tensor, groups: Sequence[Sequence[int]]
) -> tuple[int, Tensor] | None:
    if len(grads) < 2 or any(grad is None for grad in grads):
        return None
    for dim in range(parameter.dim()):
        other = [d for d in range(parameter.dim()) if d != dim]
        used = [(grad != 0).sum(dim=other) > 0 if other else grad != 0 for grad in grads if grad is not None]
        owners = torch.stack(used).cpu()  # (heads, entries)
        if _separates(owners) or _separates_groups(owners, groups):
            return dim, owners
    return None


def _separates(owners: Tensor) -> bool:
    """Whether every head has entries of its own, at most its share of them."""
    heads, entries = owners.shape
    if entries % heads:
        return False
    fair = all(int(row.sum()) <= entries // heads for row in owners)
    return fair and bool((owners.sum(0) <= 1).all()) and bool(owners.any(1).all())


def _separates_groups(owners: Tensor, groups: Sequence[Sequence[int]]) -> bool:
    """Whether the heads of a group have the same entries, and every group its own (a norm of each key head)."""
    if len(groups) in (1, len(owners)):
        return False
    alike = all(bool((owners[list(group)] == owners[group[0]]).all()) for group in groups)
    return alike and _separates(owners[[group[0] for group in groups]])


def value_channels(backward: Backward, reach: Reach) -> list[Tensor] | None:
    """The channels of each head's values in a projection's output; None if the values are not in it.

    A head's output is linear in its values, so activation times gradient over just these channels adds up to the
    head's total. No choice of query or key channels does.
    """
    found = []
    for head in range(backward.heads):
        total, margin = backward.total(head)
        pieces = _runs(reach.owners[head], backward.width)
        gaps = [abs(float(reach.shares[head, channels].sum()) - total) for channels in pieces]
        if not gaps or min(gaps) > margin:
            return None
        found.append(pieces[gaps.index(min(gaps))])
    return found


def role_channels(backward: Backward, reach: Reach) -> dict[str, list[Tensor]]:
    """Which channels of a projection are each head's queries, keys and values.

    Queries act on their own position only, values are found by linearity, keys are the rest that acts on several.
    """
    values = value_channels(backward, reach)
    roles: dict[str, list[Tensor]] = {"value": values} if values is not None else {}
    others = reach.owners.clone()
    for head, channels in enumerate(values or []):
        others[head, channels] = False
    for role, acts in (("query", reach.spread == 1), ("key", reach.spread > 1)):
        owned = others & acts
        counts = owned.sum(1).tolist()
        if all(counts):
            roles[role] = list(owned.nonzero()[:, 1].split(counts))
    return roles


def _runs(owned: Tensor, width: int) -> list[Tensor]:
    """Pieces of the given width of each stretch of owned channels, and its end."""
    places = torch.nonzero(owned).flatten()
    if not len(places):
        return []
    cuts = (torch.nonzero(places.diff() != 1).flatten() + 1).tolist()
    pieces = []
    for stretch in torch.tensor_split(places, cuts):
        pieces += [piece for piece in stretch.split(width) if len(piece) == width]
        if len(stretch) > width and len(stretch) % width:
            pieces.append(stretch[-width:])
    return pieces


def _shares(tensor: Tensor, grad: Tensor | None) -> Tensor:
    if grad is None:
        return torch.zeros(tensor.shape[-1], dtype=torch.float64)
    return (tensor.detach().double() * grad.double()).reshape(-1, tensor.shape[-1]).sum(0).cpu()


def _channels(grad: Tensor | None, channels: int) -> Tensor:
    if grad is None:
        return torch.zeros(channels, dtype=torch.bool)
    return (grad != 0).reshape(-1, channels).any(0).cpu()


def _rows(grad: Tensor | None, channels: int) -> Tensor:
    if grad is None:
        return torch.zeros(1, channels, dtype=torch.bool)
    return (grad != 0).reshape(-1, channels).cpu()  # (rows, channels)
