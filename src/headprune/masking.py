"""Switching heads off, or scaling them, without changing the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from headprune import hooks
from headprune.errors import MaskError, UnknownNameError
from headprune.heads import HeadMap, HeadMask, Site
from headprune.heads.headmap import NEURONS
from headprune.registry import hint
from headprune.structure.find import find_heads
from headprune.structure.run import unwrapped

EmptySite = Literal["bias", "skip"]
HeadWeights = Mapping[str, "Tensor | Sequence[float]"]


@contextmanager
def masked(
    model: nn.Module,
    mask: HeadMask | HeadWeights,
    *,
    empty_site: EmptySite = "bias",
    heads: HeadMap | None = None,
) -> Iterator[nn.Module]:
    """Multiply the output of each head until the block ends.

    `mask` is a `HeadMask` (heads that stay), or numbers: `{site id: (heads,) or (batch, heads)}` with one entry per
    original head (or per position, `(batch, positions, heads)`). Sites that are not named stay as they are. Gradients
    reach tensors given as numbers; with gradient checkpointing, run the backward pass inside the block too.

    A mask holds in the thread (or task) that opened the block, and in threads that torch starts for it; others run the
    model as it is, or under masks of their own.

    `empty_site="skip"` also silences the output bias of a site whose heads are all masked (Budhraja et al.).
    Works under any attention implementation, nested (factors multiply), and with `torch.compile`, at the price of a
    recompilation on entering and leaving. `heads` saves looking for them if you have just done so.

    Example:
        >>> mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:3")
        >>> with hp.masked(model, mask):
        ...     logits = model(**batches[0]).logits
    """
    model = unwrapped(model)
    if empty_site not in ("bias", "skip"):
        raise MaskError(f"empty_site is {empty_site!r}; expected 'bias' or 'skip'.")
    with ExitStack() as block:
        with hooks.settled():  # no other thread prunes it between looking for heads and masking them
            if heads is None:
                heads = find_heads(model, neurons=_names_neurons(mask))
            factors = _mask_factors(mask, heads) if isinstance(mask, HeadMask) else _number_factors(mask, heads)
            if factors:
                block.enter_context(_hooked(model, heads, factors, silence=empty_site == "skip"))
        try:
            yield model
        finally:
            with hooks.settled():  # XLNet's projections go as modules, over which another thread may be counting
                block.close()


@contextmanager
def _hooked(model: nn.Module, heads: HeadMap, factors: Mapping[str, Tensor], *, silence: bool) -> Iterator[None]:
    with hooks.fresh_compilation(model), hooks.called_projections(model):
        outputs = {site: model.get_submodule(heads[site].output) for site in factors}
        by_module = {
            outputs[site]: hooks.HeadFactor(site, factor, heads[site].batch_axis) for site, factor in factors.items()
        }
        silent = [
            outputs[site]
            for site, factor in factors.items()
            if silence and not factor.requires_grad and not bool(factor.any())
        ]
        with hooks.scaled_inputs(by_module), hooks.silent_outputs(silent):
            yield


def is_masked(model: nn.Module, *, anywhere: bool = False) -> bool:
    """Whether a `masked` block is open on this model or a part of it: here, or in any thread."""
    return any(anywhere or hook.scope.is_here for hook in hooks.scoped_hooks(model, hooks.HeadFactor))


def _mask_factors(mask: HeadMask, heads: HeadMap) -> dict[str, Tensor]:
    """0/1 factors of the sites that lose a head; untouched sites need no hook."""
    mask = mask.filled(heads).checked_for(heads)
    return {
        site.id: torch.tensor([float(head in kept) for head in site.kept])
        for site in heads
        if (kept := set(mask.kept(site.id))) != set(site.kept)
    }


def _names_neurons(mask: HeadMask | HeadWeights) -> bool:
    if isinstance(mask, HeadMask):
        return mask.has_neurons
    return isinstance(mask, Mapping) and any(f".{NEURONS}." in f".{site}." for site in mask)


def _number_factors(weights: HeadWeights, heads: HeadMap) -> dict[str, Tensor]:
    if not isinstance(weights, Mapping):
        raise MaskError(
            f"Found {type(weights).__name__}: expected a HeadMask or a table of site id to one number per head."
        )
    factors = {}
    for name, numbers in weights.items():
        if name not in heads:
            raise UnknownNameError(f"This model has no site '{name}'. {hint(name, (site.id for site in heads))}")
        site = heads[name]
        if site.num_heads:
            factor = _current_heads(site, _as_tensor(site, numbers))
            if factor.requires_grad or not bool((factor == 1).all()):  # ones change nothing and need no hook
                factors[name] = factor
    return factors


def _as_tensor(site: Site, numbers: Tensor | Sequence[float]) -> Tensor:
    try:
        tensor = numbers if isinstance(numbers, Tensor) else torch.tensor([0.0 if x is None else x for x in numbers])
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(f"{site.id}: found {numbers!r}, expected one number per original head.") from error
    if tensor.dim() not in (1, 2, 3) or tensor.shape[-1] != site.original_num_heads:
        raise MaskError(
            f"{site.id}: found weights of shape {tuple(tensor.shape)}, expected {site.original_num_heads} in the "
            f"last dimension, one per original head: (heads,), (batch, heads) or (batch, positions, heads)."
        )
    if not bool(tensor.detach().isfinite().all()):
        raise MaskError(f"{site.id}: found weights that are NaN or infinite; expected finite numbers.")
    return tensor


def _current_heads(site: Site, tensor: Tensor) -> Tensor:
    if site.num_heads == site.original_num_heads:
        return tensor
    return tensor[..., list(site.kept)]
