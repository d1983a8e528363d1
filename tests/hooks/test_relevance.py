"""Layer-wise relevance propagation: rules by hand, conservation on real architectures."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headprune as hp
from headprune.errors import DataError, UnsupportedModelError
from headprune.hooks import relevance_rules
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import FAMILIES, tiny_model

# Mixtures of experts scatter tokens, wav2vec2 hears raw sound, CLIP and SigLIP have no class to start from.
# The tiny Transformer-XL has an adaptive softmax, whose log-probabilities the rules do not cover.
REFUSED = {"mixtral", "gpt_oss", "deepseek_v3", "wav2vec2", "clip", "siglip", "transformer_xl"}


def propagated(function, *leaves, start=None, alpha=0.5):
    inputs = [leaf.clone().requires_grad_() for leaf in leaves]
    with relevance_rules(nn.Identity(), alpha=alpha):
        out = function(*inputs)
    return torch.autograd.grad(out, inputs, torch.ones_like(out) if start is None else start)


def test_the_rule_of_a_linear_map_by_hand():
    """x = (1, -2), W = ((3, 1), (-1, 4)): contributions 3, -2 and -1, -8; alpha of each output to its positive ones."""
    x, weight = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0], [-1.0, 4.0]])
    (found,) = propagated(lambda x: F.linear(x, weight), x, start=torch.tensor([[1.0, 2.0]]))
    # Output 0: half follows 3 (input 0), half follows -2 (input 1). Output 1 has negative ones only: 1/9 and 8/9.
    assert found.tolist() == [[pytest.approx(0.5 + 2 / 9), pytest.approx(0.5 + 16 / 9)]]
    (found,) = propagated(lambda x: F.linear(x, weight), x, start=torch.tensor([[1.0, 0.0]]), alpha=0.8)
    assert found.tolist() == [[pytest.approx(0.8), pytest.approx(0.2)]]


def test_the_share_of_a_bias_is_spread_over_the_inputs():
    """Contribution 3 and bias 1: a quarter of the relevance has no input, and goes to both alike."""
    weight, bias = torch.tensor([[3.0, 0.0]]), torch.tensor([1.0])
    (found,) = propagated(lambda x: F.linear(x, weight, bias), torch.tensor([[1.0, 5.0]]))
    assert found.tolist() == [[pytest.approx(0.75 + 0.125), pytest.approx(0.125)]]


def test_two_branches_share_by_what_they_bring():
    """3 + 1, and 3 - 1."""
    a, b = propagated(lambda a, b: a + b, torch.tensor([3.0, 3.0]), torch.tensor([1.0, -1.0]))
    assert a.tolist() == pytest.approx([0.75, 0.5])
    assert b.tolist() == pytest.approx([0.25, 0.5])


def test_values_are_mixed_by_constant_attention():
    """Softmax passes nothing back to the scores; values get what they bring."""
    scores, values = torch.tensor([[0.2, 0.2]], requires_grad=True), torch.tensor([[1.0], [3.0]], requires_grad=True)
    with relevance_rules(nn.Identity()):
        out = F.softmax(scores, -1) @ values
    flows = torch.autograd.grad(out, [scores, values], torch.ones_like(out), allow_unused=True)
    assert flows[0] is None
    assert flows[1].flatten().tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in REFUSED])
def test_relevance_is_conserved(family):
    """What starts at the answer arrives at the inputs (the scorer refuses otherwise); shares of a site sum to 1."""
    model = tiny_model(family)
    batch = example_inputs(model, batch=2, length=7)
    scores = hp.score(model, [batch], method="relevance")
    for row in scores.scores.values():
        assert sum(row) == pytest.approx(1.0, abs=1e-4)
        assert min(row) > -1e-6
    assert set(scores.counts.values()) == {2.0}


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_what_the_rules_do_not_cover_is_refused(family):
    """With the share that was lost, or the missing logits."""
    model = tiny_model(family)
    with pytest.raises(UnsupportedModelError, match=r"arrived at the inputs|has none"):
        hp.score(model, [example_inputs(model, batch=1, length=7)], method="relevance")


def test_a_head_that_brings_nothing_has_no_relevance():
    """Its columns of the output projection are zero."""
    model = tiny_model("bert")
    weight = model.get_submodule(hp.find_heads(model)["encoder.1"].output).weight
    with torch.no_grad():
        weight[:, 8:16] = 0.0
    row = hp.score(model, [example_inputs(model, batch=2, length=7)], method="relevance").scores["encoder.1"]
    bias_share = 1 / 4  # what biases get is spread over all inputs alike, so that is all that head 1 can have
    assert row[1] < min(row[0], row[2], row[3])
    assert row[1] < bias_share


def test_the_forward_pass_is_the_ordinary_one():
    """Also where a model works in place."""

    def forward(x):
        y = x * 2
        y.add_(1.0)
        y.mul_(3.0)
        z = torch.add(y, x, alpha=3)
        z += x
        return z

    x = torch.tensor([1.0, -2.0], requires_grad=True)
    with relevance_rules(nn.Identity()):
        found = forward(x)
    assert torch.equal(found, forward(x))


def test_alpha_is_a_share():
    """Anything else is refused."""
    model = tiny_model("bert")
    with pytest.raises(DataError, match="alpha is 2"):
        hp.score(model, [example_inputs(model)], method="relevance", alpha=2.0)
