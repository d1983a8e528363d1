"""From what a file calls a class to the number that the model has for it; what tasks with classes share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from headprune.errors import DataError
from headprune.registry import hint
from headprune.tasks.task import Examples, Task
from headprune.types import Config

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

    def number(self, value: Any, where: str) -> float:
        """The model's number for a label as it stands in the data."""
        text = str(value).strip()
        found = self._index(text)
        if found is None:
            known = hint(text, self.names) if self.names else "Expected a number."
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

    def learned(self, values: Sequence[Any], where: str) -> Labels:
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
