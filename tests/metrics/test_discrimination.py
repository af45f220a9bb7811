"""AUROC, ROC and TPR at a given FPR, against pair counting and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from fusevlm.metrics import auroc, roc_curve, tpr_at_fpr, tpr_at_fpr_nearest, tpr_at_fpr_right

unhurried = settings(deadline=None, max_examples=60)

# Scores from a few values, so that ties are common, and always both classes.
tied_rows = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({wrong for _, wrong in rows}) == 2
)
rates = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0]))


def columns(rows):
    u, wrong = zip(*rows, strict=True)
    return np.array(u, dtype=float), np.array(wrong, dtype=int)


def auroc_by_pairs(u, wrong):
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, a_wrong in zip(u, wrong, strict=True)
        for b, b_wrong in zip(u, wrong, strict=True)
        if a_wrong and not b_wrong
    ]
    return sum(wins) / len(wins)


@unhurried
@given(tied_rows)
def test_auroc_is_the_share_of_pairs_ranked_right(rows):
    u, wrong = columns(rows)
    assert auroc(u, wrong) == pytest.approx(auroc_by_pairs(u, wrong), abs=1e-14)


@pytest.mark.parametrize("n", [2, 17, 500])
def test_auroc_agrees_with_sklearn_on_continuous_scores(n):
    rng = np.random.default_rng(n)
    wrong = np.arange(n) % 2
    u = rng.normal(size=n) + wrong
    assert auroc(u, wrong) == pytest.approx(sklearn.metrics.roc_auc_score(wrong, u), abs=1e-13)


def test_auroc_of_perfect_reversed_and_constant_scores():
    wrong = [0, 0, 1, 1, 1]
    assert auroc([1, 2, 3, 4, 5], wrong) == 1.0
    assert auroc([5, 4, 3, 2, 1], wrong) == 0.0
    assert auroc([7, 7, 7, 7, 7], wrong) == 0.5


def test_auroc_treats_signed_zeros_as_equal():
    assert auroc([0.0, -0.0], [0, 1]) == 0.5


@unhurried
@given(tied_rows, st.randoms(use_true_random=False))
def test_auroc_ignores_order_and_monotone_transforms_and_flips_with_the_sign(rows, random):
    u, wrong = columns(rows)
    expected = auroc(u, wrong)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert auroc(*columns(shuffled)) == expected
    assert auroc(np.exp(u) - 7.0, wrong) == expected
    assert auroc(-u, wrong) == pytest.approx(1.0 - expected, abs=1e-15)
    assert auroc(u, 1 - wrong) == pytest.approx(1.0 - expected, abs=1e-15)


@unhurried
@given(tied_rows)
def test_roc_curve_agrees_with_sklearn(rows):
    u, wrong = columns(rows)
    fpr, tpr, thresholds = sklearn.metrics.roc_curve(wrong, u, drop_intermediate=False)
    curve = roc_curve(u, wrong)
    np.testing.assert_allclose(curve.fpr, fpr, rtol=0, atol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(curve.thresholds, thresholds)


@unhurried
@given(tied_rows)
def test_roc_points_are_the_shares_flagged_at_each_threshold(rows):
    u, wrong = columns(rows)
    curve = roc_curve(u, wrong)
    for fpr, tpr, threshold in zip(curve.fpr, curve.tpr, curve.thresholds, strict=True):
        assert fpr == pytest.approx(np.mean(u[wrong == 0] >= threshold))
        assert tpr == pytest.approx(np.mean(u[wrong == 1] >= threshold))


@unhurried
@given(tied_rows)
def test_area_under_the_roc_curve_is_the_auroc(rows):
    u, wrong = columns(rows)
    curve = roc_curve(u, wrong)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(auroc(u, wrong))


@unhurried
@given(tied_rows, rates)
def test_tpr_at_fpr_interpolates_sklearns_roc(rows, fpr):
    u, wrong = columns(rows)
    x, y, _ = sklearn.metrics.roc_curve(wrong, u, drop_intermediate=False)
    assert tpr_at_fpr(u, wrong, fpr) == pytest.approx(np.interp(fpr, x, y), abs=1e-12)


@unhurried
@given(tied_rows, rates, rates)
def test_tpr_never_falls_as_fpr_grows(rows, one, other):
    u, wrong = columns(rows)
    low, high = sorted((one, other))
    assert tpr_at_fpr(u, wrong, low) <= tpr_at_fpr(u, wrong, high) + 1e-12
    assert tpr_at_fpr_nearest(u, wrong, low) <= tpr_at_fpr_nearest(u, wrong, high)


def test_tpr_on_a_vertical_segment_is_its_top():
    # From the top: wrong, wrong, right, wrong, right. At FPR 0 two of three are caught.
    u, wrong = [5, 4, 3, 2, 1], [1, 1, 0, 1, 0]
    assert tpr_at_fpr(u, wrong, 0.0) == pytest.approx(2 / 3)
    assert tpr_at_fpr(u, wrong, 0.25) == pytest.approx(2 / 3)
    assert tpr_at_fpr(u, wrong, 0.5) == 1.0
    assert tpr_at_fpr(u, wrong, 1.0) == 1.0


@pytest.mark.parametrize("k", range(101))
def test_tpr_at_an_exact_rate_is_not_lost_to_rounding(k):
    # Right and wrong alternate from the top, the right one first: k right ones, then k wrong.
    u = -np.arange(200.0)
    wrong = np.arange(200) % 2
    assert tpr_at_fpr(u, wrong, float(f"{k / 100:.2f}")) == k / 100
    assert tpr_at_fpr_nearest(u, wrong, float(f"{k / 100:.2f}")) == k / 100


def nearest_by_loop(u, wrong, fpr):
    """Compare squared distances in fractions of n0, in plain Python."""
    from fractions import Fraction

    n_right, n_wrong = int(np.sum(wrong == 0)), int(np.sum(wrong == 1))
    points = [(Fraction(0), Fraction(0))]
    for threshold in sorted(set(u), reverse=True):
        false = sum(1 for a, w in zip(u, wrong, strict=True) if a >= threshold and not w)
        true = sum(1 for a, w in zip(u, wrong, strict=True) if a >= threshold and w)
        points.append((Fraction(false, n_right), Fraction(true, n_wrong)))
    wanted = Fraction(fpr).limit_denominator(1000)
    return float(min(points, key=lambda point: (abs(point[0] - wanted), point[0], -point[1]))[1])


@unhurried
@given(tied_rows, st.integers(0, 100))
def test_nearest_variant_takes_the_nearest_point_then_the_lower_fpr(rows, percent):
    u, wrong = columns(rows)
    expected = nearest_by_loop(u, wrong, percent / 100)
    assert tpr_at_fpr_nearest(u, wrong, percent / 100) == pytest.approx(expected)


def test_nearest_variant_breaks_distance_ties_despite_rounding():
    # FPR points 0, .1, ..., 1, each reached together with TPR = FPR. In floats .6 is nearer to .55.
    u, wrong = np.repeat(-np.arange(10.0), 2), np.tile([0, 1], 10)
    assert abs(0.6 - 0.55) < abs(0.5 - 0.55)
    assert tpr_at_fpr_nearest(u, wrong, 0.55) == 0.5
    assert tpr_at_fpr_nearest(u, wrong, 0.56) == 0.6


def test_nearest_and_interpolated_differ_between_points():
    u, wrong = [4, 3, 2, 1], [0, 1, 0, 1]
    assert tpr_at_fpr(u, wrong, 0.1) == 0.0
    u = [2, 2, 1, 1]
    assert tpr_at_fpr(u, wrong, 0.1) == pytest.approx(0.1)
    assert tpr_at_fpr_nearest(u, wrong, 0.1) == 0.0
    assert tpr_at_fpr_nearest(u, wrong, 0.4) == 0.5


def test_auroc_of_the_binormal_model_approaches_its_closed_form():
    rng = np.random.default_rng(5)
    wrong = np.arange(200_000) % 2
    truth = 0.5 * (1.0 + math.erf(1.0 / 2.0))  # Phi(d / sqrt 2) at d = 1
    assert auroc(rng.normal(size=wrong.size) + wrong, wrong) == pytest.approx(truth, abs=0.005)


@unhurried
@given(tied_rows, rates)
def test_tpr_with_right_answers_positive_is_that_of_sklearn_with_flipped_labels(rows, fpr):
    """scikit-learn's ROC of "right", scored by −u, read off at the wanted FPR."""
    u, wrong = columns(rows)
    x, y, _ = sklearn.metrics.roc_curve(1 - wrong, -u, drop_intermediate=False)
    top = {f: y[x == f].max() for f in np.unique(x)}  # on a vertical segment its top
    expected = top.get(fpr, np.interp(fpr, x, y))
    left = max(f for f in top if f <= fpr)
    after = [f for f in top if f > fpr]
    if after and fpr not in top:
        low = y[x == min(after)].min()
        expected = top[left] + (low - top[left]) * (fpr - left) / (min(after) - left)
    assert tpr_at_fpr_right(u, wrong, fpr) == pytest.approx(expected, abs=1e-12)


def test_the_two_classes_have_other_tprs():
    """Nine right answers, one of which looks worst of all, and one wrong one before it."""
    u, wrong = np.r_[np.arange(8.0), 20.0, 9.0], np.r_[np.zeros(9), 1]
    assert tpr_at_fpr(u, wrong, 0.05) == 0.0  # the first flag is a false one
    assert tpr_at_fpr_right(u, wrong, 0.05) == pytest.approx(8 / 9)  # eight are accepted before
