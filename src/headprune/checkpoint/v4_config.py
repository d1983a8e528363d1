"""Heads by layer number, as transformers v4 named them: `config.pruned_heads` is `{layer: [heads that are gone]}`."""

from __future__ import annotations

from headprune.errors import MaskError
from headprune.heads import HeadMap, Site
from headprune.types import Config

V4_ENTRY = "pruned_heads"


def has_plain_layers(heads: HeadMap) -> bool:
    """Whether a layer number alone says which site is meant."""
    layers = [layer for site in heads for layer in site.layers]
    return len(heads.components) == 1 and len({site.tower for site in heads}) == 1 and len(set(layers)) == len(layers)


def sites_by_layer(heads: HeadMap) -> dict[int, Site]:
    """The site that a bare layer number means; refused where it could mean several."""
    if not heads:
        why = f" ({heads.skipped[0].path}: {heads.skipped[0].reason})" if heads.skipped else ""
        raise MaskError(f"No heads were found in this model{why}.")
    if not has_plain_layers(heads):
        raise MaskError(
            f"This model has {', '.join(site.id for site in heads.sites[:6])} …: a layer number alone is ambiguous. "
            "Name sites instead: {'encoder.3': [0, 2]}."
        )
    return {layer: site for site in heads for layer in site.layers}


def note_pruned_heads(config: Config, heads: HeadMap) -> None:
    """Keep v4's entry of a config true, where there is one and it can be told."""
    if getattr(config, V4_ENTRY, None) is not None and has_plain_layers(heads):
        gone = {
            layer: [head for head in range(site.original_num_heads) if head not in site.kept]
            for layer, site in sites_by_layer(heads).items()
            if site.num_heads < site.original_num_heads
        }
        setattr(config, V4_ENTRY, gone)
