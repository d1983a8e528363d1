"""Gates that may be half open while they are trained."""

from __future__ import annotations

import torch
from torch import Tensor

from headprune.gates.distributions.gate import Gate, Rule, gates


@gates.add("hard-concrete")
class HardConcrete(Gate):
    """Soft samples, clipped to 0 and 1 (Voita et al. 2019, section 6.1).

    Test time: `rule="paper"` opens a gate if P(g = 1) > P(g = 0); `"clip"` is the published code, which clips
    sigmoid(log_alpha) after stretching and leaves fractions between -2.398 and 2.398.
    """

    kind = "hard-concrete"

    def sample(self, noise: Tensor) -> Tensor:
        return self._stretched(noise).clamp(0, 1)

    def final(self, rule: Rule = "paper") -> Tensor:
        if rule == "clip":
            return self._stretched_mean().clamp(0, 1)
        return (self.prob_one() > self.prob_zero()).to(torch.float32)
