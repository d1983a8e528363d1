"""The ablation engine: the model with one change after another, without recomputing what the change cannot touch.

For each batch the model is run once and recorded. A change at a site then runs from the site's output projection on:
earlier layers, the whole encoder for a decoder site, and the attention of the site itself answer from the record.
Where an answer takes many forward passes (beam search), the encoder's output is kept for decoder and cross sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headprune.files import WorkParts
from headprune.heads import HeadId, HeadMask, Site
from headprune.masking import masked
from headprune.scoring.context import ScoringContext
from headprune.scoring.forward_cache import KeptEncoder, NothingKept, Replays, Reuse
from headprune.structure.run import difference
from headprune.types import Batch

Outcome = Callable[[Any, Batch], Tensor]  # model output and batch -> one row per example


@dataclass
class Ablations:
    """What every example had, with the model whole and with each change."""

    base: list[Tensor] = field(default_factory=list)
    changed: dict[HeadId, list[Tensor]] = field(default_factory=dict)
    reused: list[float] = field(default_factory=list)

    def add(self, base: Tensor, changed: Mapping[HeadId, Tensor], share: float) -> None:
        """One more batch."""
        self.base.append(base)
        self.reused.append(share)
        for head, rows in changed.items():
            self.changed.setdefault(head, []).append(rows)

    def base_outcomes(self) -> Tensor:
        return torch.cat(self.base)

    def outcomes(self, head: HeadId) -> Tensor:
        return torch.cat(self.changed[head])

    @property
    def share_reused(self) -> float:
        """The share of the work in linear maps that was not done again."""
        return sum(self.reused) / len(self.reused) if self.reused else 0.0


def ablate(
    job: ScoringContext,
    changes: Callable[[Site, int], HeadMask],
    outcome: Outcome,
    *,
    reuse: bool = True,
    parts: WorkParts | None = None,
    only: Collection[HeadId] | None = None,
) -> Ablations:
    """Outcomes of every example under `changes(site, head)`, for every head or `only` some.

    A change may touch only its own site. With `reuse`, the first batch checks on the first and the last site that
    starting from the middle gives what a whole pass gives; if not, whole passes are run throughout. With `parts`,
    batches that were finished before an interruption are not done again.
    """
    found = Ablations()
    wanted = {site: [head for head in site.kept if only is None or HeadId(site.id, head) in only] for site in job.heads}
    sites = [site for site, some in wanted.items() if some]
    checked = not sites
    for number, batch in enumerate(job.batches):
        kept = parts.get(f"batch {number}") if parts is not None else None
        if kept is not None:
            found.add(*_unpacked(kept))
            continue
        with torch.no_grad():
            run = _begin(job, batch, sites, reuse)
            if reuse and not checked:
                checked = True
                if not all(_is_valid(job, batch, run, outcome, changes, site) for site in (sites[0], sites[-1])):
                    reuse, run = False, NothingKept(job, batch)
            base = outcome(run.whole, batch).detach().cpu()
            changed = {}
            for site in sites:
                known: dict[HeadMask, Tensor] = {}  # heads that go together have one change
                for head in wanted[site]:
                    mask = changes(site, head)
                    if mask not in known:
                        known[mask] = outcome(run.changed(site, mask), batch).detach().cpu()
                    changed[HeadId(site.id, head)] = known[mask]
        found.add(base, changed, run.share())
        if parts is not None:
            parts.put(f"batch {number}", _packed(base, changed, run.share()))
    return found


def _begin(job: ScoringContext, batch: Batch, sites: list[Site], reuse: bool) -> Reuse:
    if not reuse:
        return NothingKept(job, batch)
    return KeptEncoder(job, batch, sites) if job.searches else Replays(job, batch, sites)


def _packed(base: Tensor, changed: Mapping[HeadId, Tensor], share: float) -> dict[str, Any]:
    return {
        "base": base.tolist(),
        "changed": {str(head): rows.tolist() for head, rows in changed.items()},
        "share": share,
    }


def _unpacked(kept: Mapping[str, Any]) -> tuple[Tensor, dict[HeadId, Tensor], float]:
    changed = {HeadId.parse(name): torch.tensor(rows) for name, rows in kept["changed"].items()}
    return torch.tensor(kept["base"]), changed, float(kept["share"])


def _is_valid(
    job: ScoringContext,
    batch: Batch,
    run: Reuse,
    outcome: Outcome,
    changes: Callable[[Site, int], HeadMask],
    site: Site,
) -> bool:
    mask = changes(site, site.kept[0])
    with masked(job.model, mask, heads=job.heads):
        whole = job.whole(batch)
    quick = run.changed(site, mask)
    if job.searches:
        return torch.equal(outcome(quick, batch), outcome(whole, batch))
    return difference(quick, whole).largest <= 1e-6


def losses(job: ScoringContext) -> Outcome:
    """The outcome that scorers use: the loss of each example."""
    return lambda outputs, batch: job.loss(outputs, batch)
