"""Any other Auto head with labels: JSON lines that hold the model's own inputs, already encoded."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from headprune.errors import DataError
from headprune.scoring.context import IGNORED, ExampleLoss
from headprune.tasks.metrics import LOSSES, Metric, metrics
from headprune.tasks.tables import SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, Task
from headprune.types import Config, Outputs, Processor

LARGEST = 1 << 30  # numbers of one input of a batch, with padding


@dataclass(frozen=True, kw_only=True)
class EncodedTask(Task):
    """Each row names inputs of the model's forward (`input_ids`, …, `labels`); the metric is the model's own loss.

    For heads that no other task covers (multiple choice, several labels, audio): encode the data as for training.
    """

    name: str = "encoded"
    metric: Metric = field(default_factory=lambda: metrics["loss"])
    padding: int = 0  # the model's padding token
    loss: ExampleLoss = field(default_factory=ExampleLoss, compare=False, repr=False)
    outcomes: ClassVar[str] = LOSSES
    model_class: ClassVar[str] = "AutoModel"
    processor_class: ClassVar[str] = ""

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        table = source.table(SPLITS.get(split, (split,)))
        if table.names is None:
            raise DataError(f"{table.path} does not name its columns. Expected JSON lines with the model's inputs.")
        rows: list[Features] = []
        for number, row in enumerate(table.rows, 1):
            try:
                rows.append({name: torch.as_tensor(value) for name, value in zip(table.names, row, strict=True)})
            except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
                raise DataError(f"{table.path}, example {number}: a value is not an array ({error}).") from error
            for name, value in rows[-1].items():
                if value.dim() != rows[0][name].dim() or (name == "input_ids" and not value.dim()):
                    raise DataError(
                        f"{table.path}, example {number}: '{name}' has {value.dim()} dimensions; expected "
                        f"{rows[0][name].dim() or 1}, the same in every example."
                    )
        return Examples(rows, functools.partial(_collate, padding=self.padding))

    def ordered_as(self, config: Config) -> EncodedTask:
        return self.for_model(config)

    def for_model(self, config: Config) -> EncodedTask:
        return replace(self, padding=getattr(config, "pad_token_id", None) or 0, loss=ExampleLoss())

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self.loss(outputs, batch)[:, None]  # (batch, 1)


def _collate(rows: list[Features], padding: int) -> dict[str, Tensor]:
    """Padded on the right in every dimension: tokens with the model's padding, labels with -100, others with zeros.

    An attention mask is added where lengths differ and the rows have none, or padding would be read as text.
    """
    if "input_ids" in rows[0] and "attention_mask" not in rows[0] and len({row["input_ids"].shape for row in rows}) > 1:
        rows = [{**row, "attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    fills = {"input_ids": padding, "labels": IGNORED}
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        shape = [max(value.shape[axis] for value in values) for axis in range(values[0].dim())]
        if len(rows) * math.prod(shape) > LARGEST:
            raise DataError(f"'{name}' of a batch would be padded to {len(rows)} x {shape} numbers: too many.")
        fill = fills.get(name, 0) if not values[0].is_floating_point() else 0
        padded = values[0].new_full((len(rows), *shape), fill)
        for place, value in enumerate(values):
            padded[(place, *(slice(size) for size in value.shape))] = value
        batch[name] = padded
    return batch
