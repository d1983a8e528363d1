"""A little training after the cut, with the whole model as teacher, and never a worse model than before it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from headprune.checkpoint.training_state import newest_whole
from headprune.scoring.closeness import Closeness
from headprune.scoring.context import ROW, evaluation
from headprune.shrink import Retrained, Shrinker, Shrunk
from headprune.tasks.best_state import BestState
from headprune.tasks.data import TaskData
from headprune.tasks.finetune import finetune
from headprune.tasks.recipe import Recipe
from headprune.tasks.task import Examples


@dataclass(frozen=True)
class Lesson:
    """What a smaller model is trained on: the task's examples, without those that its price is told on."""

    data: TaskData
    examples: Examples  # all that there are to train on
    sample: Examples  # the part that heads and neurons were chosen by

    def without_held(self, shrinker: Shrinker) -> Examples:
        rows = {int(row) for batch in shrinker.whole.batches for row in batch[ROW]}
        held = {id(self.sample.features[row]) for row in rows}
        return self.examples.subset([i for i, one in enumerate(self.examples.features) if id(one) not in held])


def retrain_(
    small: Shrinker, shrunk: Shrunk, teacher: nn.Module, lesson: Lesson, folder: Path, recipe: Recipe,
    tell: Callable[[str], None],
) -> Shrunk:  # fmt: skip
    """Train a model that was shrunk; checkpoints in `folder`, from which an interrupted run goes on.

    After every epoch it is compared with the whole model on the held-out examples, and the nearest state stays: that
    may be the one before training, which is said."""
    learner = small.model
    examples = lesson.without_held(small)
    untrained = shrunk.price[1]

    def distance(model: nn.Module) -> float:
        with torch.inference_mode(False), evaluation(model):
            return _distance(small.whole.closeness_now())

    best = BestState(folder, distance, goes_on=folder.is_dir() and newest_whole(folder) is not None)

    def look(model: nn.Module) -> dict[str, float]:
        found = dict(best.look(model))
        tell(f"trained on {len(examples)} examples: {_word(untrained)} {found['distance']:.4f} to the whole model")
        return found

    best.look(learner)
    finetune(
        learner, lesson.data.processor, lesson.data.task, examples, folder, recipe,
        teacher=copy.deepcopy(teacher), validate=look, quiet=True, force=True,
    )  # fmt: skip
    best.restore_(learner)
    with torch.inference_mode(False), evaluation(learner):
        price = small.whole.closeness_now()
    done = Retrained(
        epochs=recipe.epochs, examples=len(examples), untrained=untrained,
        helped=_distance(price) < _distance(untrained) * (1 - 1e-6),
    )  # fmt: skip
    return replace(shrunk, price=(shrunk.price[0], price), training=done)


def _distance(close: Closeness) -> float:
    found = close.kl if close.kl is not None else close.distance
    assert found is not None, "answers are decisions or states"
    return found


def _word(close: Closeness) -> str:
    return "KL" if close.kl is not None else "squared error"
