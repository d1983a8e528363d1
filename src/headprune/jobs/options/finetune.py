"""What `finetune` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Model, Option, Seed, TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    model: Model
    out: Annotated[Path, Option("Folder for the fine-tuned model.")]
    mask: Annotated[Path | None, Option("A mask file: prune to these heads first, then train.", is_read=True)] = None
    teacher: Annotated[str | None, Option("A model whose answers to follow as well (distillation).")] = None
    from_scratch: Annotated[bool, Option("Start from random weights instead of the model's (Voita, Table 2).")] = False
    keep_checkpoints: Annotated[bool, Option("Keep the checkpoint of every epoch, not only the last.")] = False
    test: Tests = None
    training: TrainingOptions = TrainingOptions(epochs=3.0, lr=2e-5)
    data: TaskOptions = TaskOptions()
    force: Force = False
    seed: Seed = 42
    device: Device = "cpu"
