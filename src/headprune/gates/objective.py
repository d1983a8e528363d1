"""What training adds to the loss for the sake of pruning, and how that changes over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from headprune.errors import GateError
from headprune.gates.model_gates import Gates
from headprune.registry import check_finite


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Either a weight of the L0 penalty (the papers' lambda), or a number of heads to keep.

    `over="sum"` adds weight x expected open heads (the papers); `"site-mean"` divides by the number of gated sites
    (Voita et al.'s code, whose coefficient is the paper's lambda times that number). `component_weights` multiply the
    heads of a component. The weight rises linearly from 0 over `warmup` steps (Shim et al.); after `freeze_after`
    steps gates are frozen.

    With `target`, nobody has to guess a weight: a Lagrange multiplier rises while more heads are expected open than
    wanted, and falls while fewer are (never below 0). The number wanted falls from all heads to the target over the
    warm-up. When gates are frozen, exactly the target's number of likeliest heads is opened for good, so that the rest
    of training is with the model as it will be.
    """

    weight: float = 0.0
    over: Literal["sum", "site-mean"] = "sum"
    component_weights: Mapping[str, float] = field(default_factory=dict)
    warmup: int = 0
    freeze_after: int | None = None
    target: int | None = None
    multiplier_rate: float = 0.05  # how fast the multiplier follows; the constraint is in shares of all gated heads
    stiffness: float = 5.0

    def __post_init__(self) -> None:
        check_finite("The objective", {**vars(self), **self.component_weights}, GateError)
        if self.weight < 0:
            raise GateError(f"lambda is {self.weight}; expected 0 or more: a negative one would reward open heads.")
        if self.target is not None and self.weight:
            raise GateError("Give lambda or a target, not both: a target finds its own weight.")
        if self.warmup < 0 or (self.freeze_after is not None and self.freeze_after < 0):
            raise GateError(f"warmup is {self.warmup}, freeze_after {self.freeze_after}; expected numbers of steps.")

    def check(self, gates: Gates) -> None:
        """Whether the target can be met by these gates."""
        if self.target is not None and not 0 <= self.target <= len(gates):
            raise GateError(f"The target is {self.target} heads; {len(gates)} are gated. Expected 0 to {len(gates)}.")
        if self.target is not None:
            gates.mask(keep=self.target)  # whole groups may not add up to it: better known now than at the end

    def weight_at(self, step: int) -> float:
        """The weight at a step, counted from 0."""
        return self.weight * (min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0)

    def wanted_at(self, step: int, gated: int) -> float:
        """The number of heads that the target allows at a step."""
        assert self.target is not None, "only a target wants a number"
        share = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return gated - share * (gated - self.target)

    def loss(self, gates: Gates, step: int) -> Tensor:
        """What to add to the loss. Nothing once the gates are frozen."""
        if gates.frozen:
            return torch.zeros((), device=gates.multiplier.device)
        if self.target is None:
            return self.weight_at(step) * gates.penalty(self.over, self.component_weights)
        excess = self._excess(gates, step)
        return gates.multiplier.detach()[0] * excess + 0.5 * self.stiffness * excess.square()

    def after_step(self, gates: Gates, step: int) -> None:
        """After the optimiser's step number `step`, counted from 0."""
        if gates.frozen:
            return
        if self.target is not None:
            with torch.no_grad():
                gates.multiplier.add_(self.multiplier_rate * self._excess(gates, step)).clamp_(min=0)
        if self.freeze_after is not None and step + 1 >= self.freeze_after:
            self.freeze(gates)

    def freeze(self, gates: Gates) -> None:
        """End the search: no more noise, no more penalty."""
        if self.target is not None:
            gates.decide_(self.target)
        gates.freeze_()

    def _excess(self, gates: Gates, step: int) -> Tensor:
        return (gates.penalty() - self.wanted_at(step, len(gates))) / len(gates)

    def to_dict(self) -> dict[str, object]:
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
