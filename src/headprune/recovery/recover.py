"""`recover_`: repair a model for the heads that are about to go, site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headprune.checkpoint import config_entry
from headprune.errors import DataError, MaskError, UnsupportedModelError
from headprune.heads import HeadMap, HeadMask, Site
from headprune.recovery.sequential import Fit, SequentialMoments, columns_of, fitted, recoveries
from headprune.recovery.walks import walks
from headprune.registry import check_options
from headprune.scoring.context import ExampleLoss, ScoringContext, batches_of, evaluation
from headprune.structure import projections
from headprune.structure.find import find_heads
from headprune.structure.projections import projection_at
from headprune.structure.run import unwrapped
from headprune.surgery.prune import refuse_unfit_models


@dataclass(frozen=True)
class Repair:
    """What was done: for each repaired site, its output's mean squared error without and with the repair, and the mean
    square of what it wrote with all heads."""

    method: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    size: Mapping[str, float]

    @property
    def share(self) -> float:
        """The part of the error that is left, over all sites, each measured by what it wrote."""
        before = sum(self.before[site] / self.size[site] for site in self.before if self.size[site])
        after = sum(self.after[site] / self.size[site] for site in self.after if self.size[site])
        return after / before if before else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "sites": {
                site: {"before": self.before[site], "after": self.after[site], "size": self.size[site]}
                for site in self.before
            },
            "error_left": self.share,
        }


def recover_(
    model: nn.Module,
    mask: HeadMask,
    data: Any,
    *,
    method: str = "least-squares",
    heads: HeadMap | None = None,
    collator: Any = None,
    batch_size: int = 16,
    **options: Any,
) -> nn.Module:
    """Repair a model for the heads that `mask` does not keep, without training; then `prune_` it with the same mask.

    `method` is "least-squares" (the output projections are fitted to the kept heads), "bias" (what the removed heads
    write on average goes into the output bias) or "rescale" (a factor for each kept head). `data` is a few hundred
    examples of what the model will see: a DataLoader, a list of batches, or a dataset with a `collator`; labels are
    not used (but make the decoder inputs of an encoder-decoder). Sites are repaired in the order in which the model
    runs them, each on what the repaired ones before it give.

    The result is in the weights: under the mask the model is near the original again, and so is the pruned model.
    Without the mask it is not the original any more, so a second repair is refused.

    Cost: one to two forward passes over the data, layer by layer where the model is a stack of layers (`walks`).
    Memory: the data and its states, passes that wait at the site at hand (within `memory_limit`), a copy of the output
    projections until it is done, a matrix of (heads * width)² numbers.

    Example:
        >>> mask = hp.select(hp.score(model, batches), prune=0.5)
        >>> small = hp.prune_(hp.recover_(model, mask, batches), mask)
        >>> len(hp.find_heads(small))
        4
    """
    model = unwrapped(model)
    neurons = isinstance(mask, HeadMask) and mask.has_neurons
    found = heads if heads is not None else find_heads(model, neurons=neurons)
    device = next(model.parameters()).device
    batches = list(batches_of(data, device, collator=collator, batch_size=batch_size))
    repair(ScoringContext(model=model, heads=found, batches=batches, loss=ExampleLoss("mean")), mask, method, **options)
    return model


def repair(
    context: ScoringContext,
    mask: HeadMask,
    method: str,
    *,
    tell: Callable[[str], None] = lambda site: None,
    **options: object,
) -> Repair:
    """`recover_` for callers who want to tell what happened. `context.batches` are run several times."""
    _refuse_a_second(context.model)
    mask = mask.filled(context.heads) if isinstance(mask, HeadMask) else mask
    report, added, _ = _fitted_in_place(context, mask, method, tell, options)
    if report.before:
        kept = config_entry.kept_where_heads_go(mask, context.heads)
        config_entry.note_repair(context.model, {"method": method, "kept": kept, "biases": added})
    return report


@contextmanager
def repaired(context: ScoringContext, mask: HeadMask, method: str, **options: object) -> Iterator[Repair]:
    """The model with its projections fitted to a mask until the block ends."""
    report, _, undo = _fitted_in_place(context, mask, method, lambda site: None, options)
    try:
        yield report
    finally:
        undo()


def _fitted_in_place(
    context: ScoringContext, mask: HeadMask, method: str, tell: Callable[[str], None], options: Mapping[str, object]
) -> tuple[Repair, list[str], Callable[[], None]]:
    """All sites that lose heads, fitted one after another; the sites that got a bias, and how to undo it."""
    check_options(f"The repair '{method}'", recoveries[method], options)
    if not isinstance(mask, HeadMask):
        raise MaskError(f"Found {type(mask).__name__}; recover_ takes a HeadMask.")
    mask = mask.filled(context.heads).checked_for(context.heads)
    refuse_unfit_models(context.model)
    batches = list(context.batches)
    if not batches:
        raise DataError("The calibration data has no batch: there is nothing to repair with.")
    losing = [site for site in context.heads if mask.kept(site.id) != site.kept]
    _refuse_shared_weights(context, losing)
    fits = SiteFits(mask, method, options)
    originals = [(parameter, parameter.detach().clone()) for parameter in _parameters(context, losing)]

    def undo() -> None:
        for parameter, value in originals:
            parameter.data.copy_(value)
        for name in fits.added:
            context.model.get_submodule(context.heads[name].output).register_parameter("bias", None)

    try:
        with torch.inference_mode(False), evaluation(context.model):
            for sequence in walks(
                context, losing, batches, mask, looks_at_stream=fits.looks_at_stream, holds_out=fits.holds_out
            ):
                for site in sequence.sites:
                    tell(site.id)
                    fits.fit_(sequence, site)
    except BaseException:
        undo()
        raise
    for name in fits.added:  # a frozen model stays frozen; while it was being repaired, all of it was
        module = context.model.get_submodule(context.heads[name].output)
        module.get_parameter("bias").requires_grad_(projections.parameter(module).requires_grad)
    return fits.report(), fits.added, undo


@dataclass
class SiteFits:
    """Projections fitted to a mask, and what that was good for."""

    mask: HeadMask
    method: str
    options: Mapping[str, object]
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    size: dict[str, float] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)  # sites that got a bias

    @property
    def looks_at_stream(self) -> bool:
        return bool(getattr(recoveries[self.method], "looks_at_stream", False))

    @property
    def holds_out(self) -> bool:
        return bool(getattr(recoveries[self.method], "judged_on_held_rows", False)) and "ridge" not in self.options

    def fit_(self, sequence: SequentialMoments, site: Site) -> None:
        """One site, on what the model gives with everything that was done to earlier ones."""
        moments = sequence.moments(site).checked(site)
        full = projection_of(sequence.context.model, site)
        places = {head: place for place, head in enumerate(site.kept)}
        kept = [places[head] for head in self.mask.kept(site.id)]
        fit = fitted(self.method, full, moments, kept, site.head_dim, **self.options)
        columns = columns_of(kept, site.head_dim)
        self.before[site.id] = full.error(full, moments, columns)
        self.after[site.id] = full.error(fit, moments, columns)
        self.size[site.id] = full.error(Fit(full.weight * 0, None), moments, columns)
        if write_projection_(sequence.context.model, site, fit):
            self.added.append(site.id)

    def report(self) -> Repair:
        return Repair(self.method, self.before, self.after, self.size)


def projection_of(model: nn.Module, site: Site) -> Fit:
    """The output projection of a site, in float64."""
    module = model.get_submodule(site.output)
    reason = projections.why_not_sliceable(module)
    if reason:
        raise UnsupportedModelError(f"{site.id} cannot be repaired: {site.output}: {reason}")
    bias = getattr(module, "bias", None)
    return Fit(projections.matrix(module).cpu().double(), None if bias is None else bias.detach().cpu().double())


def write_projection_(model: nn.Module, site: Site, fit: Fit) -> bool:
    """Put a fit into the model; whether the projection got a bias that it did not have."""
    module = model.get_submodule(site.output)
    weight, bias = projections.matrix(module), getattr(module, "bias", None)
    weight.copy_(fit.weight.to(weight.dtype))
    if fit.bias is None:
        return False
    if bias is not None:
        bias.data.copy_(fit.bias.to(bias.dtype))
        return False
    if not isinstance(module, nn.Linear):
        raise UnsupportedModelError(
            f"{site.id} has an output projection without a bias that cannot be given one ({type(module).__name__}). "
            "Use method='least-squares'."
        )
    module.bias = nn.Parameter(fit.bias.to(device=weight.device, dtype=weight.dtype))
    return True


def _parameters(context: ScoringContext, sites: list[Site]) -> list[nn.Parameter]:
    found: list[nn.Parameter] = []
    for site in sites:
        module = projection_at(context.model, site.output)
        bias = getattr(module, "bias", None)
        found += [projections.parameter(module)] + ([bias] if bias is not None else [])
    return found


def _refuse_a_second(model: nn.Module) -> None:
    for done in filter(None, map(config_entry.noted_repair, model.modules())):
        raise MaskError(
            f"The model was repaired before ({done['method']}) and not pruned since: it is not the original any more. "
            "Prune it with the mask it was repaired for, or start from the original."
        )


def _refuse_shared_weights(context: ScoringContext, sites: list[Site]) -> None:
    owners: dict[int, list[str]] = {}
    for site in context.heads:
        if site.num_heads:
            key = id(projections.parameter(projection_at(context.model, site.output)))
            owners.setdefault(key, []).append(site.id)
    losing = {site.id for site in sites}
    for shared in owners.values():
        if len(shared) > 1 and losing & set(shared):
            raise UnsupportedModelError(
                f"{' and '.join(shared)} share one output projection: it cannot be fitted to one of them, nor to both."
            )
