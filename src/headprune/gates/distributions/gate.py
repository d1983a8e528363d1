"""Gates: random variables between 0 and 1, one per head, whose probability of being closed can be trained.

All are Concrete variables (Maddison et al. 2017, Jang et al. 2017) stretched beyond 0 and 1 and clipped, so that both
ends have a probability of their own (Louizos et al. 2018):

    s = sigmoid((logit(u) + log_alpha) / temperature),  u uniform;   stretched = s * (high - low) + low

What they make of the stretched value is what they differ in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from headprune.errors import GateError
from headprune.registry import Registry, check_finite

EPS = 1e-6
GateOptions: TypeAlias = dict[str, Any]  # as a checkpoint stores them
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
        numbers = {"temperature": temperature, "init": init, "low": low, "high": high}
        check_finite(f"A gate of the kind {self.kind}", numbers, GateError)
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

    def options(self) -> GateOptions:
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


gates: Registry[type[Gate]] = Registry("gate", "headprune.gates")


def make_gate(kind: str, num_heads: int, options: GateOptions) -> Gate:
    """A gate by the name of its kind."""
    given = dict(options)
    if "stretch" in given:
        given["stretch"] = tuple(given["stretch"])
    try:
        return gates[kind](num_heads, **given)
    except TypeError as error:
        raise GateError(f"The gate '{kind}' does not take these options: {error}.") from error
