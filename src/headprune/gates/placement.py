"""Taking gates off a model: the hooks, the submodule, the entry in the config; their values go into the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import GATES_ENTRY
from headprune.hooks import ungate_projections_
from headprune.structure.projections import matrix


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
    weight = matrix(output)  # (outputs, heads * width)
    wide = value.detach().to(weight.device, torch.float32).repeat_interleave(weight.shape[1] // len(value))
    weight.copy_((weight.float() * wide).to(weight.dtype))
