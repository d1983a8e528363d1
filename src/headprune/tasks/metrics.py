"""Metrics: what every example got, as rows, to one number.

What a row holds depends on the kind of task: prediction and label for classifiers, loss and tokens for language
models, and so on; a metric says which rows it takes, so that it is not asked about others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headprune.errors import MissingExtraError
from headprune.registry import Registry

Floats = NDArray[np.float64]

CLASSES = "prediction and label"
NUMBERS = "predicted and right number"
TOKEN_LOSSES = "loss and tokens"
TAGS = "right tags, tags, right spans, spans found, spans there"
ANSWERS = "exact answer, F1 of the answer"
LOSSES = "loss"


@dataclass(frozen=True)
class Metric:
    """A name, the function of rows, and how to read the number."""

    name: str
    of: Callable[[Floats], float]
    rows: str = CLASSES
    larger_is_better: bool = True
    point: float = 0.01  # how much of the score people call one point

    def gain(self, before: float, after: float) -> float:
        """How much better `after` is, in the metric's own unit; negative if it is worse."""
        return after - before if self.larger_is_better else before - after


metrics: Registry[Metric] = Registry("metric")


def metric_called(name: str) -> Metric:
    """How to read a stored metric; of one that is not known here, larger counts as better."""
    return metrics[name] if name in metrics else Metric(name, lambda rows: float("nan"))


def _add(name: str, **more: Any) -> Callable[[Callable[[Floats], float]], Metric]:
    def register(function: Callable[[Floats], float]) -> Metric:
        return metrics.add(name)(Metric(name, function, **more))

    return register


def _sklearn() -> Any:
    try:
        import sklearn.metrics
    except ImportError as error:
        raise MissingExtraError("Metrics need scikit-learn: pip install 'headprune[tasks]'.") from error
    return sklearn.metrics


def correct(rows: Floats) -> Floats:
    """1.0 where the class is right."""
    right: Floats = (rows[:, 0] == rows[:, 1]).astype(np.float64)
    return right


@_add("accuracy")
def accuracy(rows: Floats) -> float:
    """The share of right classes."""
    return float(correct(rows).mean())


@_add("matthews")
def matthews(rows: Floats) -> float:
    """Matthews correlation (CoLA): 0 for a model that always says the same.

    In numpy, because a bootstrap asks for it a thousand times per head; a test holds it against scikit-learn's.
    """
    classes = rows.astype(int)
    guesses, truths = (np.bincount(classes[:, side], minlength=int(classes.max()) + 1) for side in (0, 1))
    total, right = len(classes), int((classes[:, 0] == classes[:, 1]).sum())
    spread = (total**2 - int(guesses @ guesses)) * (total**2 - int(truths @ truths))
    return float((right * total - int(guesses @ truths)) / np.sqrt(spread)) if spread else 0.0


@_add("f1")
def f1(rows: Floats) -> float:
    """F1 of class 1 (MRPC, QQP)."""
    guess, truth = rows[:, 0] == 1, rows[:, 1] == 1
    return _f1(float((guess & truth).sum()), float(guess.sum()), float(truth.sum()))


@_add("macro-f1")
def macro_f1(rows: Floats) -> float:
    """The mean F1 of all classes."""
    classes = rows.astype(int)
    return float(_sklearn().f1_score(classes[:, 1], classes[:, 0], average="macro", zero_division=0))


@_add("pearson", rows=NUMBERS)
def pearson(rows: Floats) -> float:
    """Pearson correlation (STS-B); 0 where one side does not vary."""
    if np.ptp(rows[:, 0]) == 0 or np.ptp(rows[:, 1]) == 0:
        return 0.0
    return float(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1])


@_add("spearman", rows=NUMBERS)
def spearman(rows: Floats) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import rankdata

    return pearson.of(np.stack([rankdata(rows[:, 0]), rankdata(rows[:, 1])], axis=1))


@_add("perplexity", rows=TOKEN_LOSSES, larger_is_better=False, point=1.0)
def perplexity(rows: Floats) -> float:
    """exp of the mean loss of a token."""
    return float(np.exp(rows[:, 0].sum() / max(1.0, rows[:, 1].sum())))


@_add("bits-per-character", rows=TOKEN_LOSSES, larger_is_better=False)
def bits_per_character(rows: Floats) -> float:
    """The mean loss of a token to the base of 2."""
    return float(rows[:, 0].sum() / max(1.0, rows[:, 1].sum()) / np.log(2))


@_add("token-accuracy", rows=TAGS)
def token_accuracy(rows: Floats) -> float:
    """The share of right tags."""
    return float(rows[:, 0].sum() / max(1.0, rows[:, 1].sum()))


@_add("span-f1", rows=TAGS)
def span_f1(rows: Floats) -> float:
    """F1 of whole spans (B-, I- tags): a span counts if its kind and both its ends are right."""
    return _f1(*rows[:, 2:].sum(0).tolist())


@_add("exact-match", rows=ANSWERS)
def exact_match(rows: Floats) -> float:
    """The share of answers that are word for word one of the right ones."""
    return float(rows[:, 0].mean())


@_add("answer-f1", rows=ANSWERS)
def answer_f1(rows: Floats) -> float:
    """The mean overlap in words with the nearest right answer (SQuAD)."""
    return float(rows[:, 1].mean())


@_add("loss", rows=LOSSES, larger_is_better=False)
def loss(rows: Floats) -> float:
    """The mean loss of an example."""
    return float(rows.mean())


def _f1(right: float, found: float, there: float) -> float:
    return 2 * right / (found + there) if found + there else 0.0
