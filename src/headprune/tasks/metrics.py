"""Metrics as GLUE has them: predictions and labels to one number, larger is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headprune.errors import MissingExtraError
from headprune.registry import Registry

Floats = NDArray[np.float64]
metrics: Registry[Callable[[Floats, Floats], float]] = Registry("metric")


def _sklearn() -> Any:
    try:
        import sklearn.metrics
    except ImportError as error:
        raise MissingExtraError("Metrics need scikit-learn: pip install 'headprune[tasks]'.") from error
    return sklearn.metrics


@metrics.add("accuracy")
def accuracy(predictions: Floats, labels: Floats) -> float:
    """The share of right classes."""
    return float(np.mean(predictions == labels))


@metrics.add("matthews")
def matthews(predictions: Floats, labels: Floats) -> float:
    """Matthews correlation (CoLA): 0 for a model that always says the same."""
    return float(_sklearn().matthews_corrcoef(labels.astype(int), predictions.astype(int)))


@metrics.add("f1")
def f1(predictions: Floats, labels: Floats) -> float:
    """F1 of class 1 (MRPC, QQP)."""
    return float(_sklearn().f1_score(labels.astype(int), predictions.astype(int), zero_division=0))


@metrics.add("pearson")
def pearson(predictions: Floats, labels: Floats) -> float:
    """Pearson correlation (STS-B); 0 where one side does not vary."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(np.corrcoef(predictions, labels)[0, 1])


@metrics.add("spearman")
def spearman(predictions: Floats, labels: Floats) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import rankdata

    return pearson(rankdata(predictions), rankdata(labels))
