"""What tasks with classes share: which there are, in whose order, and whether all were seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from headprune.tasks.labels import Labels
from headprune.tasks.task import Examples, Task
from headprune.types import Config


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
