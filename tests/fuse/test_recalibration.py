"""Recalibration by few labels against scipy, scikit-learn, definitions and simulation."""

import numpy as np
import pytest
from scipy import optimize, special, stats
from sklearn.linear_model import LogisticRegression

from fusevlm.errors import InputError
from fusevlm.fuse.recalibration import LEAST_SLOPE, Tilt, standing, update_map


def labels(size, a=0.0, b=1.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(-1.5, 1.2, size)
    return special.expit(x), rng.random(size) < special.expit(a + b * x)


def posterior(p_old, wrong, level, slope):
    """log posterior of the level at the mean logit and of the slope, from scipy's densities."""
    x = special.logit(p_old)
    p = special.expit(x.mean() + level + slope * (x - x.mean()))
    likelihood = stats.bernoulli.logpmf(np.asarray(wrong, int), p).sum()
    return likelihood + stats.norm.logpdf(level) + stats.norm.logpdf(slope, loc=1, scale=0.5)


@pytest.mark.parametrize(("size", "a", "b"), [(10, 1.0, 1.0), (40, 0.0, 0.5), (200, -0.7, 1.6)])
def test_the_tilt_is_the_most_probable_one(size, a, b):
    p_old, wrong = labels(size, a, b, seed=size)
    found = optimize.minimize(
        lambda z: -posterior(p_old, wrong, *z), [0.0, 1.0], method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    ).x  # fmt: skip
    tilt = update_map(p_old, wrong)
    assert tilt.b == pytest.approx(found[1], abs=1e-5)
    mean = special.logit(p_old).mean()
    assert tilt.a == pytest.approx(found[0] + (1 - found[1]) * mean, abs=1e-5)


def test_without_labels_nothing_changes():
    assert update_map([], []) == Tilt(0.0, 1.0)
    p = np.array([0.01, 0.3, 0.999])
    np.testing.assert_allclose(Tilt()(p), p, rtol=1e-12)


def test_many_labels_give_plain_platt_scaling():
    p_old, wrong = labels(40_000, a=0.8, b=0.6)
    tilt = update_map(p_old, wrong)
    x = special.logit(p_old)[:, None]
    plain = LogisticRegression(C=1e9, tol=1e-9).fit(x, wrong)
    assert tilt.a == pytest.approx(plain.intercept_[0], abs=3e-3)
    assert tilt.b == pytest.approx(plain.coef_[0, 0], abs=3e-3)


def test_few_labels_change_little_and_more_change_more():
    moves = []
    for size in (2, 10, 50, 400):
        p_old = np.full(size, 0.2)
        tilt = update_map(p_old, np.arange(size) % 2 == 0)  # half are wrong
        moves.append(float(tilt(0.2)))
    assert 0.2 < moves[0] < moves[1] < moves[2] < moves[3] < 0.5
    assert moves[0] < 0.33
    assert moves[3] > 0.48


def test_a_change_of_the_error_rate_leaves_the_slope_near_one():
    slopes = []
    for seed in range(30):
        p_old, wrong = labels(60, a=1.2, seed=seed)
        slopes.append(update_map(p_old, wrong).b)
    assert np.mean(slopes) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("wrong", [np.zeros(30), np.ones(30), np.arange(30) >= 15])
def test_one_class_and_perfect_separation_are_fine(wrong):
    p_old = np.linspace(0.0, 1.0, 30)
    tilt = update_map(p_old, wrong)
    assert np.isfinite([tilt.a, tilt.b]).all()
    assert tilt.b >= LEAST_SLOPE
    assert (np.diff(tilt(p_old)) > 0).all()
    assert ((tilt(p_old) > 0) & (tilt(p_old) < 1)).all()


def test_scores_that_rank_the_wrong_way_are_flattened_and_not_turned():
    p_old, wrong = labels(2000, b=-1.0)
    tilt = update_map(p_old, wrong)
    assert tilt.b == LEAST_SLOPE
    np.testing.assert_allclose(tilt(p_old).mean(), wrong.mean(), atol=0.02)


def test_recalibrated_probabilities_are_better_after_a_change():
    gains = []
    for seed in range(40):
        p_old, wrong = labels(30, a=1.5, b=0.8, seed=seed)
        p_new, then = labels(2000, a=1.5, b=0.8, seed=1000 + seed)
        tilted = update_map(p_old, wrong)(p_new)
        gains.append(np.mean((p_new - then) ** 2) - np.mean((tilted - then) ** 2))
    assert np.mean(gains) > 0.03
    assert np.min(gains) > 0


def test_what_is_no_probability_is_refused():
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        update_map([0.2, 1.5], [0, 1])
    with pytest.raises(InputError, match="expected 3"):
        update_map([0.2, 0.5], [0, 1, 1])
    with pytest.raises(InputError, match="only 0"):
        update_map([0.2, 0.5], [0, 0.5])
    with pytest.raises(InputError, match="empty"):
        update_map([0.2, 0.5], [])


@pytest.mark.parametrize(("errors", "m"), [(0, 1), (0, 40), (3, 60), (7, 20), (20, 20)])
def test_the_limits_are_scipys_exact_ones(errors, m):
    found = standing(np.arange(m) < errors, 0.2, 0.1)
    less = stats.binomtest(errors, m, alternative="less").proportion_ci(0.9, "exact")
    more = stats.binomtest(errors, m, alternative="greater").proportion_ci(0.9, "exact")
    assert found.upper == pytest.approx(less.high, abs=1e-9)
    assert found.lower == pytest.approx(more.low, abs=1e-9)
    assert (found.errors, found.answered) == (errors, m)


def test_the_verdict_is_that_of_the_exact_tests():
    for m in range(1, 60, 4):
        for errors in range(m + 1):
            found = standing(np.arange(m) < errors, 0.2, 0.1)
            few = stats.binom.cdf(errors, m, 0.2) <= 0.1
            many = stats.binom.sf(errors - 1, m, 0.2) < 0.1
            assert found.verdict == ("confirmed" if few else "refuted" if many else "open")


def test_the_labels_that_could_still_confirm_it_are_counted_exactly():
    for m, errors in [(0, 0), (5, 0), (10, 2), (50, 9), (80, 14)]:
        found = standing(np.arange(m) < errors, 0.2, 0.1)
        assert found.verdict == "open"
        needed = next(k for k in range(1000) if stats.binom.cdf(errors, m + k, 0.2) <= 0.1)
        assert found.further == needed
        assert f"{needed} more labels" in found.sentence
    assert standing([0] * 30, 0.2).further is None


@pytest.mark.parametrize("true", [0.1, 0.2, 0.21, 0.4])
def test_a_verdict_is_wrong_at_most_as_often_as_delta(true):
    rng = np.random.default_rng(3)
    verdicts = [standing(rng.random(60) < true, 0.2, 0.1).verdict for _ in range(1000)]
    wrong = "refuted" if true <= 0.2 else "confirmed"
    assert verdicts.count(wrong) / 1000 <= 0.1 + 3 * np.sqrt(0.09 / 1000)
    if true == 0.4:
        assert verdicts.count("refuted") > 900


def test_a_standing_says_what_it_means():
    assert standing([], 0.2).verdict == "open"
    assert "0 of 0" in standing([], 0.2).sentence
    assert "is kept" in str(standing([0] * 50, 0.2))
    refuted = standing([1] * 9 + [0], 0.2)
    assert "choose the threshold anew" in refuted.sentence
    assert "refuted" in str(refuted)
    assert refuted._repr_html_().startswith("<table>")
    with pytest.raises(InputError, match="risk"):
        standing([0, 1], 1.2)
