"""Text classification and regression, one or two sentences: GLUE by name, or the user's own files by columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from headprune.tasks.metrics import CLASSES, NUMBERS, metrics
from headprune.tasks.tables import SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, LabelledTask, Labels, check_classes
from headprune.types import Outputs, Processor, Tokenizer

Column = tuple[str | int, ...]  # names that a column has in different copies of a data set, or its number


@dataclass(frozen=True, kw_only=True)
class TextTask(LabelledTask):
    """What the columns are called, and which classes there are."""

    first: Column
    second: Column | None = None
    label: Column = ("label",)
    labels: Labels = field(default_factory=Labels)
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPLITS)
    model_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def row_kind(self) -> str:
        return NUMBERS if self.labels.is_regression else CLASSES

    def texts(self, source: Source, split: str) -> tuple[list[str], list[str] | None, list[float]]:
        """The examples as they stand in the data: first and second text, label."""
        columns = [*self.first, *(self.second or ()), *self.label]
        table = source.table(self.splits.get(split, (split,)), [name for name in columns if isinstance(name, str)])
        first = [str(text) for text in table.column(*self.first)]
        second = [str(text) for text in table.column(*self.second)] if self.second is not None else None
        labels = [
            self.labels.number(value, f"{table.path}, example {row}")
            for row, value in enumerate(table.column(*self.label), 1)
        ]
        return first, second, labels

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        first, second, labels = self.texts(source, split)
        encoded = processor(first, second, truncation=True, max_length=max_length)
        rows = [
            {**{name: values[row] for name, values in encoded.items()}, "labels": label}
            for row, label in enumerate(labels)
        ]
        return Examples(rows, _Collator(processor, torch.float32 if self.labels.is_regression else torch.long))

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        return predictions_and_labels(outputs, batch)

    def learned_from(self, source: Source, split: str = "train") -> TextTask:
        if self.labels.count:
            return self
        table = source.table(self.splits.get(split, (split,)), [name for name in self.label if isinstance(name, str)])
        return replace(self, labels=self.labels.learned(table.column(*self.label), str(table.path)))

    def check_training(self, examples: Examples) -> None:
        super().check_training(examples)
        check_classes(self.labels, examples)


@dataclass(frozen=True)
class _Collator:
    tokenizer: Tokenizer
    dtype: torch.dtype

    def __call__(self, rows: list[Features]) -> dict[str, Tensor]:
        inputs = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        labels = torch.tensor([row["labels"] for row in rows], dtype=self.dtype)
        return {**self.tokenizer.pad(inputs, return_tensors="pt"), "labels": labels}


def predictions_and_labels(outputs: Outputs, batch: Batch) -> Tensor:
    """The likeliest class (or the number) of each example, and the right one."""
    logits = outputs.logits.float()
    guess = logits[:, 0] if logits.shape[1] == 1 else logits.argmax(1).float()
    return torch.stack([guess, batch["labels"].float()], dim=1)  # (batch, 2)


_MNLI_SPLITS = {
    "train": ("train",),
    "dev": ("dev_matched", "validation_matched", "dev"),
    "dev-mm": ("dev_mismatched", "validation_mismatched"),
}
_COLA_SPLITS = {
    "train": ("in_domain_train", "train"),
    "dev": ("in_domain_dev", "dev", "validation"),
    "dev-out": ("out_of_domain_dev",),
}
_NLI = Labels(3, ("entailment", "neutral", "contradiction"))
_ENTAILS = Labels(2, ("entailment", "not_entailment"))


def _task(name: str, metric: str, **more: Any) -> TextTask:
    return TextTask(name=name, metric=metrics[metric], **more)


GLUE = {
    task.name: task
    for task in (
        _task("sst2", "accuracy", first=("sentence", 0), label=("label", 1)),
        _task("cola", "matthews", first=("sentence", 3), label=("label", 1), splits=_COLA_SPLITS),
        _task("mrpc", "f1", first=("#1 String", "sentence1"), second=("#2 String", "sentence2"),
              label=("Quality", "label")),
        _task("mnli", "accuracy", first=("sentence1", "premise"), second=("sentence2", "hypothesis"),
              label=("gold_label", "label"), labels=_NLI, splits=_MNLI_SPLITS),
        _task("qqp", "accuracy", first=("question1",), second=("question2",), label=("is_duplicate", "label")),
        _task("qnli", "accuracy", first=("question",), second=("sentence",), labels=_ENTAILS),
        _task("rte", "accuracy", first=("sentence1",), second=("sentence2",), labels=_ENTAILS),
        _task("stsb", "pearson", first=("sentence1",), second=("sentence2",), label=("score", "label"),
              labels=Labels(1)),
    )
}  # fmt: skip
