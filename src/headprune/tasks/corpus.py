"""Plain text as calibration data, for whatever model: pieces of text for language models, lines for all others."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headprune.errors import DataError
from headprune.tasks.data import load_processor, match_padding_
from headprune.tasks.language import LanguageTask, MaskedLanguageTask
from headprune.tasks.tables import Source
from headprune.tasks.task import Examples
from headprune.types import Processor


def corpus_batches(
    files: Sequence[Path], model: nn.Module, name: str, *, length: int, count: int, batch_size: int, seed: int
) -> list[dict[str, Any]]:
    """So many examples of the text, drawn at random, in batches. Language models get the text itself as labels.

    A folder stands for the texts (.txt, and .jsonl with `text` or chat `messages`) in it.
    """
    task: LanguageTask = MaskedLanguageTask() if "MaskedLM" in type(model).__name__ else LanguageTask()
    processor = load_processor(task, name)
    match_padding_(model, processor)
    source = Source(files=tuple(path for place in files for path in texts_in(place)))
    if isinstance(task, MaskedLanguageTask) or _writes_text(model):
        rows = task.load(source, "train", processor, length)
    else:
        rows = _lines(task.text(source, "train", processor), processor, length)
    return list(rows.sample(min(count, len(rows)), seed).batches(batch_size))


def beginnings(files: Sequence[Path], most: int = 20_000) -> list[str]:
    """So many characters of each text, for a look at what a model makes of it."""
    found = []
    for path in [path for place in files for path in texts_in(place)]:
        try:
            with (
                gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as text
            ):
                found.append(text.read(most))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"The text '{path}' cannot be read: {error}.") from error
    return found


def texts_in(place: Path) -> list[Path]:
    """The texts that a file or a folder stands for."""
    if not place.is_dir():
        return [place]
    found = sorted(path for kind in ("txt", "jsonl") for end in ("", ".gz") for path in place.glob(f"*.{kind}{end}"))
    if not found:
        raise DataError(f"'{place}' has no texts: expected files that end in .txt or .jsonl.")
    return found


def _writes_text(model: nn.Module) -> bool:
    config: Any = getattr(model, "config", None)
    return "CausalLM" in type(model).__name__ or (
        "LMHeadModel" in type(model).__name__ and not getattr(config, "is_encoder_decoder", False)
    )


def _lines(text: str, processor: Processor, length: int) -> Examples:
    """A line is an example, without a label."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise DataError("The corpus has no text: expected lines of words.")
    encoded = processor(lines, truncation=True, max_length=length)
    features = [{key: np.asarray(values[row]) for key, values in encoded.items()} for row in range(len(lines))]

    def collate(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        padded = processor.pad(
            [{key: value.tolist() for key, value in row.items()} for row in rows], return_tensors="pt"
        )
        return dict(padded)

    return Examples(features, collate)
