"""The gates' formulas: gradients by finite differences, samples against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

import headprune as hp
from headprune.errors import GateError
from headprune.gates.distributions import make_gate
from headprune.gates.distributions.exact_k import soft_top_k
from tests.gates.toy import with_alpha


@pytest.mark.parametrize("kind", ["hard-concrete", "binary-concrete"])
def test_samples_agree_with_the_closed_forms(kind):
    """Shares of zeros and ones in 200,000 samples."""
    torch.manual_seed(0)
    options = {"scaling": False} if kind == "binary-concrete" else {}
    for alpha in (-2.0, 0.0, 1.5):
        gate = with_alpha(make_gate(kind, 1, options), alpha)
        drawn = gate.sample(torch.rand(200_000)).detach()
        margin = 4 * 0.5 / math.sqrt(len(drawn))
        assert (drawn == 0).float().mean().item() == pytest.approx(gate.prob_zero().item(), abs=margin)
        assert (drawn == 1).float().mean().item() == pytest.approx(gate.prob_one().item(), abs=margin)
        assert (drawn > 0).float().mean().item() == pytest.approx(gate.prob_open().item(), abs=margin)


@pytest.mark.parametrize("kind", ["hard-concrete", "binary-concrete"])
def test_the_penalty_has_the_gradient_of_finite_differences(kind):
    """d penalty / d log_alpha."""
    gate = with_alpha(make_gate(kind, 3, {}), -1.0, 0.3, 2.0).double()
    gate._logits = lambda: gate.log_alpha  # in float64
    gate.penalty().backward()
    for head in range(3):
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                gate.log_alpha[head] += step
                values.append(gate.penalty().item())
                gate.log_alpha[head] -= step
        assert gate.log_alpha.grad[head].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_a_soft_sample_has_the_gradient_of_its_formula():
    """Between the ends, d g / d log_alpha = 1.2 s (1 - s) / temperature; at the ends 0."""
    gate = with_alpha(hp.HardConcrete(3), 0.0, 9.0, -9.0)
    noise = torch.tensor([0.55, 0.5, 0.5])
    value = gate.sample(noise)
    value.sum().backward()
    s = torch.sigmoid(torch.logit(noise[0]) / 0.33)
    assert value.tolist() == [pytest.approx(float(s * 1.2 - 0.1), rel=1e-4), 1.0, 0.0]
    assert gate.log_alpha.grad.tolist() == pytest.approx([float(1.2 * s * (1 - s) / 0.33), 0.0, 0.0], rel=1e-4)


def test_the_straight_through_gradient_is_that_of_the_soft_sample():
    """Forward 0 or 1 with the papers' threshold, backward the stretched sample."""
    gate = with_alpha(hp.BinaryConcrete(2, scaling=False), 0.2, -0.2)
    noise = torch.tensor([0.5, 0.5])
    value = gate.sample(noise)
    assert value.tolist() == pytest.approx([1.0, 0.0])
    value.sum().backward()
    s = torch.sigmoid(torch.tensor([0.2, -0.2]) * 3)
    assert gate.log_alpha.grad.tolist() == pytest.approx((1.2 * s * (1 - s) * 3).tolist(), rel=1e-4)


def test_output_scaling_keeps_the_size():
    """s_g = H / open heads, at most H; no gradient through it."""
    gate = with_alpha(hp.BinaryConcrete(4), 3.0, 3.0, -3.0, -3.0)
    assert gate.final().tolist() == [2.0, 2.0, 0.0, 0.0]
    assert with_alpha(hp.BinaryConcrete(4), -3.0, -3.0, -3.0, -3.0).final().tolist() == [0.0] * 4
    assert with_alpha(hp.BinaryConcrete(4), 3.0, -3.0, -3.0, -3.0).final().tolist() == [4.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("k", [0, 1, 3, 5, 6])
def test_exactly_k_gates_are_open(k):
    """In every sample and at the end; the soft ones sum to k."""
    torch.manual_seed(0)
    gate = with_alpha(hp.ExactK(6, keep=k), 0.5, -1.0, 2.0, 0.1, 0.0, -0.3)
    for _ in range(20):
        assert gate.sample(torch.rand(6)).detach().sum().item() == pytest.approx(k)
    assert gate.final().sum().item() == k
    assert gate.prob_open().sum().item() == pytest.approx(k, abs=1e-4)


def test_the_soft_top_k_has_the_gradient_of_finite_differences():
    """The threshold moves with the scores, and its gradient is counted."""
    scores = torch.tensor([0.5, -1.0, 2.0, 0.1, 0.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, -1.0, 0.5, 3.0], dtype=torch.float64)
    (soft_top_k(scores, 2, 0.4) * weights).sum().backward()
    for place in range(5):
        values = []
        for step in (1e-6, -1e-6):
            moved = scores.detach().clone()
            moved[place] += step
            values.append(float((soft_top_k(moved, 2, 0.4) * weights).sum()))
        assert scores.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_decided_gates():
    """max(P(0), P(1)) above 0.9."""
    assert with_alpha(hp.HardConcrete(3), -6.0, 0.0, 6.0).decided().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("hard-concrete", {"temperature": 0}),
        ("hard-concrete", {"stretch": (0.1, 1.1)}),
        ("binary-concrete", {"threshold": 1.5}),
        ("exact-k", {"keep": -1}),
        ("hard-concrete", {"tempreature": 1.0}),
    ],
)
def test_impossible_gates_are_refused(kind, options):
    """With what was expected."""
    with pytest.raises(GateError):
        make_gate(kind, 4, options)
