"""What `train-lm` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Option, Seed, TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions

PRESET_NAMES = "tiny, small (for a CPU), wikitext-103, text8 (Shim et al.'s)"


@dataclass(frozen=True, kw_only=True)
class TrainLmOptions:
    out: Annotated[Path, Option("Folder for the model, its vocabulary and train-lm.json.")]
    by: Annotated[str, Option("What a token is: words, characters, letters (a to z and space, as Text8), bytes.")] = (
        "characters"
    )
    preset: Annotated[str, Option(f"Shape and recipe to start from: {PRESET_NAMES}.")] = "small"
    kind: Annotated[str | None, Option("all-attention or transformer-xl.")] = None
    layers: Annotated[int | None, Option("Layers.")] = None
    width: Annotated[int | None, Option("Width of the model.")] = None
    heads: Annotated[int | None, Option("Heads of every layer.")] = None
    persistent: Annotated[
        int | None, Option("Persistent vectors a head; width of the feed-forward part in transformer-xl.")
    ] = None
    memory: Annotated[int | None, Option("Positions that a layer remembers.")] = None
    positions: Annotated[str | None, Option("Vectors of distances: learned or sinusoidal.")] = None
    dropout: Annotated[float | None, Option("Dropout of vectors and of what layers say.")] = None
    attention_dropout: Annotated[float | None, Option("Dropout of attention.")] = None
    vocabulary: Annotated[int | None, Option("Keep so many symbols; the others become <unk>.")] = None
    mask: Annotated[Path | None, Option("A mask file: train with only these heads.", is_read=True)] = None
    test: Tests = None
    validate_examples: Annotated[int, Option("Dev segments to look at with every checkpoint; 0 for none.")] = 100
    keep_checkpoints: Annotated[bool, Option("Keep every checkpoint, not only the last.")] = False
    training: TrainingOptions = TrainingOptions()
    data: TaskOptions = TaskOptions(task="stream-lm", batch_size=0, max_length=0)
    force: Force = False
    seed: Seed = 42
    device: Device = "cpu"
