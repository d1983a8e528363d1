"""Whether a difference is one: bootstrap, paired tests, corrections for many tests, correlations.

Arrays in, numbers out. All tests are paired: the two arrays hold outcomes of the same examples, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as scipy_stats

from headprune.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float
    level: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise DataError(f"The level is {self.level}; expected a share between 0 and 1, such as 0.95.")


@dataclass(frozen=True)
class PairedResult:
    """A paired comparison of two systems."""

    difference: float  # second minus first
    p_value: float  # two-sided
    interval: Interval | None = None
    method: str = ""


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    statistic: Callable[[Any], float] | None = None,
    resamples: int = 1000,
    share: float = 1.0,
    seed: int = 0,
    level: float = 0.95,
) -> PairedResult:
    """Resample examples with replacement, the same ones for both systems, and compare a corpus statistic.

    `first` and `second` hold one row per example; `statistic` maps rows to a number (default: the mean). `share=0.5`
    with 1000 resamples is what Michel et al. used through compare-mt; drawing n of n is the usual bootstrap, and the
    default. The p-value is twice the share of resamples in which the system that is better overall does not win
    (ties count half), which is the same for either order of the systems.

    Example:
        >>> found = hp.stats.paired_bootstrap([1, 1, 1, 0, 1, 1], [0, 1, 1, 0, 0, 1])
        >>> round(found.difference, 3)
        -0.333
    """
    a, b = _paired(first, second)
    measure = statistic if statistic is not None else lambda rows: float(np.mean(rows))
    size = max(1, round(share * len(a)))
    generator = np.random.default_rng(seed)
    gaps = np.empty(resamples)
    for index in range(resamples):
        rows = generator.integers(0, len(a), size)
        gaps[index] = measure(b[rows]) - measure(a[rows])
    gap = measure(b) - measure(a)
    better = np.sign(gap) or 1.0
    losses = float(np.mean(better * gaps < 0) + 0.5 * np.mean(gaps == 0))
    low, high = np.quantile(gaps, [(1 - level) / 2, (1 + level) / 2])
    interval = Interval(gap, float(low), float(high), level)
    return PairedResult(gap, min(1.0, 2 * losses), interval, f"paired bootstrap, {resamples} x {size} of {len(a)}")


def compare_mt_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    statistic: Callable[[Any], float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedResult:
    """The paired bootstrap as compare-mt has it (Neubig et al. 2019), which Michel et al. used.

    Each resample draws half as many examples as there are; p is one minus the share of resamples that the better
    system wins, whichever that is. It is one-sided, and half samples vary more than whole ones: `paired_bootstrap`
    draws all and tests both sides.

    Example:
        >>> found = hp.stats.compare_mt_bootstrap([1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 0, 1])
        >>> found.difference, round(found.p_value, 2)
        (-0.5, 0.14)
    """
    a, b = _paired(first, second)
    measure = statistic if statistic is not None else lambda rows: float(np.mean(rows))
    size = max(1, len(a) // 2)
    generator = np.random.default_rng(seed)
    gaps = np.empty(resamples)
    for index in range(resamples):
        rows = generator.integers(0, len(a), size)
        gaps[index] = measure(b[rows]) - measure(a[rows])
    wins = max(float(np.mean(gaps > 0)), float(np.mean(gaps < 0)))
    low, high = np.quantile(gaps, [0.025, 0.975])
    gap = measure(b) - measure(a)
    interval = Interval(gap, float(low), float(high), 0.95)
    return PairedResult(gap, 1 - wins, interval, f"compare-mt, {resamples} x {size} of {len(a)}")


def paired_t_test(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> PairedResult:
    """Student's t on the differences, example by example.

    Example:
        >>> found = hp.stats.paired_t_test([0.1, 0.4, 0.3], [0.2, 0.6, 0.6])
        >>> round(found.p_value, 3)
        0.074
    """
    a, b = _paired(first, second)
    gaps = b - a
    gap = float(gaps.mean())
    if len(gaps) < 2 or np.ptp(gaps) <= 1e-12 * np.abs(gaps).max():  # no variation: surely different or surely not
        certain = Interval(gap, gap, gap, level)
        return PairedResult(gap, 1.0 if gap == 0 or len(gaps) < 2 else 0.0, certain, "paired t-test")
    result = scipy_stats.ttest_rel(b, a)
    bounds = result.confidence_interval(level)
    interval = Interval(gap, float(bounds.low), float(bounds.high), level)
    return PairedResult(gap, float(result.pvalue), interval, "paired t-test")


def mcnemar(first: ArrayLike, second: ArrayLike) -> PairedResult:
    """Exact test on correct/incorrect outcomes: only examples on which the two disagree count.

    Example:
        >>> hp.stats.mcnemar([1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0]).p_value
        0.125
    """
    a, b = _paired(first, second)
    if not np.isin(np.concatenate([a, b]), (0.0, 1.0)).all():
        raise DataError("McNemar's test needs outcomes of 0 or 1; found other numbers. Use paired_t_test.")
    gained, lost = int(np.sum((b == 1) & (a == 0))), int(np.sum((b == 0) & (a == 1)))
    p_value = float(scipy_stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    return PairedResult(float((b - a).mean()), p_value, None, f"McNemar (exact), {gained} gained, {lost} lost")


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student's t interval of a mean.

    Example:
        >>> found = hp.stats.mean_interval([1.0, 2.0, 3.0])
        >>> round(found.low, 2), round(found.high, 2)
        (-0.48, 4.48)
    """
    array = _array(values)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, float("-inf"), float("inf"), level)
    half = float(scipy_stats.t.ppf((1 + level) / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half, level)


def proportion_interval(hits: int, total: int, *, level: float = 0.95) -> Interval:
    """Wilson's interval of a share.

    Example:
        >>> found = hp.stats.proportion_interval(90, 100)
        >>> round(found.low, 3), round(found.high, 3)
        (0.826, 0.945)
    """
    if total < 1:
        return Interval(0.0, 0.0, 1.0, level)
    bounds = scipy_stats.binomtest(hits, total).proportion_ci(level, method="wilson")
    return Interval(hits / total, float(bounds.low), float(bounds.high), level)


def bootstrap_interval(
    rows: ArrayLike,
    statistic: Callable[[Any], float] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of a statistic of examples.

    Example:
        >>> found = hp.stats.bootstrap_interval([0.0, 1.0, 1.0, 1.0], seed=0)
        >>> 0.0 <= found.low <= found.high <= 1.0
        True
    """
    array = np.asarray(rows)
    measure = statistic if statistic is not None else lambda some: float(np.mean(some))
    generator = np.random.default_rng(seed)
    values = [measure(array[generator.integers(0, len(array), len(array))]) for _ in range(resamples)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(measure(array), float(low), float(high), level)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that hold for all tests at once (family-wise error, Holm 1979).

    Example:
        >>> hp.stats.holm([0.01, 0.04])
        [0.02, 0.04]
    """
    p = _probabilities(p_values)
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(x) for x in adjusted]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that bound the share of false findings (false discovery rate).

    Example:
        >>> hp.stats.benjamini_hochberg([0.01, 0.04])
        [0.02, 0.04]
    """
    p = _probabilities(p_values)
    return [float(x) for x in scipy_stats.false_discovery_control(p, method="bh")] if len(p) else []


@dataclass(frozen=True)
class Correlation:
    """How alike two series of scores are."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    n: int


def correlation(first: ArrayLike, second: ArrayLike) -> Correlation:
    """Pearson's r and Spearman's rho with their p-values.

    Example:
        >>> round(hp.stats.correlation([1.0, 2.0, 3.0], [2.0, 4.1, 5.9]).pearson, 3)
        0.999
    """
    a, b = _paired(first, second)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        raise DataError(f"A correlation needs at least 3 pairs that vary on both sides; found {len(a)} pairs.")
    pearson, spearman = scipy_stats.pearsonr(a, b), scipy_stats.spearmanr(a, b)
    return Correlation(
        float(pearson.statistic), float(pearson.pvalue), float(spearman.statistic), float(spearman.pvalue), len(a)
    )


def p_text(p: float) -> str:
    """A p-value in words: bootstraps of a thousand resamples tell nothing smaller than a thousandth.

    Example:
        >>> hp.stats.p_text(0.0123)
        'p 0.012'
    """
    return f"p {p:.3f}" if p >= 0.001 else "p < 0.001"


def _array(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise DataError("Found no examples: a statistic needs at least one.")
    if not np.isfinite(array).all():
        raise DataError("Found NaN or infinite values among the outcomes. Find out where they come from first.")
    return array


def _paired(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    a, b = _array(first), _array(second)
    if a.shape != b.shape:
        raise DataError(f"Found {len(a)} and {len(b)} outcomes: a paired test needs the same examples on both sides.")
    return a, b


def _probabilities(p_values: Sequence[float]) -> Floats:
    p = np.asarray(p_values, dtype=np.float64)
    if p.size and not ((p >= 0) & (p <= 1)).all():
        raise DataError("Found p-values outside 0 to 1.")
    return p
