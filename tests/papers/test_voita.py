"""Known numbers of Voita et al. 2019."""

from __future__ import annotations

import math

import pytest
import torch

import headprune as hp
from headprune.gates.distributions.gate import EPS
from headprune.tasks.translation.presets import PRESETS
from tests.gates.toy import with_alpha


def test_the_triples_of_voitas_figure_6():
    """Temperature 0.5 and log_alpha 0, 2, -3."""
    gate = with_alpha(hp.HardConcrete(3, temperature=0.5), 0.0, 2.0, -3.0)
    assert gate.prob_zero().tolist() == pytest.approx([0.232, 0.039, 0.858], abs=6e-4)
    assert gate.prob_one().tolist() == pytest.approx([0.232, 0.690, 0.015], abs=6e-4)


def test_the_density_of_figure_6_is_one():
    """It integrates to 1, and its tails beyond 0 and 1 are P(0) and P(1)."""
    gate = with_alpha(hp.HardConcrete(3, temperature=0.5), 0.0, 2.0, -3.0)
    # In logit space, where the density is smooth: s = sigmoid(z), ds = s (1 - s) dz.
    z = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    s = torch.sigmoid(z)
    inside = (s > 2 * EPS) & (s < 1 - 2 * EPS)
    s, weight = s[inside], (s * (1 - s))[inside] * (z[1] - z[0]) * 1.2
    mass = gate.density(s * 1.2 - 0.1).double() * weight[:, None]
    alpha = gate.log_alpha.detach().double()
    cut = torch.sigmoid(0.5 * torch.logit(s[[0, -1]])[:, None] - alpha)  # P(s < first), P(s < last)
    assert mass.sum(0).tolist() == pytest.approx((cut[1] - cut[0]).tolist(), abs=1e-4)
    below = mass[s * 1.2 - 0.1 < 0].sum(0) + cut[0]
    assert below.tolist() == pytest.approx(gate.prob_zero().tolist(), abs=1e-4)


def test_the_published_test_rule_is_zero_up_to_minus_ln_11():
    """`clip`: exactly 0 up to -2.398, exactly 1 from 2.398, fractions between; `paper`: 1 above 0."""
    edge = math.log(11)
    gate = with_alpha(hp.HardConcrete(5), -edge - 1e-3, -edge + 1e-3, 0.0, edge - 1e-3, edge + 1e-3)
    clip = gate.final("clip").tolist()
    assert clip[0] == 0.0
    assert 0 < clip[1] < 0.01
    assert clip[2] == pytest.approx(0.5)
    assert 0.99 < clip[3] < 1.0
    assert clip[4] == 1.0
    gate = with_alpha(hp.HardConcrete(3), -1e-3, 1e-3, 5.0)
    assert gate.final("paper").tolist() == [0.0, 1.0, 1.0]
    assert gate.mask().tolist() == [False, True, True]


def test_the_initial_value_of_voitas_code():
    """Glorot's uniform on eight heads: within 0.612."""
    torch.manual_seed(0)
    alpha = torch.cat([hp.HardConcrete(8, init="glorot").log_alpha.detach() for _ in range(200)])
    assert alpha.abs().max().item() == pytest.approx(0.612, abs=0.01)
    assert hp.HardConcrete(8, init=-1.5).log_alpha.tolist() == [-1.5] * 8


def test_the_recipes_peak_as_the_papers_say():
    """Voita et al.: 4 x 512 ** -0.5 x 16000 ** -0.5; the schedule falls with the inverse square root."""
    recipe = PRESETS["base"].recipe
    assert recipe.learning_rate == pytest.approx(1.4e-3, abs=1e-5)
    assert recipe.batch_tokens * recipe.accumulate == 16000
    from transformers import get_inverse_sqrt_schedule

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.learning_rate)
    schedule = get_inverse_sqrt_schedule(optimizer, int(recipe.warmup)).lr_lambdas[0]
    for step in (100, 16000, 40000):
        formula = 4 * 512**-0.5 * min(step**-0.5, step * 16000**-1.5)
        assert recipe.learning_rate * schedule(step) == pytest.approx(formula, rel=1e-6)
