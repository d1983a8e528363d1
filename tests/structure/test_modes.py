"""Looking at a model leaves it as it was."""

from __future__ import annotations

import torch

import headprune as hp
from tests.families.tiny import full_mask, tiny_model


def test_frozen_weights_do_not_hide_heads():
    """And stay frozen, as training mode stays training mode and random numbers are not consumed."""
    model = tiny_model("bert").train().requires_grad_(False)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert len(hp.find_heads(model)) == 8
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_looking_at_a_model_leaves_its_modes_and_its_draws_alone():
    """No module is switched to training on the way, and the caller's random numbers go on as they would have."""
    model = tiny_model("bert")
    seen = []
    model.bert.encoder.layer[0].attention.train = lambda mode=True: seen.append(mode)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    hp.find_heads(model)
    assert torch.rand(3).equal(expected)
    assert True not in seen


def test_inference_mode_hides_nothing():
    """Neither finding nor pruning depends on the caller's gradient mode."""
    model = tiny_model("bert")
    with torch.inference_mode():
        batch = {"input_ids": torch.tensor([[3, 4, 5]])}
        assert len(hp.find_heads(model)) == len(hp.find_heads(model, example=batch)) == 8
        hp.prune_(model, full_mask(model).without("encoder.0:1"))
    model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert len(hp.find_heads(model)) == 7
