"""What a change at one site cannot touch, kept from the whole model's answer: three ways, one shape.

`Replays` run forward passes from the changed site on. `KeptEncoder` is for answers that take many passes (beam search):
sites of the decoder and cross-attention get the encoder's output as it was. `NothingKept` runs everything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from headprune.heads import HeadMask, Site
from headprune.hooks import recorded, replayed
from headprune.masking import masked
from headprune.scoring.context import ScoringContext, model_inputs
from headprune.types import Batch, Outputs


class Reuse(Protocol):
    """One batch: the whole model's answer, then the answers with one change after another."""

    whole: Outputs

    def changed(self, site: Site, mask: HeadMask) -> Outputs:
        """The answer with only the heads of `mask`, which differs from the whole model at `site` alone."""

    def share(self) -> float:
        """The share of the work that was not done again, over all heads: in linear maps, or of encoder passes."""


class NothingKept:
    """Everything is computed for every change."""

    def __init__(self, job: ScoringContext, batch: Batch) -> None:
        self.job, self.batch, self.whole = job, batch, job.whole(batch)

    def changed(self, site: Site, mask: HeadMask) -> Outputs:
        with masked(self.job.model, mask, heads=self.job.heads):
            return self.job.whole(self.batch)

    def share(self) -> float:
        return 0.0


class Replays:
    """One recorded forward pass; a change runs from its site's output projection on."""

    def __init__(self, job: ScoringContext, batch: Batch, sites: Sequence[Site]) -> None:
        self.job, self.batch, self.sites = job, batch, sites
        with recorded(job.model) as self.recording:
            self.whole = job.whole(batch)
        self.recording.keep_only(self._projection(site) for site in sites if self._is_reached(site))

    def changed(self, site: Site, mask: HeadMask) -> Outputs:
        if not self._is_reached(site):
            return self.whole  # this batch does not see what changed
        model = self.job.model
        with masked(model, mask, heads=self.job.heads), replayed(model, self.recording, self._projection(site)):
            return self.job.whole(self.batch)

    def share(self) -> float:
        return _mean(
            [
                self.recording.reused(self.recording.cut_before(self._projection(site)))
                if self._is_reached(site)
                else 1.0
                for site in self.sites
                for _ in site.kept
            ]
        )

    def _is_reached(self, site: Site) -> bool:
        return self.recording.has_called(self._projection(site))

    def _projection(self, site: Site) -> nn.Module:
        return self.job.model.get_submodule(site.output)


class KeptEncoder:
    """The encoder's output, for changes after it. How much a search itself takes depends on what it finds, so the
    share counts only the encoder's passes that were saved."""

    def __init__(self, job: ScoringContext, batch: Batch, sites: Sequence[Site]) -> None:
        self.job, self.batch, self.sites = job, batch, sites
        model: Any = job.model
        inputs = model_inputs(batch)
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        self.encoded = model.get_encoder()(**asked, return_dict=True)
        self.whole = self._answer()

    def changed(self, site: Site, mask: HeadMask) -> Outputs:
        with masked(self.job.model, mask, heads=self.job.heads):
            return self.job.whole(self.batch) if site.component == "encoder" else self._answer()

    def share(self) -> float:
        return _mean([float(site.component != "encoder") for site in self.sites for _ in site.kept])

    def _answer(self) -> Outputs:
        # A copy each time: beam search widens what it is given in place.
        kept = type(self.encoded)(**self.encoded)
        return self.job.run(self.job.model, {**model_inputs(self.batch), "encoder_outputs": kept})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
