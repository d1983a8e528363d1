"""Gated models through the ordinary `save_pretrained` and `from_pretrained`.

The config's entry `headprune_gates` says which gates sit where; a model's constructor puts them on the empty skeleton,
and their weights load like any others.
"""

from __future__ import annotations

import dataclasses
from typing import get_args

from torch import nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import GATES_ENTRY, GATES_VERSION, Entry
from headprune.errors import CheckpointError, HeadpruneError
from headprune.gates.distributions import Rule, make_gate
from headprune.gates.model_gates import GatedSite, Gates
from headprune.gates.placement import unhook
from headprune.heads import HeadMap
from headprune.hooks import called_projections


def restore_(model: nn.Module) -> None:
    """At the end of a model's constructor: the gates that its config tells of."""
    entry = getattr(getattr(model, "config", None), GATES_ENTRY, None)
    if entry is not None:
        _attach_from(model, entry)


def note_gates(model: nn.Module) -> None:
    """The config that is about to be saved tells of the gates that there are, also if they were put on the base model
    alone, or taken off it."""
    gated = {path.rpartition(".")[0]: part for path, part in model.named_modules() if isinstance(part, Gates)}
    if not gated:
        if getattr(model.config, GATES_ENTRY, None) is not None:
            delattr(model.config, GATES_ENTRY)
        return
    base = config_entry.base_prefix(model).removesuffix(".")
    saved = [id(config) for config in config_entry.configs(model.config)]
    for path, gates in gated.items():
        config = getattr(gates.model, "config", None)
        entry = getattr(config, GATES_ENTRY, None)
        if entry is not None and id(config) in saved:
            continue  # it tells by itself, as the encoder of an encoder-decoder made of two models
        if entry is None or path != base or not base:
            raise CheckpointError(
                f"{path} has gates of its own, which the config of {type(model).__name__} does not tell of: they would "
                "be lost. Attach gates to the model that you save, or take them off (gates.remove_())."
            )
        config_entry.write(model, entry, GATES_ENTRY)


def _attach_from(model: nn.Module, entry: Entry) -> None:
    """Parts of a model are built before the whole, with the same config: a part takes the gates of the blocks that it
    has, and each larger class that is built around it adopts them, or takes its own if it has more."""
    every = _places(entry)
    with called_projections(model):
        found = {place.site.id: config_entry.find_module(model, place.site.output) for place in every}
    outputs = {site: output[0] for site, output in found.items() if output is not None}
    if len(outputs) < len(every) and type(model).__name__ in (getattr(model.config, "architectures", None) or ()):
        raise CheckpointError(
            f"The checkpoint has gates on blocks that {type(model).__name__} does not have: its config was edited."
        )
    if not outputs:
        return
    places = [place for place in every if place.site.id in outputs]  # fewer in a part, such as the encoder alone
    gates = next((part for part in model.modules() if isinstance(part, Gates)), None)
    if gates is not None and len(gates.places) < len(places):
        unhook(gates.model)
        gates = None
    if gates is None:
        gates = _made(places, entry)
        gates.put_on(model, outputs)
    gates._owner = (model,)
    # A model that is loaded in half precision keeps its gates in full: see Gates._apply.
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or set()
    vars(model)["_keep_in_fp32_modules_strict"] = {*strict, GATES_ENTRY}
    gates.places = {place.site.id: _moved(place, model, outputs[place.site.id]) for place in places}


def _places(entry: Entry) -> list[GatedSite]:
    try:
        if entry["version"] != GATES_VERSION:
            raise CheckpointError(
                f"The config's '{GATES_ENTRY}' entry has version {entry['version']!r}; this headprune reads version "
                f"{GATES_VERSION}."
            )
        sites = HeadMap.from_dict({"sites": [_site(item) for item in entry["sites"]]}).sites
        if not sites:
            raise ValueError("it names no site")
        rows = [tuple(item["gate_of_head"]) for item in entry["sites"]]
        for row, site in zip(rows, sites, strict=True):
            if len(row) != site.num_heads or not all(type(gate) is int and 0 <= gate < len(row) for gate in row):
                raise ValueError("a site has another number of heads than of gates")
        return [GatedSite(site, row) for site, row in zip(sites, rows, strict=True)]
    except CheckpointError:
        raise
    except (HeadpruneError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"The config's '{GATES_ENTRY}' entry does not describe gates: {error}") from error


def _made(places: list[GatedSite], entry: Entry) -> Gates:
    try:
        if entry["rule"] not in get_args(Rule):
            raise ValueError(f"rule is {entry['rule']!r}; expected {' or '.join(get_args(Rule))}")
        made = [make_gate(str(entry["kind"]), place.num_gates, entry["options"]) for place in places]
        gates = Gates(places, made, rule=entry["rule"], seed=int(entry["seed"]), sync_noise=bool(entry["sync_noise"]))
    except (HeadpruneError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"The config's '{GATES_ENTRY}' entry does not describe gates: {error}") from error
    gates.frozen = bool(entry.get("frozen"))
    for parameter in gates.parameters():
        parameter.requires_grad_(not gates.frozen)
    return gates


def _site(item: Entry) -> Entry:
    return {name: value for name, value in item.items() if name != "gate_of_head"}


def _moved(place: GatedSite, model: nn.Module, output: str) -> GatedSite:
    """The same under this model's paths."""
    found = config_entry.find_module(model, place.site.path)
    site = dataclasses.replace(place.site, path=found[0] if found else place.site.path, output=output)
    return GatedSite(site, place.gate_of_head)
