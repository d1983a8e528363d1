"""LAMB."""

from __future__ import annotations

import torch

from headprune.tasks.optimizers import optimizer_of
from headprune.tasks.recipe import Recipe


def test_a_step_of_lamb_equals_one_by_hand():
    """No bias correction, the norm of a weight counted up to 10, a ratio of 1 for a weight of zeros."""
    start = [torch.full((4,), 9.0), torch.tensor([0.3, -0.4]), torch.zeros(3)]
    gradients = [
        [torch.tensor([0.1, -0.2, 0.3, 0.4]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0, -0.5])],
        [torch.tensor([0.3, 0.1, -0.1, 0.2]), torch.tensor([-1.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])],
    ]
    recipe = Recipe(optimizer="lamb", learning_rate=0.01, epsilon=1e-8, weight_decay=0.0)
    made = optimizer_of(recipe)
    assert made is not None
    parameters = [torch.nn.Parameter(weight.clone()) for weight in start]
    optimizer = made[0](parameters, **made[1])
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for place, weight in enumerate(start):
        weight, m, v = weight.double(), 0.0, 0.0
        for step in gradients:
            g = step[place].double()
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            update = m / (v.sqrt() + 1e-8)
            w, u = min(10.0, float(weight.norm())), float(update.norm())
            ratio = w / (u + 1e-8) if w and u else 1.0
            weight = weight - 0.01 * ratio * update
        torch.testing.assert_close(parameters[place].detach().double(), weight, rtol=1e-5, atol=1e-7)
