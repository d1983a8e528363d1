"""How to train, as the jobs that train are asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headprune.jobs.options.base import Option

Tests = Annotated[list[str] | None, Option("Another part of the data to score at the end; repeatable.")]


@dataclass(frozen=True)
class TrainingOptions:
    """Changes of a job's own recipe: what is not given stays as it is. `Recipe.with_options` makes them."""

    epochs: Annotated[float | None, Option("Passes over the training data.")] = None
    lr: Annotated[float | None, Option("Peak learning rate.")] = None
    batch_tokens: Annotated[
        int | None, Option("Batches of so many tokens, padding counted, instead of --batch-size examples.")
    ] = None
    accumulate: Annotated[int | None, Option("Batches that make one step.")] = None
    label_smoothing: Annotated[float | None, Option("Translation: 0.1 in the papers.")] = None
    schedule: Annotated[
        str | None, Option("Of the learning rate after warm-up: linear, inverse-sqrt, cosine, constant.")
    ] = None
    lr_warmup: Annotated[
        float | None, Option("Warm-up of the learning rate: a share of the steps, or steps from 1 on.")
    ] = None
    updates: Annotated[int | None, Option("End after so many steps, whatever the epochs.")] = None
    optimizer: Annotated[str | None, Option("adamw, or lamb as in Shim et al.")] = None
    floor: Annotated[float | None, Option("Where a cosine schedule ends, as a share of the peak learning rate.")] = None
    clip: Annotated[float | None, Option("Largest norm of all gradients.")] = None
    weight_decay: Annotated[float | None, Option("Weight decay.")] = None
    bf16: Annotated[bool | None, Option("Train in mixed precision.", flags=("--bf16/--no-bf16",))] = None
