"""What `curve` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.errors import DataError
from headprune.jobs.options.base import Device, Examples, Force, Model, Option, Picture, Seed, Split, TaskOptions


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    model: Model
    out: Annotated[Path, Option("Folder for curve.json and its picture.")]
    scores: Annotated[
        list[Path] | None, Option("A scores file whose order to follow; give it again for more orders.", is_read=True)
    ] = None
    random: Annotated[int, Option("So many random orders as well.")] = 3
    rescore: Annotated[bool, Option("Also follow sensitivity scored anew after each step, on --rescore-examples.")] = (
        False
    )
    rescore_examples: Annotated[int, Option("Training examples to score on at each step.")] = 512
    checkpoints: Annotated[
        Path | None,
        Option(
            "A folder of checkpoints: the sensitivity curve of each, instead (Michel et al., Figure 5).", is_read=True
        ),
    ] = None
    steps: Annotated[int, Option("Points between nothing and everything pruned.")] = 10
    components: Annotated[
        str | None,
        Option(
            "Prune only in these: encoder, decoder, cross (comma-separated); each: one curve a component "
            "(Michel et al., Figure 4)."
        ),
    ] = None
    unit: Annotated[str, Option("What goes together: head, group (KV group) or query.")] = "head"
    removed: Annotated[bool, Option("Really remove the heads at every point, instead of masking them.")] = False
    split: Split = "dev"
    examples: Examples = 0
    data: TaskOptions = TaskOptions()
    force: Force = False
    seed: Seed = 0
    picture: Picture = "html"
    device: Device = "cpu"

    def check(self) -> None:
        if self.steps < 1:
            raise DataError(f"--steps is {self.steps}; a curve needs at least one step.")
