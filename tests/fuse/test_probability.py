"""Score → P(wrong) against scikit-learn."""

import numpy as np
import pytest
from scipy import optimize
from sklearn.isotonic import IsotonicRegression

from fusevlm.errors import InputError
from fusevlm.fuse.probability import fit_isotonic, fit_min_max, fit_platt


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    u = np.round(rng.normal(50, 10, 400), 1)  # with ties
    wrong = rng.random(400) < 1 / (1 + np.exp(-(u - 55) / 6))
    return u, wrong


def test_platt_minimises_his_own_objective(data):
    u, wrong = data
    found = fit_platt(u, wrong)
    n_wrong, n_right = wrong.sum(), (~wrong).sum()
    target = np.where(wrong, (n_wrong + 1) / (n_wrong + 2), 1 / (n_right + 2))

    def cost(theta):
        p = 1 / (1 + np.exp(-(theta[0] + theta[1] * (u - 50) / 10)))
        return -np.sum(target * np.log(p) + (1 - target) * np.log(1 - p))

    best = optimize.minimize(cost, [0.0, 0.0], method="BFGS")
    p = 1 / (1 + np.exp(-(best.x[0] + best.x[1] * (u - 50) / 10)))
    np.testing.assert_allclose(found(u), p, atol=1e-4)
    assert np.all(np.isfinite(fit_platt(u, np.zeros(400, bool))(u)))  # one class only
    np.testing.assert_allclose(fit_platt(np.ones(4), np.array([True, False] * 2))(np.ones(1)), 0.5)


def test_isotonic_against_scikit_learn(data):
    u, wrong = data
    reference = IsotonicRegression(out_of_bounds="clip").fit(u, wrong)
    grid = np.linspace(0, 110, 500)
    np.testing.assert_allclose(fit_isotonic(u, wrong)(grid), reference.predict(grid), atol=1e-12)


def test_min_max_is_clipped_and_needs_a_range():
    scale = fit_min_max(np.array([2.0, 4.0, 3.0]))
    np.testing.assert_allclose(scale(np.array([0.0, 2.0, 3.5, 9.0])), [0, 0, 0.75, 1])
    with pytest.raises(InputError, match="cannot be normalised"):
        fit_min_max(np.ones(3))
