"""What `score` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Examples, Force, Model, Option, Parts, Picture, Seed, TaskOptions


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    model: Model
    out: Annotated[Path, Option("Folder for scores.json and a heat map.")]
    method: Annotated[str, Option("sensitivity, fisher, ablation, all-but-one, output-norm, …")] = "sensitivity"
    reduction: Annotated[str | None, Option("For sensitivity: example, token or batch.")] = None
    loss: Annotated[str, Option("Of an example's tokens: mean, or sum as in Michel et al.'s translation code.")] = (
        "mean"
    )
    split: Annotated[str, Option("The part of the data to score on.")] = "train"
    examples: Examples = 0
    parts: Parts = "heads"
    against: Annotated[
        list[Path] | None, Option("Other scores of this model: do they see the same heads? Repeatable.", is_read=True)
    ] = None
    data: TaskOptions = TaskOptions(batch_size=16)
    force: Force = False
    seed: Seed = 0
    picture: Picture = "html"
    device: Device = "cpu"
