"""How much fine-tuning moved each head's weights (Budhraja et al. 2020, Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headprune.errors import UnsupportedModelError
from headprune.structure import projections
from headprune.structure.find import ModelStructure, model_structure
from headprune.structure.run import unwrapped

ROLES = ("query", "key", "value")
Row = tuple[float | None, ...]
Reading = Literal["difference", "magnitude"]


@dataclass(frozen=True)
class WeightChanges:
    """Mean change of W_q, W_k, W_v per original head; None for heads that either model lacks."""

    reading: str
    by_role: Mapping[str, Mapping[str, Row]]  # role -> site -> heads

    @property
    def overall(self) -> dict[str, Row]:
        """The mean over the roles that a site has."""
        sites = dict.fromkeys(site for rows in self.by_role.values() for site in rows)
        return {site: _mean_rows([rows[site] for rows in self.by_role.values() if site in rows]) for site in sites}

    def site_means(self) -> dict[str, float]:
        """The mean over a site's heads."""
        means = {}
        for site, row in self.overall.items():
            present = [value for value in row if value is not None]
            if present:
                means[site] = sum(present) / len(present)
        return means

    def largest_gap(self) -> float:
        """The largest relative difference between two sites' means (the paper: below 10 %)."""
        means = self.site_means().values()
        return (max(means) - min(means)) / max(means) if means and max(means) > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        return {
            "reading": self.reading,
            "by_role": {role: {site: list(row) for site, row in rows.items()} for role, rows in self.by_role.items()},
            "overall": {site: list(row) for site, row in self.overall.items()},
            "site_means": self.site_means(),
            "largest_gap": self.largest_gap(),
        }


def weight_changes(before: nn.Module, after: nn.Module, *, reading: Reading = "difference") -> WeightChanges:
    """Compare two models head by head; one or both may be pruned, heads are matched by original index.

    `reading="difference"` is mean |W_after - W_before|; `"magnitude"` is mean ||W_after| - |W_before||. The paper's
    words allow both.
    """
    if reading not in ("difference", "magnitude"):
        raise UnsupportedModelError(f"reading is {reading!r}; expected 'difference' or 'magnitude'.")
    models = [unwrapped(before), unwrapped(after)]
    views = [model_structure(model) for model in models]
    if views[0].heads.original_counts() != views[1].heads.original_counts():
        raise UnsupportedModelError("The two models have different sites or head counts: compare a model with itself.")
    by_role: dict[str, dict[str, Row]] = {role: {} for role in ROLES}
    for site in views[0].heads:
        for role in ROLES:
            weights = [_head_weights(model, view, site.id, role) for model, view in zip(models, views, strict=True)]
            if weights[0] and weights[1]:
                by_role[role][site.id] = tuple(
                    _change(weights[0].get(head), weights[1].get(head), reading)
                    for head in range(site.original_num_heads)
                )
    return WeightChanges(reading, by_role)


def _head_weights(model: nn.Module, view: ModelStructure, site_id: str, role: str) -> dict[int, Tensor]:
    """Original head -> its rows of W_q, W_k or W_v; empty if the site keeps them in another form."""
    block = view.blocks.get(site_id)
    if block is None:
        return {}
    kept = view.heads[site_id].kept
    for path, roles in block.roles.items():
        if role in roles:
            weight = projections.matrix(model.get_submodule(path))
            return {head: weight[channels] for head, channels in zip(kept, roles[role], strict=True)}
    return {}


def _change(before: Tensor | None, after: Tensor | None, reading: str) -> float | None:
    if before is None or after is None:
        return None
    first, second = before.double(), after.double()
    if reading == "magnitude":
        first, second = first.abs(), second.abs()
    return float((second - first).abs().mean())


def _mean_rows(rows: list[Row]) -> Row:
    columns = zip(*rows, strict=True)
    return tuple(None if any(x is None for x in column) else torch.tensor(column).mean().item() for column in columns)
