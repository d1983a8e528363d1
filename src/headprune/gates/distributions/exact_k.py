"""Gates of which a given number is open, and the differentiable top-k that they are made of."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headprune.errors import GateError
from headprune.gates.distributions.gate import EPS, Gate, GateOptions, Rule, gates


@gates.add("exact-k")
class ExactK(Gate):
    """Exactly k gates are open, in every sample: a top-k of noisy scores with the gradient of its soft relaxation.

    Attached to a model, k counts the heads of all gated sites together. There is nothing to penalise.
    """

    kind = "exact-k"
    joint = True

    def __init__(
        self,
        num_heads: int,
        *,
        keep: int | None = None,
        temperature: float = 0.33,
        init: float | Literal["glorot"] = 0.0,
    ) -> None:
        super().__init__(num_heads, temperature=temperature, init=init)
        if keep is not None and not keep >= 0:
            raise GateError(f"Found keep={keep}; expected the number of gates that stay open.")
        self.keep = keep

    def options(self) -> GateOptions:
        return {"temperature": self.temperature, "init": self.init, "keep": self.keep}

    def open_count(self, available: int) -> int:
        return available if self.keep is None else min(self.keep, available)

    def noisy(self, noise: Tensor) -> Tensor:
        return self._logits() + torch.logit(noise.to(self.log_alpha.device).float().clamp(EPS, 1 - EPS))

    def soft(self, scores: Tensor, count: int) -> Tensor:
        """Numbers between 0 and 1 that sum to the count."""
        return soft_top_k(scores, count, self.temperature)

    def relaxed(self, scores: Tensor, count: int) -> Tensor:
        """Hard top-k forward, soft backward; over all the scores given."""
        soft = self.soft(scores, count)
        return self.opened(scores, count) + (soft - soft.detach())

    def opened(self, scores: Tensor, count: int) -> Tensor:
        """1.0 for the largest; of equal ones the earlier stays."""
        order = torch.argsort(scores.detach(), descending=True, stable=True)
        hard = torch.zeros_like(scores)
        hard[order[:count]] = 1.0
        return hard.detach()

    def sample(self, noise: Tensor) -> Tensor:
        return self.relaxed(self.noisy(noise), self.open_count(self.num_heads))

    def final(self, rule: Rule = "paper") -> Tensor:
        return self.opened(self._logits(), self.open_count(self.num_heads))

    def prob_open(self) -> Tensor:
        """The soft top-k without noise: an estimate, there is no closed form."""
        return self.soft(self._logits(), self.open_count(self.num_heads))

    def prob_one(self) -> Tensor:
        return self.prob_open()

    def prob_zero(self) -> Tensor:
        return 1 - self.prob_open()

    def penalty(self) -> Tensor:
        return self.log_alpha.sum() * 0.0  # the number of open gates is fixed


def soft_top_k(scores: Tensor, k: int, temperature: float) -> Tensor:
    """sigmoid((score - t) / temperature) with the threshold t for which they sum to k.

    The threshold is found by bisection; one Newton step from there carries its gradient, which is then exact.
    """
    if k <= 0:
        return scores * 0.0
    if k >= len(scores):
        return scores * 0.0 + 1.0
    with torch.no_grad():
        reach = 40 * temperature
        low, high = scores.min() - reach, scores.max() + reach
        for _ in range(60):
            middle = (low + high) / 2
            too_many = torch.sigmoid((scores - middle) / temperature).sum() > k
            low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
        threshold = (low + high) / 2
        at = torch.sigmoid((scores - threshold) / temperature)
        slope = (at * (1 - at)).sum() / temperature
    moved = torch.sigmoid((scores - threshold) / temperature).sum() - k
    threshold = threshold + moved / slope.clamp_min(1e-12)
    return torch.sigmoid((scores - threshold) / temperature)
