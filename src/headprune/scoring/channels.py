"""What each channel of an output projection receives on data: mean and variance, without what they do together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headprune.hooks import captured_inputs
from headprune.scoring.context import ScoringContext
from headprune.scoring.moments import real_rows


@dataclass
class Channels:
    """Sums over real positions: their number, the channels, their squares."""

    count: float
    total: Tensor  # (width,)
    square: Tensor  # (width,)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        return (self.square / self.count - self.mean.square()).clamp_min(0.0)

    @property
    def norm(self) -> Tensor:
        """The root of the mean square."""
        return (self.square / self.count).sqrt()


def channels_of(job: ScoringContext) -> dict[str, Channels]:
    """One forward pass over the data; memory for a few numbers a channel."""
    sites = [site for site in job.heads if site.num_heads]
    modules = {site.id: job.model.get_submodule(site.output) for site in sites}
    found: dict[str, Channels] = {}
    for batch in job.batches:
        with torch.no_grad(), captured_inputs(job.model, modules) as heard:
            job.answer(batch)
        for site in sites:
            for inputs in heard[site.id]:
                rows = real_rows(batch, site, inputs, has_encoder=job.has_encoder).detach().cpu().double()
                if site.id not in found:
                    none = torch.zeros(rows.shape[1], dtype=torch.float64)
                    found[site.id] = Channels(0.0, none, none.clone())
                so_far = found[site.id]
                so_far.count += len(rows)
                so_far.total += rows.sum(0)
                so_far.square += rows.square().sum(0)
    return found
