"""What `evaluate` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Examples, Force, Model, Option, Seed, Split, TaskOptions


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    model: Model
    out: Annotated[Path, Option("Folder for evaluation.json, and for translations.")]
    split: Split = "test"
    examples: Examples = 0
    mask: Annotated[Path | None, Option("A mask file: with only these heads.", is_read=True)] = None
    against: Annotated[str | None, Option("Another model for the same task: is the difference more than chance?")] = (
        None
    )
    data: TaskOptions = TaskOptions()
    force: Force = False
    seed: Seed = 0
    device: Device = "cpu"
