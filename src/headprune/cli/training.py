"""What the commands that train share: options of a recipe (those not given stay as they are), a mask before it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.cli.choosing import read_text
from headprune.errors import DataError

if TYPE_CHECKING:
    from headprune.tasks.recipe import Recipe


Tests = Annotated[list[str] | None, typer.Option(help="Another part of the data to score at the end; repeatable.")]


@dataclass(frozen=True)
class TrainingOptions:
    """The options as typed. Every field is an option of each command that takes them."""

    epochs: Annotated[float | None, typer.Option(help="Passes over the training data.")] = None
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None
    batch_tokens: Annotated[
        int | None, typer.Option(help="Batches of so many tokens, padding counted, instead of --batch-size examples.")
    ] = None
    accumulate: Annotated[int | None, typer.Option(help="Batches that make one step.")] = None
    label_smoothing: Annotated[float | None, typer.Option(help="Translation: 0.1 in the papers.")] = None
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate after warm-up: linear, inverse-sqrt, cosine, constant.")
    ] = None
    lr_warmup: Annotated[
        float | None, typer.Option(help="Warm-up of the learning rate: a share of the steps, or steps from 1 on.")
    ] = None
    updates: Annotated[int | None, typer.Option(help="End after so many steps, whatever the epochs.")] = None
    optimizer: Annotated[str | None, typer.Option(help="adamw, or lamb as in Shim et al.")] = None
    floor: Annotated[
        float | None, typer.Option(help="Where a cosine schedule ends, as a share of the peak learning rate.")
    ] = None
    clip: Annotated[float | None, typer.Option(help="Largest norm of all gradients.")] = None
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="Train in mixed precision.")] = None

    def recipe(self, start: Recipe) -> Recipe:
        """A recipe with what was typed."""
        names = {"lr": "learning_rate", "lr_warmup": "warmup"}
        given = {names.get(name, name): value for name, value in asdict(self).items() if value is not None}
        if "epochs" in given and "updates" not in given:
            given["updates"] = None
        if given.get("schedule", "cosine") != "cosine":
            given.setdefault("floor", 0.0)
        if given.get("batch_tokens", 1) < 1:
            raise DataError(f"--batch-tokens is {given['batch_tokens']}; expected a number of tokens.")
        return replace(start, **given)


def cut_to(model: Any, mask: Path) -> None:
    """Only the heads of a mask file, before training."""
    from headprune.heads import HeadMask
    from headprune.structure import find_heads
    from headprune.surgery.prune import prune_

    prune_(model, HeadMask.from_json(read_text(mask, "mask"), find_heads(model)), about={"by": f"mask {mask.name}"})
