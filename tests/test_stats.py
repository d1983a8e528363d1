"""Statistics agree with scipy or with a closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import headprune as hp
from headprune import stats
from headprune.errors import DataError

A = np.random.default_rng(0).normal(size=200)
B = A + np.random.default_rng(1).normal(0.2, 1.0, size=200)


def test_the_t_test_is_scipys_paired_one():
    """Second minus first, two-sided, with its interval."""
    ours, theirs = stats.paired_t_test(A, B), scipy_stats.ttest_rel(B, A)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert ours.difference == pytest.approx((B - A).mean())
    assert (ours.interval.low, ours.interval.high) == pytest.approx(tuple(theirs.confidence_interval()))


def test_mcnemar_is_the_exact_binomial_test():
    """Only disagreements count: 9 gained and 1 lost gives 2 x 11 / 1024."""
    first = [0] * 9 + [1] + [1] * 50
    second = [1] * 9 + [0] + [1] * 50
    assert stats.mcnemar(first, second).p_value == pytest.approx(2 * 11 / 1024)
    assert stats.mcnemar(first, first).p_value == 1.0
    with pytest.raises(DataError, match="0 or 1"):
        stats.mcnemar([0.5], [1])


def test_the_bootstrap_is_symmetric():
    """Swapping the systems changes the sign of the difference and nothing else."""
    one, other = stats.paired_bootstrap(A, B, seed=3), stats.paired_bootstrap(B, A, seed=3)
    assert one.p_value == other.p_value
    assert one.difference == -other.difference
    assert (one.interval.low, one.interval.high) == pytest.approx((-other.interval.high, -other.interval.low))


def test_the_bootstrap_interval_is_near_the_t_interval():
    """For a mean of many examples the two agree."""
    boot, exact = stats.paired_bootstrap(A, B, resamples=4000).interval, stats.paired_t_test(A, B).interval
    assert (boot.low, boot.high) == pytest.approx((exact.low, exact.high), abs=0.02)


def test_the_papers_bootstrap_draws_half_of_the_examples():
    """Half as many examples, an interval wider by about the square root of two."""
    half, whole = (stats.paired_bootstrap(A, B, share=s, resamples=4000).interval for s in (0.5, 1.0))
    assert (half.high - half.low) / (whole.high - whole.low) == pytest.approx(2**0.5, rel=0.1)
    assert "1000 x 100 of 200" in stats.paired_bootstrap(A, B, share=0.5).method


def test_any_corpus_statistic_can_be_resampled():
    """Rows may be vectors; here a ratio of sums, as in BLEU."""
    rows = np.stack([np.ones(50), np.full(50, 2.0)], axis=1)
    better = rows * [1.5, 1.0]
    result = stats.paired_bootstrap(rows, better, statistic=lambda r: float(r[:, 0].sum() / r[:, 1].sum()))
    assert result.difference == pytest.approx(0.25)
    assert result.p_value == 0.0


def test_equal_systems_do_not_differ():
    """All ties: p is 1."""
    assert stats.paired_bootstrap(A, A).p_value == 1.0
    assert stats.paired_t_test(A, A).p_value == 1.0


def test_holm_by_hand():
    """0.01 x 4, 0.02 x 3, 0.03 x 2, 0.5: monotone, capped at one."""
    assert stats.holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])


def test_benjamini_hochberg_by_hand():
    """p x n / rank, made monotone from the largest down."""
    assert stats.benjamini_hochberg([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_corrections_never_make_a_finding_stronger(p_values):
    """Raw <= Benjamini-Hochberg <= Holm."""
    for raw, loose, strict in zip(p_values, stats.benjamini_hochberg(p_values), stats.holm(p_values), strict=True):
        assert raw <= loose + 1e-12
        assert loose <= strict + 1e-12


def test_correlations_are_scipys():
    """Pearson and Spearman with p-values."""
    found = stats.correlation(A, B)
    assert found.pearson == pytest.approx(scipy_stats.pearsonr(A, B).statistic)
    assert found.spearman_p == pytest.approx(scipy_stats.spearmanr(A, B).pvalue)
    with pytest.raises(DataError, match="at least 3"):
        stats.correlation([1, 2], [1, 2])


def test_intervals_of_means():
    """Student's t; one example tells nothing about the spread."""
    interval = stats.mean_interval([1.0, 2.0, 3.0])
    assert interval.low == pytest.approx(2 - scipy_stats.t.ppf(0.975, 2) / 3**0.5)
    assert stats.mean_interval([1.0]).high == float("inf")
    boot = stats.bootstrap_interval(A, resamples=2000)
    exact = stats.mean_interval(A)
    assert (boot.low, boot.high) == pytest.approx((exact.low, exact.high), abs=0.03)


@pytest.mark.parametrize("bad", [([], []), ([1.0], [1.0, 2.0]), ([float("nan")], [1.0])])
def test_unusable_outcomes_are_refused(bad):
    """Empty, unpaired or not finite."""
    with pytest.raises(DataError):
        stats.paired_t_test(*bad)
    with pytest.raises(DataError):
        stats.holm([1.5])


def test_the_statistics_are_at_hand():
    """`hp.stats`, without importing it first."""
    assert hp.stats.holm([0.01]) == [0.01]


def test_compare_mt_draws_half_and_counts_wins():
    """One minus the share of resamples that the better system wins; the usual bootstrap asks both sides of all."""
    draws = np.random.default_rng(0)
    base = (draws.random(200) < 0.5).astype(float)
    worse = np.where(draws.random(200) < 0.3, 0.0, base)
    found = stats.compare_mt_bootstrap(base, worse, seed=1)
    assert found.method == "compare-mt, 1000 x 100 of 200"
    assert found.difference == pytest.approx(float(worse.mean() - base.mean()))
    assert found.p_value == stats.compare_mt_bootstrap(worse, base, seed=1).p_value < 0.05
    assert stats.compare_mt_bootstrap(base, base).p_value == 1.0  # nobody wins
    wide, all_drawn = found.interval, stats.paired_bootstrap(base, worse, seed=1).interval
    assert wide.high - wide.low > all_drawn.high - all_drawn.low
