"""The note in a model's config of which heads are left and how, so that its checkpoint can be loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.v4_config import note_pruned_heads
from headprune.heads import HeadMap, HeadMask
from headprune.surgery.edits import Edits


def added_biases(model: nn.Module, heads: HeadMap, repair: dict[str, Any]) -> dict[str, int]:
    """Biases that projections did not have before, and how long they are; those of silenced sites are gone again."""
    paths = [heads[site].output for site in repair["biases"]]
    biases = {path: getattr(model.get_submodule(path), "bias", None) for path in paths}
    return {path: len(bias) for path, bias in biases.items() if bias is not None}


def write_record(
    model: nn.Module, before: HeadMap, after: HeadMap, edits: Edits, about: Mapping[str, str] | None
) -> None:
    """Add a pruning to what the config says of earlier ones."""
    old = config_entry.read(model)
    done = edits.renamed(lambda path: config_entry.stored_path(model, path))
    if old is not None:
        done = Edits.from_dict(old["edits"]).then(done)
    sites = tuple(
        dataclasses.replace(
            site, path=config_entry.stored_path(model, site.path), output=config_entry.stored_path(model, site.output)
        )
        for site in after
    )
    if old is not None:  # neurons that went before, where this pruning was of heads alone
        here = {site.id for site in sites}
        sites += tuple(site for site in config_entry.recorded_heads(old) if site.is_neurons and site.id not in here)
    gone = HeadMask.full(before) - HeadMask.full(after)
    step: dict[str, Any] = {"removed": {site: heads for site, heads in gone.to_dict().items() if heads}}
    step |= {key: str(value) for key, value in (about or {}).items()}
    entry = {
        "version": config_entry.VERSION,
        "heads": HeadMap(sites, skipped=after.skipped, model_type=after.model_type).to_dict(),
        "edits": done.to_dict(),
        "history": [*(old or {}).get("history", []), step],
    }
    config_entry.write(model, entry)
    note_pruned_heads(getattr(model, "config", None), after.attention)
