"""Ridge logistic regression against scikit-learn, its ridge against an exhaustive search."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fusevlm.maths.logistic import (
    RIDGES,
    choose_ridge,
    fit_linear,
    logistic_regression,
    unit_folds,
)


def world(n, d, seed=1):
    """Rows on different scales, one column that never varies, and what follows from them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * rng.uniform(0.1, 30.0, d) + rng.normal(0, 20, d)
    X[:, 1] = 7.0
    Z = (X - X.mean(0)) / (X.std(0) + (X.std(0) == 0))
    return X, (Z[:, 0] - Z[:, 2] + rng.logistic(size=n) > 0).astype(float)


def reference(C, n=1):
    """scikit-learn's on standardised columns."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=C / n, tol=1e-10, max_iter=10_000))


def test_logistic_regression_against_scikit_learn():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    y = (X @ [1.0, -2.0, 0.3] + 0.4 + rng.logistic(size=300) > 0).astype(float)
    expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, y)
    found = logistic_regression(X, y, ridge=0.0)
    np.testing.assert_allclose(found[1:], expected.coef_[0], rtol=1e-4)
    assert found[0] == pytest.approx(expected.intercept_[0], rel=1e-4)


def test_separable_data_stay_finite():
    X = np.arange(10.0)[:, None] / 10
    beta = logistic_regression(X, (X[:, 0] > 0.45).astype(float))
    assert np.all(np.isfinite(beta))
    assert beta[1] > 10


@pytest.mark.parametrize("d", [4, 59, 150])
@pytest.mark.parametrize("C", [0.05, 1.0])
def test_a_ridge_on_standardised_columns_few_or_many(d, C):
    """With more columns than rows the rows are turned first; nothing is lost by it."""
    X, y = world(60, d)
    new = world(30, d, seed=2)[0]
    found = fit_linear(X, y, ridge=1 / (C * len(y)))
    expected = reference(C).fit(X, y)
    np.testing.assert_allclose(found(new), expected.predict_proba(new)[:, 1], atol=2e-4)


def test_one_class_is_one_number():
    X, _ = world(9, 4)
    for y, p in ((np.zeros(9), 0.05), (np.ones(9), 0.95)):
        np.testing.assert_allclose(fit_linear(X, y, 0.1)(X), p)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_ridge_has_the_least_held_out_loss(seed):
    X, y = world(80, 12, seed)
    folds = np.arange(80) % 4
    losses = {}
    for ridge in RIDGES:
        # every fold leaves 60 rows to learn on
        model = reference(1 / ridge, n=60)
        p = cross_val_predict(model, X, y, cv=PredefinedSplit(folds), method="predict_proba")
        losses[ridge] = log_loss(y, p[:, 1])
    assert choose_ridge(X, y, folds) == min(losses, key=losses.get)


def test_equal_losses_go_to_the_largest_ridge():
    assert choose_ridge(np.ones((12, 2)), np.arange(12) % 2.0, np.arange(12) % 3) == max(RIDGES)


def test_units_stay_together_in_any_order():
    units = [f"unit {k // 3}" for k in range(60)]
    folds = unit_folds(units, 5, seed=0)
    assert sorted(np.bincount(folds)) == [12] * 5
    assert all(len(set(folds[k : k + 3])) == 1 for k in range(0, 60, 3))
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_array_equal(unit_folds([units[k] for k in order], 5, 0), folds[order])
    assert (unit_folds(units, 5, seed=1) != folds).any()
