"""Gates that are open or closed in every sample."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from headprune.errors import GateError
from headprune.gates.distributions.gate import EPS, Gate, GateOptions, Rule, gates


@gates.add("binary-concrete")
class BinaryConcrete(Gate):
    """Samples of 0 or 1 with a straight-through gradient (Shim et al. 2021, section 3.2).

    With `scaling`, open heads are multiplied by s_g = heads / open heads, at most the number of heads, so that the
    site's output keeps its size; no gradient flows through s_g.
    """

    kind = "binary-concrete"

    def __init__(
        self,
        num_heads: int,
        *,
        temperature: float = 1 / 3,
        stretch: tuple[float, float] = (-0.1, 1.1),
        init: float | Literal["glorot"] = 2.0,
        threshold: float = 0.5,
        scaling: bool = True,
    ) -> None:
        super().__init__(num_heads, temperature=temperature, stretch=stretch, init=init)
        if not 0 < threshold < 1:
            raise GateError(f"Found threshold {threshold}; expected a number between 0 and 1.")
        self.threshold, self.scaling = threshold, scaling

    def options(self) -> GateOptions:
        return {**super().options(), "threshold": self.threshold, "scaling": self.scaling}

    def sample(self, noise: Tensor) -> Tensor:
        soft = self._stretched(noise).clamp(EPS, 1)
        hard = (soft >= self.threshold).to(soft.dtype)
        return self._scaled(hard + (soft - soft.detach()), hard)

    def final(self, rule: Rule = "paper") -> Tensor:
        hard = (self._stretched_mean() >= self.threshold).to(torch.float32)
        return self._scaled(hard, hard)

    def prob_one(self) -> Tensor:
        """P(g = 1): the stretched sample is above the threshold."""
        cut = (self.threshold - self.low) / (self.high - self.low)
        return torch.sigmoid(self._logits() - self.temperature * math.log(cut / (1 - cut)))

    def prob_zero(self) -> Tensor:
        return 1 - self.prob_one()

    def prob_open(self) -> Tensor:
        return self.prob_one()

    def _scaled(self, value: Tensor, hard: Tensor) -> Tensor:
        if not self.scaling:
            return value
        return value * (self.num_heads / hard.sum().clamp_min(1)).detach()
