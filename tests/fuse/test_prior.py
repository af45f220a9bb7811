"""The label-free prior against a generic optimiser of the full likelihood."""

import logging

import numpy as np
import pytest
from scipy import optimize, stats

from fusevlm.errors import InputError
from fusevlm.fuse.prior import fit_prior, maximise_sigma2


def world(size, *, n, tau2, seed=0, alpha0=0.4, beta0=-0.7, sigma0=0.6):
    rng = np.random.default_rng(seed)
    s = rng.normal(2.0, 1.5, size)
    n = np.broadcast_to(np.asarray(n, float), size).copy()
    tau2 = np.broadcast_to(np.asarray(tau2, float), size).copy()
    a = rng.uniform(5, 9, size)
    u = alpha0 + beta0 * s + sigma0 * rng.standard_normal(size)
    V = a + n * u + np.sqrt(tau2) * rng.standard_normal(size)
    return s, V, a, n, tau2


def negative_log_likelihood(parameters, s, V, a, n, tau2):
    alpha0, beta0, log_sigma0 = parameters
    variance = tau2 + n**2 * np.exp(2 * log_sigma0)
    return -np.sum(stats.norm.logpdf(V, a + n * (alpha0 + beta0 * s), np.sqrt(variance)))


@pytest.mark.parametrize("mixed", [False, True])
def test_against_a_three_parameter_optimiser(mixed):
    rng = np.random.default_rng(9)
    n = rng.integers(5, 40, 300) if mixed else 20
    tau2 = rng.uniform(1, 300, 300) if mixed else 50.0
    data = world(300, n=n, tau2=tau2)
    best = optimize.minimize(
        negative_log_likelihood, [0.0, 0.0, 0.0], args=data, method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 5000},
    )  # fmt: skip
    found = fit_prior(*data)
    reached = negative_log_likelihood([found.alpha0, found.beta0, np.log(found.sigma0)], *data)
    assert reached == pytest.approx(best.fun, abs=1e-6)
    assert found.alpha0 == pytest.approx(best.x[0], abs=1e-4)
    assert found.beta0 == pytest.approx(best.x[1], abs=1e-4)
    assert found.sigma0 == pytest.approx(np.exp(best.x[2]), abs=1e-4)


def test_closed_form_sigma_equals_the_search_at_equal_n():
    s, V, a, n, tau2 = world(200, n=12, tau2=30.0, seed=1)
    closed = fit_prior(s, V, a, n, tau2).sigma0 ** 2
    searched = maximise_sigma2(s, (V - a) / n, tau2 / n**2)
    assert closed == pytest.approx(searched, rel=1e-6)


def test_recovers_the_truth():
    found = fit_prior(*world(40_000, n=20, tau2=40.0, seed=2))
    assert found.alpha0 == pytest.approx(0.4, abs=0.03)
    assert found.beta0 == pytest.approx(-0.7, abs=0.01)
    assert found.sigma0 == pytest.approx(0.6, abs=0.01)


def test_noise_that_explains_everything_leaves_no_prior_variance():
    s, V, a, n, _ = world(100, n=10, tau2=1.0, seed=3, sigma0=0.0)
    assert fit_prior(s, V, a, n, np.full(100, 1e4)).sigma0 == 0.0
    mixed = np.full(100, 1e4)
    mixed[0] = 2e4
    assert fit_prior(s, V, a, n, mixed).sigma0 == pytest.approx(0.0, abs=1e-3)


def test_constant_or_absent_s_gives_a_flat_line(caplog):
    s, V, a, n, tau2 = world(50, n=10, tau2=4.0, seed=4)
    with caplog.at_level(logging.WARNING):
        flat = fit_prior(np.full(50, 3.3), V, a, n, tau2)
    assert "cannot use it" in caplog.text
    assert (flat.beta0, flat.alpha0) == (0.0, pytest.approx(np.mean((V - a) / n)))
    absent = fit_prior(None, V, a, n, tau2)
    assert absent == flat
    np.testing.assert_allclose(absent.mean(None, 3), flat.alpha0)
    assert fit_prior(s, V, a, n, tau2).mean(np.array([1.0]), 1).shape == (1,)


def test_two_queries_are_too_few():
    with pytest.raises(InputError, match="at least 3 calibration queries; got 2"):
        fit_prior(None, np.ones(2), np.ones(2), np.ones(2), np.ones(2))
