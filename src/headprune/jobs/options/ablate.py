"""What `ablate` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from headprune.jobs.options.base import Device, Examples, Force, Model, Option, Picture, Seed, Split, TaskOptions


@dataclass(frozen=True, kw_only=True)
class AblateOptions:
    results: ClassVar[int] = 2  # 1: every head on the reporting part too, no compare-mt
    model: Model
    out: Annotated[Path, Option("Folder for ablation.json, scores.json (an order to prune in) and pictures.")]
    all_but_one: Annotated[bool, Option("Keep only the head in its layer, instead of masking it.")] = False
    split: Split = "dev"
    examples: Examples = 0
    against: Annotated[
        str | None, Option("A second part, such as dev-mm or dev-out: do the same heads matter there?")
    ] = None
    compare_with: Annotated[
        Path | None, Option("An ablation.json of the same model on another part, instead of --against.", is_read=True)
    ] = None
    choose_on: Annotated[
        str | None,
        Option(
            "With --all-but-one: choose the best head of each layer on this part; only it is then tried on --split."
        ),
    ] = None
    choose_examples: Annotated[int, Option("A random part of so many examples to choose on.")] = 5000
    data: TaskOptions = TaskOptions()
    force: Force = False
    seed: Seed = 0
    picture: Picture = "html"
    device: Device = "cpu"
