"""Text classification and regression, one or two sentences: GLUE by name, or the user's own files by columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headprune.errors import DataError
from headprune.heads import HeadMap, HeadMask
from headprune.masking import masked
from headprune.registry import hint
from headprune.stats import Interval, bootstrap_interval
from headprune.tasks.metrics import metrics
from headprune.tasks.tables import read_table

Column = tuple[str | int, ...]  # names that a column has in different copies of a data set, or its number


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Where the examples are, what their columns are called, and what counts as good."""

    name: str
    metric: str
    first: Column
    second: Column | None = None
    label: Column = ("label",)
    classes: tuple[str, ...] = ()  # class names in order, where labels are words
    num_labels: int = 2
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # split -> file names, without their kind

    @property
    def is_regression(self) -> bool:
        return self.num_labels == 1

    def load(self, folder: Path, split: str) -> Examples:
        """The examples of a split of the task's folder."""
        names = self.splits.get(split, (split,))
        for name in names:
            for kind in (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz"):
                if (folder / f"{name}{kind}").exists():
                    return self.read(folder / f"{name}{kind}")
        raise DataError(
            f"No file for the split '{split}' of {self.name} in '{folder}'. Expected one of "
            f"{', '.join(names)} as .tsv, .csv or .jsonl. Give the folder with --data-dir or HEADPRUNE_DATA."
        )

    def read(self, path: Path) -> Examples:
        """The examples of one file."""
        columns = [*self.first, *(self.second or ()), *self.label]
        table = read_table(path, [name for name in columns if isinstance(name, str)])
        labels = [self._label(value, path, row) for row, value in enumerate(table.column(*self.label))]
        first = [str(text) for text in table.column(*self.first)]
        second = [str(text) for text in table.column(*self.second)] if self.second is not None else None
        return Examples(first, second, labels)

    def _label(self, value: Any, path: Path, row: int) -> float:
        text = str(value).strip()
        if text in self.classes:
            return float(self.classes.index(text))
        try:
            number = float(text)
        except ValueError:
            known = hint(text, self.classes) if self.classes else "Expected a number."
            raise DataError(f"{path}, example {row + 1}: the label is '{text}'. {known}") from None
        if not self.is_regression and (number != int(number) or not 0 <= number < self.num_labels):
            raise DataError(
                f"{path}, example {row + 1}: the label is {text}; {self.name} has classes 0 to {self.num_labels - 1}."
            )
        return number


@dataclass(frozen=True)
class Examples:
    """Texts with labels."""

    first: Sequence[str]
    second: Sequence[str] | None
    labels: Sequence[float]

    def __len__(self) -> int:
        return len(self.first)

    def subset(self, rows: Sequence[int]) -> Examples:
        second = None if self.second is None else [self.second[i] for i in rows]
        return Examples([self.first[i] for i in rows], second, [self.labels[i] for i in rows])

    def sample(self, count: int, seed: int) -> Examples:
        """A random part, the same for the same seed, in the original order."""
        if count >= len(self):
            return self
        return self.subset(sorted(np.random.default_rng(seed).permutation(len(self))[:count].tolist()))

    def batches(
        self, tokenizer: Any, *, batch_size: int = 32, max_length: int = 128, is_regression: bool = False
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Padded batches of examples of similar length, longest last; `row` says which example is where."""
        encoded = tokenizer(list(self.first), None if self.second is None else list(self.second), truncation=True,
                            max_length=max_length)  # fmt: skip
        order = sorted(range(len(self)), key=lambda row: (len(encoded["input_ids"][row]), row))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenizer.pad({name: [encoded[name][row] for row in rows] for name in encoded}, return_tensors="pt")
            dtype = torch.float32 if is_regression else torch.long
            labels = torch.tensor([self.labels[row] for row in rows], dtype=dtype)
            yield {**batch, "labels": labels, "row": torch.tensor(rows)}


@dataclass(frozen=True)
class Evaluation:
    """A model on examples: its score, and what every example got, so that statistics need no second run."""

    metric: str
    score: float
    predictions: NDArray[np.float64]  # a class or a number per example, in the examples' order
    labels: NDArray[np.float64]
    losses: NDArray[np.float64]

    def correct(self) -> NDArray[np.float64]:
        """1.0 where the class is right."""
        right: NDArray[np.float64] = (self.predictions == self.labels).astype(np.float64)
        return right

    def rows(self) -> NDArray[np.float64]:
        """Prediction and label side by side: what `statistic` turns into the score."""
        return np.stack([self.predictions, self.labels], axis=1)

    def interval(self, *, resamples: int = 1000, seed: int = 0) -> Interval:
        return bootstrap_interval(self.rows(), statistic_of(self.metric), resamples=resamples, seed=seed)


def statistic_of(metric: str) -> Any:
    """The metric as a function of rows of prediction and label."""
    function = metrics[metric]
    return lambda rows: function(rows[:, 0], rows[:, 1])


def evaluate(
    model: nn.Module,
    batches: Sequence[Mapping[str, torch.Tensor]],
    metric: str,
    *,
    mask: HeadMask | None = None,
    heads: HeadMap | None = None,
) -> Evaluation:
    """Score a classifier, with only the heads of `mask` on if one is given."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    places, predictions, labels, losses = [], [], [], []
    with torch.inference_mode(), masked(model, mask, heads=heads) if mask is not None else nullcontext():
        for batch in batches:
            inputs = {k: v.to(device) for k, v in batch.items() if k not in ("labels", "row")}
            logits = model(**inputs).logits.float().cpu()
            predictions.append(logits[:, 0] if logits.shape[1] == 1 else logits.argmax(1).float())
            losses.append(_losses(logits, batch["labels"]))
            labels.append(batch["labels"].float())
            places.append(batch["row"])
    model.train(was_training)
    if not places:
        raise DataError("There is nothing to evaluate on: no batch was given.")
    order = torch.cat(places).argsort()
    found, truth, loss = (torch.cat(parts)[order].double().numpy() for parts in (predictions, labels, losses))
    if not np.isfinite(loss).all():
        raise DataError(f"The loss of example {int(np.argmin(np.isfinite(loss)))} is not finite: the model gives NaN.")
    return Evaluation(metric, metrics[metric](found, truth), found, truth, loss)


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if logits.shape[1] == 1:
        return (logits[:, 0] - labels.float()).square()
    return nn.functional.cross_entropy(logits, labels, reduction="none")


_PAIR_SPLITS = {"train": ("train",), "dev": ("dev", "val", "validation"), "test": ("test",)}
_MNLI_SPLITS = {
    "train": ("train",),
    "dev": ("dev_matched", "validation_matched", "dev"),
    "dev-mm": ("dev_mismatched", "validation_mismatched"),
}
_COLA_SPLITS = {
    "train": ("in_domain_train", "train"),
    "dev": ("in_domain_dev", "dev"),
    "dev-out": ("out_of_domain_dev",),
}
_NLI = ("entailment", "neutral", "contradiction")

_TASKS = {
    task.name: task
    for task in (
        TextTask(name="sst2", metric="accuracy", first=("sentence", 0), label=("label", 1), splits=_PAIR_SPLITS),
        TextTask(name="cola", metric="matthews", first=("sentence", 3), label=("label", 1), splits=_COLA_SPLITS),
        TextTask(name="mrpc", metric="f1", first=("#1 String", "sentence1"), second=("#2 String", "sentence2"),
                 label=("Quality", "label"), splits=_PAIR_SPLITS),
        TextTask(name="mnli", metric="accuracy", first=("sentence1", "premise"), second=("sentence2", "hypothesis"),
                 label=("gold_label", "label"), classes=_NLI, num_labels=3, splits=_MNLI_SPLITS),
        TextTask(name="qqp", metric="accuracy", first=("question1",), second=("question2",),
                 label=("is_duplicate", "label"), splits=_PAIR_SPLITS),
        TextTask(name="qnli", metric="accuracy", first=("question",), second=("sentence",), label=("label",),
                 classes=("entailment", "not_entailment"), splits=_PAIR_SPLITS),
        TextTask(name="rte", metric="accuracy", first=("sentence1",), second=("sentence2",), label=("label",),
                 classes=("entailment", "not_entailment"), splits=_PAIR_SPLITS),
        TextTask(name="stsb", metric="pearson", first=("sentence1",), second=("sentence2",),
                 label=("score", "label"), num_labels=1, splits=_PAIR_SPLITS),
    )
}  # fmt: skip


def task_names() -> list[str]:
    return sorted(_TASKS)


def find_task(
    name: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    metric: str | None = None,
    num_labels: int | None = None,
) -> TextTask:
    """A task by its GLUE name, or any other name with its columns; what is given overrides what is known."""
    known = _TASKS.get(name)
    if known is None and text is None:
        raise DataError(f"No task called '{name}'. {hint(name, _TASKS)} For your own data, name the text column.")
    task = known or TextTask(name=name, metric="accuracy", first=(), splits=_PAIR_SPLITS)
    return replace(
        task,
        first=_column(text) if text is not None else task.first,
        second=_column(pair) if pair is not None else task.second,
        label=_column(label) if label is not None else task.label,
        metric=metric or task.metric,
        num_labels=num_labels or task.num_labels,
    )


def _column(text: str) -> Column:
    """`3` is a column number, anything else a name."""
    return (int(text),) if text.isdecimal() else (text,)
