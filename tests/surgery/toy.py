"""Masks by name, and what pruning must not touch."""

from __future__ import annotations

import copy

import headprune as hp
from headprune.structure.run import difference
from tests.families.tiny import answer_of


def kept(model, **sites):
    return hp.HeadMask.from_dict(hp.find_heads(model), {name.replace("_", "."): heads for name, heads in sites.items()})


def state(model):
    """Everything that a failed pruning must not touch."""
    weights = {name: (tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in model.state_dict().items()}
    counts = {
        (name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if type(value) is int
    }
    kinds = {name: type(module) for name, module in model.named_modules()}
    configs = {name: id(vars(module).get("config")) for name, module in model.named_modules()}
    hooks = {name: list(module._forward_pre_hooks) for name, module in model.named_modules()}
    return weights, counts, kinds, configs, hooks, getattr(model.config, "headprune", None)


def check_equal(model, mask, **how):
    """Prune a copy; it must answer as the masked model. Returns the copy."""
    with hp.masked(model, mask):
        expected = answer_of(model)
    pruned = hp.prune_(copy.deepcopy(model), mask, **how)
    assert difference(answer_of(pruned), expected).is_small
    return pruned
