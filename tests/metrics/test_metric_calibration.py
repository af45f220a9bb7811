"""ECE, Brier, reliability and the calibration correlations, against loops, sklearn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.calibration
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from fusevlm.errors import UndefinedMetricError
from fusevlm.metrics import (
    brier,
    ece,
    ece_folded,
    pearson_calibration,
    reliability,
    spearman_calibration,
)
from fusevlm.metrics.calibration import _equal_mass_bins

unhurried = settings(deadline=None, max_examples=60)

# Multiples of 1/60 put many values exactly on bin edges.
probabilities = st.one_of(st.floats(0.0, 1.0), st.integers(0, 60).map(lambda k: k / 60))
rows_of_p = st.lists(st.tuples(probabilities, st.booleans()), min_size=1, max_size=40)
bin_counts = st.sampled_from([1, 2, 3, 10, 15, 20])


def columns(rows):
    score, wrong = zip(*rows, strict=True)
    return np.array(score, dtype=float), np.array(wrong, dtype=int)


def ece_by_loop(p, wrong, n_bins):
    bins = {}
    for value, label in zip(p, wrong, strict=True):
        b = max(k for k in range(n_bins) if k / n_bins <= value)
        bins.setdefault(b, []).append((value, label))
    gap = 0.0
    for members in bins.values():
        mean_p = sum(value for value, _ in members) / len(members)
        error_rate = sum(label for _, label in members) / len(members)
        gap += len(members) / len(p) * abs(mean_p - error_rate)
    return gap


@unhurried
@given(rows_of_p, bin_counts)
def test_ece_agrees_with_a_loop_over_bins(rows, n_bins):
    p, wrong = columns(rows)
    assert ece(p, wrong, n_bins) == pytest.approx(ece_by_loop(p, wrong, n_bins), abs=1e-12)


@unhurried
@given(rows_of_p, bin_counts)
def test_folded_ece_agrees_with_a_loop_over_decisions(rows, n_bins):
    p, wrong = columns(rows)
    confidence, hit = [], []
    for value, label in zip(p, wrong, strict=True):
        says_wrong = value >= 0.5
        confidence.append(value if says_wrong else 1 - value)
        hit.append(int(says_wrong == bool(label)))
    expected = ece_by_loop(confidence, hit, n_bins)
    assert ece_folded(p, wrong, n_bins) == pytest.approx(expected, abs=1e-12)


def test_ece_of_hand_made_bins():
    # Bin [0, .5): mean .2, error rate .5; bin [.5, 1]: mean .8, error rate 1 (p = 1 included).
    assert ece([0.1, 0.3, 0.6, 1.0], [0, 1, 1, 1], n_bins=2) == pytest.approx(0.5 * 0.3 + 0.5 * 0.2)


def test_ece_bins_are_closed_on_the_left_even_where_rounding_would_miss_the_edge():
    # 0.58 = 29/50 opens bin 29, though 0.58 * 50 is just below 29: so not one bin with 0.575.
    assert 0.58 * 50 < 29
    assert ece([0.575, 0.58], [1, 0], n_bins=50) == pytest.approx((0.425 + 0.58) / 2)


def test_folded_ece_calls_one_half_wrong():
    # Both decisions are "wrong" and both are, at confidences .5 and .52 in one bin.
    assert ece_folded([0.5, 0.52], [1, 1]) == pytest.approx(1.0 - 0.51)


def test_folding_hides_miscalibration_that_ece_sees():
    # Where it says .3 none is wrong, where it says .7 only 2 of 5 are. Folded, both have
    # confidence .7, and 7 of those 10 decisions are hits: the two errors cancel.
    p, wrong = [0.3] * 5 + [0.7] * 5, [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert ece_folded(p, wrong, 10) == pytest.approx(0.0)
    assert ece(p, wrong, 10) == pytest.approx(0.3)


@unhurried
@given(rows_of_p)
def test_brier_agrees_with_sklearn(rows):
    p, wrong = columns(rows)
    expected = sklearn.metrics.brier_score_loss(wrong, p, pos_label=1)
    assert brier(p, wrong) == pytest.approx(expected, abs=1e-14)


@unhurried
@given(rows_of_p, bin_counts)
def test_reliability_agrees_with_a_loop_and_its_gaps_make_the_ece(rows, n_bins):
    p, wrong = columns(rows)
    curve = reliability(p, wrong, n_bins)
    filled = 0
    for low, high, mean_p, error_rate, count in zip(
        curve.low, curve.high, curve.mean_p, curve.error_rate, curve.count, strict=True
    ):
        inside = (p >= low) & ((p < high) | (high == 1.0))
        assert count == inside.sum()
        assert mean_p == pytest.approx(p[inside].mean())
        assert error_rate == pytest.approx(wrong[inside].mean())
        filled += count
    assert filled == p.size


def test_reliability_agrees_with_sklearn_away_from_the_edges():
    rng = np.random.default_rng(0)
    p = rng.random(300)
    wrong = (rng.random(300) < p).astype(int)
    error_rate, mean_p = sklearn.calibration.calibration_curve(wrong, p, n_bins=15)
    curve = reliability(p, wrong, 15)
    np.testing.assert_allclose(curve.mean_p, mean_p)
    np.testing.assert_allclose(curve.error_rate, error_rate)


def test_a_calibrated_probability_has_small_ece():
    rng = np.random.default_rng(1)
    p = rng.random(100_000)
    wrong = rng.random(p.size) < p
    assert ece(p, wrong) < 0.01
    assert ece(p**2, wrong) > 0.1


def hand_made_bins(u, wrong, n_bins):
    """Means over np.array_split of the sorted rows; right when n_bins divides N and no ties."""
    order = np.argsort(u)
    mean_u = [part.mean() for part in np.array_split(u[order], n_bins)]
    error_rate = [part.mean() for part in np.array_split(wrong[order], n_bins)]
    return mean_u, error_rate


@pytest.mark.parametrize(("n", "n_bins"), [(60, 15), (60, 4), (45, 9), (500, 10), (12, 12)])
def test_correlations_agree_with_numpy_and_scipy_on_hand_made_bins(n, n_bins):
    rng = np.random.default_rng(n + n_bins)
    u = rng.normal(size=n)
    wrong = (rng.normal(size=n) + u > 0).astype(int)
    mean_u, error_rate = hand_made_bins(u, wrong, n_bins)
    pearson = np.corrcoef(mean_u, error_rate)[0, 1]
    spearman = scipy.stats.spearmanr(mean_u, error_rate).statistic
    assert pearson_calibration(u, wrong, n_bins) == pytest.approx(pearson, abs=1e-12)
    assert spearman_calibration(u, wrong, n_bins) == pytest.approx(spearman, abs=1e-12)


def correlations_by_loop(u, wrong, n_bins):
    """Place whole tie groups by their middle, in plain Python; None where undefined."""
    members = {}
    for value in sorted(set(u)):
        before = sum(1 for a in u if a < value)
        tied = sum(1 for a in u if a == value)
        b = int((2 * before + tied) * n_bins // (2 * len(u)))
        members.setdefault(b, []).extend(
            (a, w) for a, w in zip(u, wrong, strict=True) if a == value
        )
    mean_u = [float(np.mean([a for a, _ in rows])) for rows in members.values()]
    error_rate = [float(np.mean([w for _, w in rows])) for rows in members.values()]
    if len(set(mean_u)) < 2 or len(set(error_rate)) < 2:
        return None
    pearson = scipy.stats.pearsonr(mean_u, error_rate).statistic
    return pearson, scipy.stats.spearmanr(mean_u, error_rate).statistic


@unhurried
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 12),
)
def test_correlations_with_ties_agree_with_scipy_on_whole_tie_groups(rows, n_bins):
    u, wrong = columns(rows)
    expected = correlations_by_loop(u, wrong, n_bins)
    if expected is None:
        with pytest.raises(UndefinedMetricError, match="two non-empty bins"):
            pearson_calibration(u, wrong, n_bins)
        with pytest.raises(UndefinedMetricError, match="two non-empty bins"):
            spearman_calibration(u, wrong, n_bins)
    else:
        assert pearson_calibration(u, wrong, n_bins) == pytest.approx(expected[0], abs=1e-9)
        assert spearman_calibration(u, wrong, n_bins) == pytest.approx(expected[1], abs=1e-9)


@unhurried
@given(st.integers(1, 200), st.integers(1, 40))
def test_bin_sizes_differ_by_at_most_one_without_ties(n, n_bins):
    ones = np.ones(n, dtype=np.int64)
    bins = _equal_mass_bins(np.arange(float(n)), np.zeros(n, dtype=bool), ones, n_bins)
    assert bins.size.sum() == n
    assert bins.size.max() - bins.size.min() <= 1


def test_a_tie_group_goes_whole_to_the_bin_of_its_middle():
    # 8 answers, 4 bins of 2. The five 1s span places 1..5, middle 3.5: all go to bin 1.
    u = np.array([0.0, 1, 1, 1, 1, 1, 2, 3])
    wrong = np.array([0, 1, 0, 0, 0, 0, 1, 1], dtype=bool)
    bins = _equal_mass_bins(u, wrong, np.ones(8, dtype=np.int64), 4)
    assert bins.size.tolist() == [1, 5, 0, 2]
    assert bins.error_rate.tolist() == [0.0, 0.2, 0.0, 1.0]
    expected = np.corrcoef([0, 1, 2.5], [0, 0.2, 1])[0, 1]
    assert pearson_calibration(u, wrong, 4) == pytest.approx(expected)
    assert spearman_calibration(u, wrong, 4) == 1.0


@unhurried
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=4, max_size=30),
    st.randoms(use_true_random=False),
)
def test_correlations_ignore_order_scale_and_shift(rows, random):
    u, wrong = columns(rows)
    try:
        expected = pearson_calibration(u, wrong, 5), spearman_calibration(u, wrong, 5)
    except UndefinedMetricError:
        return
    random.shuffle(rows)
    for v, w in [columns(rows), (1e-3 * u - 0.5, wrong), (4e307 * u, wrong)]:
        assert pearson_calibration(v, w, 5) == pytest.approx(expected[0], abs=1e-9)
        assert spearman_calibration(v, w, 5) == pytest.approx(expected[1], abs=1e-9)
    assert spearman_calibration(np.exp(u), wrong, 5) == pytest.approx(expected[1], abs=1e-9)


def test_correlation_is_undefined_when_all_bins_have_the_same_error_rate():
    # Each of three bins is one third wrong: 1/3 three times must count as no variance at all.
    u, wrong = np.arange(9.0), np.tile([1, 0, 0], 3)
    with pytest.raises(UndefinedMetricError, match="different error rates"):
        pearson_calibration(u, wrong, 3)
    with pytest.raises(UndefinedMetricError, match="different error rates"):
        spearman_calibration(u, wrong, 3)
