"""`plan`: what a pruning would remove and what it would save, without doing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from headprune.cost.macs import Count, count_macs, count_parameters
from headprune.heads import HeadMap, HeadMask
from headprune.heads.show import Picture, frame, head_cells, neuron_sites
from headprune.masking import EmptySite
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import unwrapped
from headprune.surgery.edits import Gqa
from headprune.surgery.prune import temporarily_pruned
from headprune.types import Batch


@dataclass(frozen=True)
class Plan:
    """A pruning before it is done. `str` is a table for people, `to_dict` is for programs."""

    before: HeadMap
    after: HeadMap
    parameters_before: Count
    parameters_after: Count
    macs_before: Count
    macs_after: Count

    @property
    def removed(self) -> HeadMask:
        return HeadMask.full(self.before) - HeadMask.full(self.after)

    def to_dict(self) -> dict[str, Any]:
        before, after = self.before.attention, self.after.attention
        neurons = [len(self.before.neurons), len(self.after.neurons)] if self.before.neurons else None
        return {
            "removed": {site: heads for site, heads in self.removed.to_dict().items() if heads},
            "kept": {site.id: list(site.kept) for site in self.after},
            "original": self.before.original_counts(),
            "heads": [len(before), len(after)],
            "kv_heads": [sum(s.num_kv_heads for s in before), sum(s.num_kv_heads for s in after)],
            **({"neurons": neurons} if neurons else {}),
            "parameters": [self.parameters_before.total, self.parameters_after.total],
            "macs": [self.macs_before.total, self.macs_after.total],
        }

    def _repr_html_(self) -> str:
        return self.plot().svg

    def plot(self) -> Picture:
        """What stays and what would go. A notebook shows it; `.save(path)`."""
        rows = {site.id: [1.0] * site.original_num_heads for site in self.before}
        return head_cells(rows, self.after.kept(), title=f"would remove {self.summary()}", neurons=neuron_sites(rows))

    def to_frame(self) -> Any:
        """A frame of pandas: a row a site, before and after."""
        sites = zip(self.before, self.after, strict=True)
        return frame([{"site": old.id, "before": old.num_heads, "after": new.num_heads} for old, new in sites])

    def __str__(self) -> str:
        lines = []
        for old, new in zip(self.before, self.after, strict=True):
            kept = set(new.kept)
            gone = [head for head in old.kept if head not in kept]
            if gone:
                kv = f", {old.num_kv_heads} -> {new.num_kv_heads} KV heads" if old.num_kv_heads < old.num_heads else ""
                what = "neurons" if old.is_neurons else f"heads{kv}; goes: {gone}"
                lines.append(f"{old.id}: {old.num_heads} -> {new.num_heads} {what}")
        lines.append(self.summary())
        return "\n".join(lines)

    def summary(self) -> str:
        """The one line a person wants to know."""
        gone = len(self.before.attention) - len(self.after.attention)
        gone_neurons = len(self.before.neurons) - len(self.after.neurons)
        neurons = f" and {gone_neurons} of {len(self.before.neurons)} neurons" if self.before.neurons else ""
        parameters = self.parameters_before.total - self.parameters_after.total
        macs = 1 - self.macs_after.total / max(1, self.macs_before.total)
        total = len(self.before.attention)
        heads = f"all {total}" if gone == total and total else f"{gone} of {total}"
        return (
            f"{heads} heads{neurons} ({parameters / 1e6:.3g} M of "
            f"{self.parameters_before.total / 1e6:.3g} M parameters, {macs:.0%} fewer MACs)"
        )


def plan(
    model: nn.Module,
    mask: HeadMask,
    *,
    gqa: Gqa | None = None,
    empty_site: EmptySite = "bias",
    example: Batch | None = None,
) -> Plan:
    """What `prune_` with the same arguments would remove: heads, parameters, MACs (on `example`).

    The cut is made, counted and undone, so what is reported is what would be.

    Example:
        >>> mask = hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=0)
        >>> planned = hp.plan(model, mask)
        >>> planned.to_dict()["heads"]
        [8, 4]
    """
    model = unwrapped(model)
    inputs = example if example is not None else example_inputs(model)
    with temporarily_pruned(model, mask, gqa=gqa, empty_site=empty_site, example=example) as (before, after):
        parameters_after, macs_after = count_parameters(model, after), count_macs(model, after, inputs)
    return Plan(
        before=before,
        after=after,
        parameters_before=count_parameters(model, before),
        parameters_after=parameters_after,
        macs_before=count_macs(model, before, inputs),
        macs_after=macs_after,
    )
