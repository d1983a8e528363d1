"""Gates: random variables between 0 and 1, one per head, whose probability of being closed can be trained.

All are Concrete variables (Maddison et al. 2017, Jang et al. 2017) stretched beyond 0 and 1 and clipped, so that both
ends have a probability of their own (Louizos et al. 2018):

    s = sigmoid((logit(u) + log_alpha) / temperature),  u uniform;   stretched = s * (high - low) + low

`HardConcrete` clips the stretched value: Voita et al. 2019. `BinaryConcrete` rounds it, with the gradient of the
clipped value: Shim et al. 2021. `ExactK` opens exactly k gates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from headprune.errors import GateError
from headprune.gates.topk import soft_top_k
from headprune.registry import Registry

EPS = 1e-6
Rule = Literal["paper", "clip"]


class Gate(nn.Module, ABC):
    """One gate per head. Subclasses say how a sample is made and what the final value is."""

    kind: ClassVar[str] = ""
    joint: ClassVar[bool] = False  # whether the gates of all sites are drawn together

    def __init__(
        self,
        num_heads: int,
        *,
        temperature: float = 0.33,
        stretch: tuple[float, float] = (-0.1, 1.1),
        init: float | Literal["glorot"] = 2.0,
    ) -> None:
        super().__init__()
        low, high = stretch
        if num_heads < 1 or temperature <= 0 or not low < 0 < 1 < high:
            raise GateError(
                f"Found {num_heads} heads, temperature {temperature}, stretch {tuple(stretch)}; expected at least one "
                "head, a positive temperature, and a stretch from below 0 to above 1."
            )
        self.num_heads, self.temperature, self.low, self.high, self.init = num_heads, temperature, low, high, init
        self.log_alpha = nn.Parameter(torch.empty(num_heads))
        self.reset()

    def reset(self) -> None:
        """The initial value. "glorot" is what Voita et al.'s code had by default: about half of the gates closed."""
        if self.log_alpha.is_meta:
            return
        with torch.no_grad():
            if self.init == "glorot":
                bound = math.sqrt(6 / (2 * self.num_heads)) if self.num_heads > 1 else 1.0
                self.log_alpha.uniform_(-bound, bound)
            else:
                self.log_alpha.fill_(float(self.init))

    def options(self) -> dict[str, Any]:
        """What a checkpoint must know to make this gate again."""
        return {"temperature": self.temperature, "stretch": [self.low, self.high], "init": self.init}

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """A value per head, given uniform noise (heads,)."""

    @abstractmethod
    def final(self, rule: Rule = "paper") -> Tensor:
        """The value per head at test time, without noise."""

    def forward(self) -> Tensor:
        """A sample while training, the final value otherwise."""
        return self.sample(torch.rand_like(self.log_alpha)) if self.training else self.final()

    def mask(self) -> Tensor:
        """Which heads stay (heads,), bool."""
        return self.final().detach() > 0

    def prob_zero(self) -> Tensor:
        """P(g = 0)."""
        return 1 - self._prob_above_zero()

    def prob_one(self) -> Tensor:
        """P(g = 1)."""
        return torch.sigmoid(self._logits() - self.temperature * math.log((1 - self.low) / (self.high - 1)))

    def prob_open(self) -> Tensor:
        """P(g > 0)."""
        return self._prob_above_zero()

    def penalty(self) -> Tensor:
        """The expected number of stretched samples above zero: the differentiable L0 norm."""
        return self._prob_above_zero().clamp(EPS, 1 - EPS).sum()

    def decided(self, level: float = 0.9) -> Tensor:
        """Which gates are almost surely open or almost surely closed (heads,), bool."""
        return torch.maximum(self.prob_zero(), self.prob_one()) > level

    def density(self, points: Tensor) -> Tensor:
        """The density of the stretched variable at points between its ends, (points, heads); for Voita's Figure 6."""
        s = ((points[:, None] - self.low) / (self.high - self.low)).clamp(EPS, 1 - EPS)
        logit, beta = torch.logit(s), self.temperature
        # s = sigmoid((logit(u) + a) / beta): the density of u = sigmoid(beta * logit(s) - a), times du/ds.
        u = torch.sigmoid(beta * logit - self._logits())
        return u * (1 - u) * beta / (s * (1 - s)) / (self.high - self.low)

    def _logits(self) -> Tensor:
        return self.log_alpha.float()

    def _prob_above_zero(self) -> Tensor:
        return torch.sigmoid(self._logits() - self.temperature * math.log(-self.low / self.high))

    def _stretched(self, noise: Tensor) -> Tensor:
        u = noise.to(self.log_alpha.device).float().clamp(EPS, 1 - EPS)
        s = torch.sigmoid((torch.logit(u) + self._logits()) / self.temperature)
        return s * (self.high - self.low) + self.low

    def _stretched_mean(self) -> Tensor:
        """What the papers' code uses at test time: no noise, no temperature."""
        return torch.sigmoid(self._logits()) * (self.high - self.low) + self.low


gates: Registry[type[Gate]] = Registry("gate")


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

    def options(self) -> dict[str, Any]:
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

    def options(self) -> dict[str, Any]:
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


def make_gate(kind: str, num_heads: int, options: Mapping[str, Any]) -> Gate:
    """A gate by the name of its kind."""
    given = dict(options)
    if "stretch" in given:
        given["stretch"] = tuple(given["stretch"])
    try:
        return gates[kind](num_heads, **given)
    except TypeError as error:
        raise GateError(f"The gate '{kind}' does not take these options: {error}.") from error
