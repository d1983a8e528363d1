"""The residual stream at each site: what the whole model has there, and how far a damaged model has drifted from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headprune.heads import Site
from headprune.hooks import Call, captured_inputs, watched
from headprune.memory import memory_for_step
from headprune.scoring.context import ScoringContext, single_examples
from headprune.scoring.moments import real_rows
from headprune.structure import projections
from headprune.types import Batch


def residual_modules(context: ScoringContext, sites: Sequence[Site], batch: Batch) -> dict[str, str]:
    """For each site, a module whose first input is what the model adds to the site's output: site -> path.

    Found by looking: the sum s is the first later input of the projection's shape that is not the output y itself,
    and the module is the last one before the projection that was called with s - y. Where there is none (a factor
    between them, attention and neurons added in one step), the site has no entry.
    """
    with torch.no_grad(), watched(context.model) as watch:
        context.answer(next(single_examples(batch)))
    calls = sorted(watch.calls, key=lambda call: call.order)
    found = {}
    for site in sites:
        own = [place for place, call in enumerate(calls) if call.path == site.output]
        if len(own) == 1 and (path := _added_to(calls, own[0])) is not None:
            found[site.id] = path
    return found


def _added_to(calls: Sequence[Call], place: int) -> str | None:
    written = calls[place].output
    if not isinstance(written, Tensor):
        return None
    later = (_first_input(call) for call in calls[place + 1 :])
    alike = (inputs for inputs in later if inputs is not None and inputs.shape == written.shape)
    total = next((inputs for inputs in alike if not torch.equal(inputs, written)), None)
    if total is None:
        return None
    for call in reversed(calls[:place]):
        inputs = _first_input(call)
        if inputs is not None and inputs.shape == written.shape and torch.allclose(inputs + written, total):
            return call.path
    return None


def _first_input(call: Call) -> Tensor | None:
    return call.args[0] if call.args and isinstance(call.args[0], Tensor) else None


@dataclass
class Streams:
    """The whole model's stream behind each site, for the rows of each batch that its projection is fitted on."""

    modules: Mapping[str, str]  # site -> whose input is added to its output
    rows: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (batch, site) -> (rows, outputs)

    @classmethod
    def of(cls, context: ScoringContext, sites: Sequence[Site], batches: Sequence[Batch]) -> Streams:
        """One forward pass over the data, before anything is done to the model."""
        found = cls(residual_modules(context, sites, batches[0]))
        sites = [site for site in sites if site.id in found.modules]
        room = memory_for_step()  # batches beyond it do without
        for number, batch in enumerate(batches):
            with torch.no_grad(), captured_inputs(context.model, found._heard(context.model, sites)) as heard:
                context.answer(batch)
            for site in sites:
                if len(heard[site.id]) != 1:
                    continue
                inputs, added = heard[site.id][0], heard[f"+{site.id}"][-1]
                stream = added + written(context.model, site, inputs)
                rows = real_rows(batch, site, stream, has_encoder=context.has_encoder).clone()
                room -= rows.numel() * rows.element_size()
                if room < 0:
                    return found
                found.rows[number, site.id] = rows
        return found

    def _heard(self, model: nn.Module, sites: Sequence[Site]) -> dict[str, nn.Module]:
        names = {site.id: site.output for site in sites} | {f"+{site.id}": self.modules[site.id] for site in sites}
        return {name: model.get_submodule(path) for name, path in names.items()}

    def drift(self, number: int, site: Site, inputs: Tensor, added: Tensor) -> Tensor | None:
        """What the whole model's stream has that the model at hand, with all heads of this site, would not."""
        whole = self.rows.get((number, site.id))
        return None if whole is None else whole - inputs - added


def written(model: nn.Module, site: Site, inputs: Tensor) -> Tensor:
    """What a site's projection makes of its inputs, masks and hooks apart."""
    module = model.get_submodule(site.output)
    bias = getattr(module, "bias", None)
    return torch.nn.functional.linear(inputs, projections.matrix(module), bias)
