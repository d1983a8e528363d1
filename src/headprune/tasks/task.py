"""What a task is: examples in, batches, what every example gets, one score out; and what tasks with classes share."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headprune.errors import DataError
from headprune.heads import HeadMap, HeadMask
from headprune.masking import EmptySite, masked
from headprune.registry import hint
from headprune.scoring.context import ROW, ExampleLoss, evaluation, model_inputs, on_device
from headprune.stats import Interval, bootstrap_interval
from headprune.tasks.metrics import CLASSES, Metric, correct
from headprune.tasks.tables import Source
from headprune.types import Config, Outputs, Processor

Features = Mapping[str, Any]  # model inputs and labels of one example, not padded; names with _ are not the model's
Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Examples:
    """Encoded examples, and how several of them become a batch."""

    features: Sequence[Features]
    collate: Callable[[list[Features]], dict[str, Any]]
    left_out: int = 0  # how many a filter took away

    def __len__(self) -> int:
        return len(self.features)

    def subset(self, rows: Sequence[int]) -> Examples:
        return Examples([self.features[row] for row in rows], self.collate, self.left_out)

    def lengths(self) -> list[int]:
        """Tokens of every example: of its input, or of its labels where these are more."""
        return [max(_length(row.get("input_ids")), _length(row.get("labels"))) for row in self.features]

    def sample(self, count: int, seed: int) -> Examples:
        """A random part, the same for the same seed, in the original order."""
        if count >= len(self):
            return self
        return self.subset(sorted(np.random.default_rng(seed).permutation(len(self))[:count].tolist()))

    def batch_count(self, batch_size: int, accumulate: int) -> int:
        """Batches of one epoch of training on one process."""
        return math.ceil(len(self) / batch_size)

    def batches(self, batch_size: int = 32) -> Iterator[dict[str, Any]]:
        """Padded batches of examples of similar length, longest last; `row` says which example is where."""
        order = sorted(range(len(self)), key=lambda row: (len(self.features[row].get("input_ids", ())), row))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield {**self.collate([self.features[row] for row in rows]), ROW: torch.tensor(rows)}


def _length(tokens: object) -> int:
    return len(tokens) if hasattr(tokens, "__len__") else 0


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Data in, batches, metric. A task of another kind is a subclass, registered in `known.py` or by its user."""

    name: str
    metric: Metric
    outcomes: ClassVar[str] = CLASSES  # what the rows of `outcome` hold: the task's metric must take them
    model_class: ClassVar[str]  # the Auto class of models that do the task
    processor_class: ClassVar[str] = "AutoTokenizer"
    takes_words: ClassVar[bool] = False  # whether texts come as lists of words

    def __post_init__(self) -> None:
        if self.metric.rows != self.row_kind():
            raise DataError(
                f"The metric {self.metric.name} takes {self.metric.rows}; an example of {self.name} has "
                f"{self.row_kind()}. Choose another metric with --metric."
            )

    def row_kind(self) -> str:
        return self.outcomes

    @abstractmethod
    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        """The encoded examples of a split."""

    @abstractmethod
    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        """What every example got: one row each."""

    @property
    def carries(self) -> bool:
        """Whether an answer depends on the batches before it (a memory): batches are then taken in order."""
        return False

    @property
    def searches(self) -> bool:
        """Whether an answer takes many forward passes (beam search), so that a single one cannot stand for it."""
        return False

    def answer(self, model: nn.Module, inputs: Batch) -> Any:
        """The model's answer to a batch."""
        return model(**inputs)

    def answering(self, model: nn.Module) -> Callable[[Batch], Any]:
        """What answers batch after batch of one pass through the data."""
        return lambda batch: self.answer(model, model_inputs(batch))

    def settings(self) -> dict[str, object]:
        """What changes the score of the same model on the same data: results tell it, resumed work checks it."""
        return {"task": self.name, "metric": self.metric.name}

    def for_processor(self, processor: Processor, config: Config) -> Task:
        """The task with a model's tokenizer; refused if the two do not belong together."""
        return self

    def written(self, answers: Sequence[tuple[object, Batch]], folder: Path) -> dict[str, Any]:
        """Answers that people may want to read, written to a folder, and what else is to be told about them."""
        return {}

    def for_model(self, config: Config) -> Task:
        """The task as a trained model sees it (its classes and their order); refused if they do not fit."""
        return self

    def ordered_as(self, config: Config) -> Task:
        """The task with its classes in the order that a model has them, if it names the same ones."""
        return self

    def learned_from(self, source: Source, split: str = "train") -> Task:
        """The task with what only its training data tells (its classes)."""
        return self

    def model_options(self) -> dict[str, Any]:
        """What a new model must know (number and names of classes)."""
        return {}

    def training_loss(self, smoothing: float) -> Callable[..., Tensor] | None:
        """A loss for the Trainer in place of the model's own; None where the model's own is right."""
        if smoothing:
            raise DataError(f"Label smoothing is for translation; {self.name} trains with its model's own loss.")
        return None

    def check_training(self, examples: Examples) -> None:
        """Whether there is something to learn."""
        if len(examples) < 2:
            raise DataError(f"Found {len(examples)} training example: fine-tuning needs at least 2.")


