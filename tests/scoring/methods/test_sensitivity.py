"""`sensitivity`: the slope of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headprune as hp
from headprune.errors import UnknownNameError
from tests.families.tiny import tiny_model
from tests.scoring.toy import ToyAttention, labelled, rows, singles


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_sensitivity_is_the_slope_of_the_loss(family):
    """Equal to finite differences of the loss in the mask, at every head."""
    model = tiny_model(family)
    batch = singles(labelled(model, family))[1]
    found = hp.score(model, [batch], method="sensitivity").scores
    heads, step = hp.find_heads(model), 2e-3

    def loss(site, head, value):
        weights = torch.ones(heads[site].num_heads)
        weights[head] = value
        with torch.no_grad(), hp.masked(model, {site: weights}):
            return float(model(**batch).loss)

    for site, row in found.items():
        for head, value in enumerate(row):
            slope = (loss(site, head, 1 + step) - loss(site, head, 1 - step)) / (2 * step)
            assert value == pytest.approx(abs(slope), rel=1e-2, abs=5e-4)


def test_the_three_reductions_on_a_case_solved_by_hand():
    """With signs that cancel within an example (token) or between examples (batch)."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.block = ToyAttention()
    model.forward = lambda x, signs=None, labels=None: model.block(x)
    # Two examples of two equal positions each: attention to equal tokens returns the token whatever the weights.
    x = torch.tensor([[[1.0, 2.0], [1.0, 2.0]], [[3.0, 1.0], [3.0, 1.0]]])
    signs = torch.tensor([[1.0, -0.5], [-1.0, 0.25]])  # how the loss reads each position

    def loss(outputs, batch):
        return (outputs.sum(-1) * batch["signs"]).sum(1)

    heads = hp.find_heads(model, example={"x": torch.randn(2, 3, 2)})
    assert [(s.id, s.num_heads) for s in heads] == [("encoder.0", 2)]

    def score(reduction):
        return hp.score(model, [{"x": x, "signs": signs, "labels": signs}], loss=loss, heads=heads, reduction=reduction)

    # dL/dξ of an example: sum over positions of value x sign.
    assert rows(score("example")).tolist() == pytest.approx([(0.5 + 2.25) / 2, (1.0 + 0.75) / 2])
    # The code's: |value x sign| at each of 4 positions, of the mean loss (half of the sum).
    assert rows(score("token")).tolist() == pytest.approx([(1.5 + 3.75) / 2 / 4, (3.0 + 1.25) / 2 / 4])
    # The port's: the gradient of the batch's mean loss.
    assert rows(score("batch")).tolist() == pytest.approx([abs(0.5 - 2.25) / 2, abs(1.0 - 0.75) / 2])
    with pytest.raises(UnknownNameError, match="reduction"):
        score("exmple")
