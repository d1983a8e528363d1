"""How to train: everything about a run but its model and its data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from headprune.errors import DataError
from headprune.jobs.options.training import TrainingOptions
from headprune.tasks.task import Examples
from headprune.tasks.token_batches import TokenBatches

Schedule = Literal["linear", "inverse-sqrt", "cosine", "constant"]
Optimizer = Literal["adamw", "lamb"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The defaults are Michel et al.'s for BERT: batch 32, learning rate 2e-5, 3 epochs, 10 % warm-up, linear decay.

    `batch_tokens` makes batches of so many tokens, padding counted, instead of `batch_size` examples; `accumulate`
    batches make one step. `warmup` is a share of the steps below 1, a number of steps from 1 on. `updates` ends the
    run after so many steps, whatever `epochs` says. `optimizer="lamb"` is You et al. 2020 as Shim et al. have it.
    """

    epochs: float = 3.0
    learning_rate: float = 2e-5
    batch_size: int = 32
    max_length: int = 128
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 42
    teacher_weight: float = 0.5  # share of the loss that comes from the teacher, if there is one
    teacher_temperature: float = 2.0
    updates: int | None = None
    batch_tokens: int | None = None
    accumulate: int = 1
    label_smoothing: float = 0.0
    schedule: Schedule = "linear"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    bf16: bool = False
    optimizer: Optimizer = "adamw"
    floor: float = 0.0  # where a cosine schedule ends, as a share of the peak
    clip: float = 1.0  # of the norm of all gradients

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise DataError(f"The schedule is '{self.schedule}'; expected {', '.join(get_args(Schedule))}.")
        if self.optimizer not in get_args(Optimizer):
            raise DataError(f"The optimizer is '{self.optimizer}'; expected {', '.join(get_args(Optimizer))}.")
        if not 0 <= self.floor < 1 or (self.floor and self.schedule != "cosine"):
            raise DataError(f"The floor is {self.floor}; expected a share of the peak, with --schedule cosine.")
        if self.updates is not None and self.updates < 1:
            raise DataError(f"updates is {self.updates}; expected a number of steps, at least 1.")
        if self.accumulate < 1 or self.epochs <= 0 or not 0 <= self.label_smoothing < 1:
            raise DataError(
                f"Found accumulate {self.accumulate}, epochs {self.epochs}, label smoothing {self.label_smoothing}; "
                "expected 1 or more, more than 0, and 0 to 1."
            )

    def with_options(self, options: TrainingOptions) -> Recipe:
        """This recipe with what was asked for; the rest stays."""
        names = {"lr": "learning_rate", "lr_warmup": "warmup"}
        given = {names.get(name, name): value for name, value in asdict(options).items() if value is not None}
        if "epochs" in given and "updates" not in given:
            given["updates"] = None
        if given.get("schedule", "cosine") != "cosine":
            given.setdefault("floor", 0.0)
        if given.get("batch_tokens", 1) < 1:
            raise DataError(f"--batch-tokens is {given['batch_tokens']}; expected a number of tokens.")
        return replace(self, **given)

    def batches(self, examples: Examples) -> int:
        """Batches of one epoch on one process."""
        if self.batch_tokens is not None:
            return len(self.token_batches(examples))
        return examples.batch_count(self.batch_size, self.accumulate)

    def token_batches(self, examples: Examples, processes: int = 1) -> TokenBatches:
        assert self.batch_tokens is not None, "asked only where batches go by tokens"
        return TokenBatches(examples.lengths(), self.batch_tokens, seed=self.seed, processes=processes)

    def steps(self, examples: Examples) -> int:
        """How many steps the Trainer will take on one process."""
        if self.updates is not None:
            return self.updates
        return max(1, math.ceil(math.ceil(self.batches(examples) / self.accumulate) * self.epochs))

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "betas": list(self.betas)}