@dataclass(frozen=True)
class ScoreSummary:
    """A score with its interval, as results store it."""

    metric: str
    score: float
    interval: tuple[float, float]
    level: float
    examples: int
    loss: float | None  # None where the task has none: beam search


@dataclass(frozen=True)
class Evaluation:
    """A model on examples: its score, and what every example got, so that statistics need no second run."""

    metric: Metric
    score: float
    rows: NDArray[np.float64]  # one per example, in the examples' order
    losses: NDArray[np.float64]

    @property
    def predictions(self) -> NDArray[np.float64]:
        return self.rows[:, 0]

    @property
    def labels(self) -> NDArray[np.float64]:
        return self.rows[:, 1]

    def correct(self) -> NDArray[np.float64]:
        """1.0 where the class is right."""
        return correct(self.rows)

    def interval(self, *, resamples: int = 1000, seed: int = 0) -> Interval:
        return bootstrap_interval(self.rows, self.metric.of, resamples=resamples, seed=seed)

    def summary(self) -> ScoreSummary:
        """What is stored of it."""
        interval, loss = self.interval(), float(self.losses.mean())
        bounds = (interval.low, interval.high)
        return ScoreSummary(
            self.metric.name, self.score, bounds, interval.level, len(self.rows), None if math.isnan(loss) else loss
        )


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    task: Task,
    *,
    mask: HeadMask | None = None,
    heads: HeadMap | None = None,
    empty_site: EmptySite = "bias",
    keep: Callable[[Outputs, Batch], None] = lambda outputs, batch: None,
) -> Evaluation:
    """Score a model, with only the heads of `mask` on if one is given. `keep` sees every answer with its batch."""
    device = next(model.parameters()).device
    example_loss, answer = ExampleLoss(), task.answering(model)
    places, rows, losses = [], [], []
    with (
        evaluation(model),
        torch.inference_mode(),
        masked(model, mask, heads=heads, empty_site=empty_site) if mask is not None else nullcontext(),
    ):
        for batch in batches:
            moved = on_device(batch, device)
            inputs = model_inputs(moved)
            outputs = answer(moved)
            rows.append(task.outcome(outputs, moved).double().cpu())
            losses.append(_losses(example_loss, outputs, inputs))
            keep(outputs, batch)
            places.append(batch[ROW])
    if not places:
        raise DataError("There is nothing to evaluate on: no batch was given.")
    order = torch.cat(places).argsort()
    found, loss = (torch.cat(parts)[order].numpy() for parts in (rows, losses))
    return Evaluation(task.metric, task.metric.of(found), found, loss)


def _losses(example_loss: ExampleLoss, outputs: Outputs, inputs: Batch) -> Tensor:
    if getattr(outputs, "loss", None) is None:  # the task asks for more than one forward pass: there is no loss
        return torch.full((len(next(iter(inputs.values()))),), torch.nan, dtype=torch.float64)
    return example_loss(outputs, inputs).double().cpu()


MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Labels:
    """The classes of a task; `count` 1 is a number to predict, 0 is not known yet."""

    count: int = 2
    names: tuple[str, ...] = ()  # in the order of the data's numbers, where classes have names
    model_names: tuple[str, ...] = ()  # in the order of the model's, if it orders the same names otherwise

    @property
    def is_regression(self) -> bool:
        return self.count == 1

    def number(self, value: object, where: str) -> float:
        """The model's number for a label as it stands in the data."""
        text = str(value).strip()
        found = self._index(text)
        if found is None:
            untuned = (
                f"The labels are text, and the model has {self.count} classes without names: it was not trained on "
                "them. Fine-tune it first (headprune finetune), or write the labels as numbers from 0."
            )
            known = hint(text, self.names) if self.names else "Expected a number." if self.is_regression else untuned
            raise DataError(f"{where}: the label is '{text}'. {known}")
        if not self.is_regression and (found != int(found) or not 0 <= found < self.count):
            raise DataError(f"{where}: the label is {text}; there are classes 0 to {self.count - 1}.")
        return float(self.model_names.index(self.names[int(found)])) if self.model_names else found

    def _index(self, text: str) -> float | None:
        if text in self.names:
            return float(self.names.index(text))
        number = _number(text)
        called = [_number(name) for name in self.names]
        if called and None not in called:  # classes called 1 to 5 are not numbered so; 1.0 is 1
            return float(called.index(number)) if number in called else None
        return number

    def learned(self, values: Sequence[object], where: str) -> Labels:
        """The classes that training data has, if they are not known yet."""
        if self.count:
            return self
        texts = sorted({str(value).strip() for value in values})
        try:
            numbers = [float(text) for text in texts]
        except ValueError:
            return Labels(len(texts), tuple(texts))
        if any(not math.isfinite(number) or number != int(number) or number < 0 for number in numbers):
            raise DataError(
                f"{where}: labels such as {texts[0]} are not classes 0, 1, 2 …; to predict numbers, ask for "
                "--metric pearson or spearman."
            )
        if max(numbers) >= MOST_CLASSES:
            raise DataError(f"{where}: the class {max(numbers):g} is too large; expected classes 0, 1, 2 ….")
        if set(numbers) != set(range(len(numbers))) and len(set(numbers)) == len(texts):
            return Labels(len(texts), tuple(sorted(texts, key=float)))  # stars from 1 to 5: names, not places
        return Labels(int(max(numbers)) + 1)

    def for_model(self, config: Config, task: str) -> Labels:
        """The same classes in the model's order. Hub models of one task do not agree on it, but they name them."""
        count = int(getattr(config, "num_labels", 0) or 0)
        if self.count and count != self.count:
            found = f"tells {count} classes apart" if count > 1 else "predicts a number"
            wanted = f"has {self.count} classes" if self.count > 1 else "asks for a number"
            raise DataError(f"The model {found}, but {task} {wanted}. Fine-tune it for {task} first.")
        return self.ordered_as(config) if self.count else Labels(count, _names(config))

    def ordered_as(self, config: Config) -> Labels:
        """In the model's order if it names the same classes; a head that is trained further must not change places."""
        ours, theirs = {name.lower(): name for name in self.names}, _names(config)
        if ours and len(theirs) == len(ours) and {name.lower() for name in theirs} == set(ours):
            return replace(self, model_names=tuple(ours[name.lower()] for name in theirs))
        return self

    def model_options(self) -> dict[str, Any]:
        names = self.model_names or self.names
        if not names:
            return {"num_labels": self.count}
        label2id = {name: index for index, name in enumerate(names)}
        return {"num_labels": self.count, "id2label": dict(enumerate(names)), "label2id": label2id}

    def check_training(self, found: set[int]) -> None:
        """Every class has to be seen."""
        if self.is_regression:
            return
        if len(found) < 2:
            raise DataError("All training examples have one class: there is nothing to tell apart. Check the labels.")
        if missing := sorted(set(range(self.count)) - found):
            names = ", ".join(self.names[index] if self.names else str(index) for index in missing)
            raise DataError(f"No training example has the class {names}: a model cannot learn what it never sees.")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _names(config: Config) -> tuple[str, ...]:
    """What a model calls its classes; nothing if it only numbers them."""
    named = tuple(str(name) for _, name in sorted((getattr(config, "id2label", None) or {}).items()))
    return () if all(re.fullmatch(r"LABEL_\d+", name) for name in named) else named


@dataclass(frozen=True, kw_only=True)
class LabelledTask(Task):
    """A task whose examples, or parts of them, have classes."""

    labels: Labels = field(default_factory=lambda: Labels(0))

    def for_model(self, config: Config) -> Self:
        return replace(self, labels=self.labels.for_model(config, self.name))

    def ordered_as(self, config: Config) -> Self:
        return replace(self, labels=self.labels.ordered_as(config))

    def model_options(self) -> dict[str, Any]:
        return self.labels.model_options()


def check_classes(labels: Labels, examples: Examples) -> None:
    """Every class of one-label examples has to be seen in training."""
    labels.check_training({int(row["labels"]) for row in examples.features})
