"""Language modelling over a memory: segments in order, each seen with what the layers remember of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from headprune.errors import DataError
from headprune.scoring.context import IGNORED
from headprune.tasks.metrics import TOKEN_LOSSES, Metric, metrics
from headprune.tasks.tables import Source
from headprune.tasks.task import Batch, Examples, Features, Task
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.streams import PLACE, Segments, StreamExamples
from headprune.tasks.text.symbols import numbered, unit_of
from headprune.types import Config, Outputs, Processor

BY_UNIT = replace(metrics["perplexity"])  # stands for a metric that was not chosen: the tokenizer's unit tells


@dataclass(frozen=True, kw_only=True)
class StreamTask(Task):
    """Running text by words or characters. `max_length` is the length of a segment, `batch_size` the number of streams.

    Perplexity of words, bits of characters; every token is asked for once, but for the first of each stream.
    """

    name: str = "stream-lm"
    metric: Metric = field(default_factory=lambda: BY_UNIT)
    outcomes: ClassVar[str] = TOKEN_LOSSES
    model_class: ClassVar[str] = "AutoModelForCausalLM"

    @property
    def carries(self) -> bool:
        return True

    def for_processor(self, processor: Processor, config: Config) -> Task:
        """With perplexity for words and bits for characters, unless another metric was chosen."""
        unit = unit_of(processor)
        if config is not None and getattr(config, "memory_length", None) is None:
            raise DataError(
                f"A model of type {getattr(config, 'model_type', '?')} has no memory to carry from segment to segment. "
                "Use --task causal-lm, which takes every example by itself."
            )
        if config is not None and config.vocab_size != len(processor):
            raise DataError(f"The model has {config.vocab_size} symbols, its tokenizer {len(processor)}.")
        if self.metric is not BY_UNIT:
            return self
        return replace(self, metric=metrics["perplexity" if unit == "words" else "bits-per-character"])

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        text = read_part(source, split, unit_of(processor))
        tokens = numbered(text, processor, f"The part '{split}' of {source}")
        if len(tokens) < max_length + 1:
            raise DataError(
                f"The part '{split}' of {source} has {len(tokens)} tokens: shorter than one segment of {max_length} "
                "and the token after it. Give more text, or a smaller --max-length."
            )
        return StreamExamples(Segments(tokens, max_length), _collate)

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The summed loss of each segment's targets, and how many there are."""
        counts = (batch["labels"][:, 1:] != IGNORED).sum(1)
        return torch.stack([outputs.losses.double().sum(1), counts.double()], dim=1)  # (batch, 2)

    def answering(self, model: nn.Module) -> Callable[[Batch], Any]:
        """Carries the memory from a batch to the next as long as every row goes on where it stopped."""
        memory, ends = None, None

        def answer(batch: Batch) -> Any:
            nonlocal memory, ends
            places, length = batch[PLACE], batch["input_ids"].shape[1] - 1
            outputs = model(
                input_ids=batch["input_ids"][:, :-1],
                shift_labels=batch["labels"][:, 1:],
                past_key_values=memory if places == ends else None,
                use_cache=True,
            )
            memory = outputs.past_key_values
            ends = [(stream, start + length) for stream, start in places]
            outputs.loss = None  # of the batch: rows are told by `losses`
            return outputs

        return answer


def _collate(rows: list[Features]) -> dict[str, Any]:
    """Segments of one batch have one length, unless they were picked one by one: then the end of a text is padded."""
    longest = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": 0, "labels": IGNORED}
    tensors: Mapping[str, Any] = {
        name: torch.tensor(
            np.stack([np.pad(row[name], (0, longest - len(row[name])), constant_values=fill) for row in rows])
        )
        for name, fill in fills.items()
    }
    return {**tensors, PLACE: [tuple(row[PLACE]) for row in rows]}
