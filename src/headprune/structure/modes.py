"""How a model is run to be looked at: in evaluation mode, with gradients, with fixed draws; afterwards as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def same_draws(model: nn.Module) -> Iterator[None]:
    """A model that draws at random (masked patches, sampled keys) draws the same each time; other draws go on."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        if devices:
            torch.manual_seed(0)
        else:  # `manual_seed` would note for CUDA, which is not there, where it was called from
            torch.default_generator.manual_seed(0)
        yield


@contextmanager
def free_gradients(model: nn.Module) -> Iterator[None]:
    """Gradients on for all weights, frozen ones too; afterwards as before."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def same_attributes(model: nn.Module) -> Iterator[None]:
    """What modules keep from the run (recurrent states, LeViT's biases) goes: it would hold on to the whole graph."""
    tables = [table for module in model.modules() for table in (vars(module), module._buffers)]
    kept = [(table, {name: _copied(value) for name, value in table.items()}) for table in tables]
    try:
        yield
    finally:
        for table, before in kept:
            for name in [name for name, value in table.items() if _holds_graph(value)]:
                if name in before:
                    table[name] = before[name]
                else:
                    del table[name]


def _copied(value: Any) -> Any:
    return dict(value) if type(value) is dict else value


def _holds_graph(value: Any) -> bool:
    if type(value) is dict:
        return any(isinstance(item, Tensor) and item.grad_fn is not None for item in value.values())
    return isinstance(value, Tensor) and value.grad_fn is not None
