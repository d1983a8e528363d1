"""Metrics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import BertConfig

from headprune.errors import DataError
from headprune.tasks import find_task
from headprune.tasks.metrics import metrics


def test_metrics_are_the_usual_ones():
    """By hand and by scipy."""
    rows = np.array([[1.0, 1, 0, 0, 1], [1.0, 0, 0, 1, 1]]).T
    assert metrics["accuracy"].of(rows) == 0.6
    assert metrics["f1"].of(rows) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics["macro-f1"].of(rows) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert metrics["matthews"].of(rows) == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    assert metrics["matthews"].of(np.stack([np.ones(5), rows[:, 1]], axis=1)) == 0.0
    three = np.random.default_rng(1).integers(0, 3, (50, 2)).astype(float)
    for some in (rows, three):
        expected = matthews_corrcoef(some[:, 1].astype(int), some[:, 0].astype(int))
        assert metrics["matthews"].of(some) == pytest.approx(expected)
    assert metrics["f1"].of(rows) == pytest.approx(f1_score(rows[:, 1].astype(int), rows[:, 0].astype(int)))
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    pairs = np.stack([x, y], axis=1)
    assert metrics["pearson"].of(pairs) == pytest.approx(scipy_stats.pearsonr(x, y).statistic)
    assert metrics["spearman"].of(pairs) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert metrics["perplexity"].of(np.array([[2.0, 1.0], [4.0, 2.0]])) == pytest.approx(np.exp(2.0))


def test_accuracy_of_numbers_is_refused():
    """Regression has its own metrics, classes have theirs."""
    with pytest.raises(
        DataError, match="takes prediction and label; an example of stsb has predicted and right number"
    ):
        find_task("stsb", metric="accuracy")
    with pytest.raises(DataError, match="Choose another metric"):
        find_task("mine", text="a").for_model(BertConfig(num_labels=1))
    assert find_task("mine", text="a", metric="spearman").labels.is_regression
