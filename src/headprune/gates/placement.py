"""Putting gates on a model and taking them off: the submodule, the hooks, the entry in the config, the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.heads import HeadMap, Site
from headprune.hooks import gate_projections_, ungate_projections_
from headprune.structure.projections import layout

GATES_ENTRY = "headprune_gates"  # in the config, and the name of the submodule
VERSION = 1


def put_on(model: nn.Module, attached: Any, outputs: Mapping[str, str]) -> None:
    """Make the gates a submodule of the base model, where every class of the model finds them, and hook them in."""
    prefix = config_entry.base_prefix(model)
    base = model.get_submodule(prefix[:-1])
    base.add_module(GATES_ENTRY, attached)
    attached._owner = (model,)
    attached.train(model.training)
    gate_projections_(base, attached, {site: path.removeprefix(prefix) for site, path in outputs.items()})


def site_entry(model: nn.Module, site: Site) -> dict[str, Any]:
    """A site for the config, with paths as the base model sees them."""
    entry = HeadMap((site,)).to_dict()["sites"][0]
    paths = {name: config_entry.stored_path(model, getattr(site, name)) for name in ("path", "output")}
    return {**entry, **paths}


def unhook(model: nn.Module) -> None:
    """The model without its gates; its config may still tell of them."""
    ungate_projections_(model)
    base = model.get_submodule(config_entry.base_prefix(model)[:-1])
    delattr(base, GATES_ENTRY)


def take_off(model: nn.Module) -> None:
    """The model without its gates, whatever they said."""
    unhook(model)
    if getattr(getattr(model, "config", None), GATES_ENTRY, None) is not None:
        delattr(model.config, GATES_ENTRY)


def fold(output: nn.Module, value: Tensor) -> None:
    """Multiply each head's columns of an output projection; its bias stays."""
    shape = layout(output)
    assert shape is not None, "it was checked before the gates were taken off"
    weight: Tensor = output.weight  # type: ignore[assignment]
    wide = value.detach().to(weight.device, torch.float32).repeat_interleave(weight.shape[shape.in_dim] // len(value))
    with torch.no_grad():
        scale = wide if shape.in_dim == 1 else wide[:, None]
        weight.copy_((weight.float() * scale).to(weight.dtype))
