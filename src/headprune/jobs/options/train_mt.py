"""What `train-mt` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Option, Seed, TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions

PRESET_NAMES = "tiny, quick, long (for a CPU), iwslt, base, large (the papers')"


@dataclass(frozen=True, kw_only=True)
class TrainMtOptions:
    out: Annotated[Path, Option("Folder for the model, its tokenizer and train-mt.json.")]
    preset: Annotated[str, Option(f"Shape and recipe to start from: {PRESET_NAMES}.")] = "quick"
    layers: Annotated[int | None, Option("Layers of encoder and of decoder.")] = None
    width: Annotated[int | None, Option("Width of the model.")] = None
    heads: Annotated[int | None, Option("Heads of every site.")] = None
    feed_forward: Annotated[int | None, Option("Width of the feed-forward blocks.")] = None
    norm: Annotated[str | None, Option("pre (M2M-100's class) or post (Marian's).")] = None
    dropout: Annotated[float | None, Option("Dropout after every block.")] = None
    vocabulary: Annotated[int | None, Option("Subwords, for both languages together.")] = None
    subwords: Annotated[str, Option("bpe (of bytes) or unigram (as in SentencePiece).")] = "bpe"
    mask: Annotated[
        Path | None, Option("A mask file: train with only these heads (Voita et al., Table 2).", is_read=True)
    ] = None
    test: Tests = None
    validate_examples: Annotated[int, Option("Dev sentences to translate (greedily) after each epoch; 0 for none.")] = (
        200
    )
    keep_checkpoints: Annotated[bool, Option("Keep the checkpoint of every epoch (Michel et al., Figure 5).")] = False
    training: TrainingOptions = TrainingOptions()
    data: TaskOptions = TaskOptions(task="translation")
    force: Force = False
    seed: Seed = 42
    device: Device = "cpu"
