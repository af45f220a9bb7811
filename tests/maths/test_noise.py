"""τ² estimators against brute-force leave-one-out, simulation and textbook regression."""

import numpy as np
import pytest
from scipy import stats

from fusevlm.errors import InputError
from fusevlm.maths.evidence import intercept, semantic_evidence
from fusevlm.maths.noise import (
    jackknife_tau2,
    leave_one_out_log_dets,
    ols_noise,
    split_half_tau2,
)
from fusevlm.maths.wishart import scatter_moments


def brute_log_det(R, w, amount):
    n, d = R.shape
    if n < d:
        root = np.diag(np.sqrt(w))
        return np.linalg.slogdet(root @ (R @ R.T + amount * np.eye(n)) @ root)[1]
    return np.linalg.slogdet(R.T @ np.diag(w) @ R + amount * np.eye(d))[1]


@pytest.mark.parametrize(("n", "d"), [(6, 30), (6, 6), (12, 4), (5, 4)])
def test_one_factorisation_equals_deleting_each_row(n, d):
    rng = np.random.default_rng(n * d)
    R, log_w = rng.standard_normal((n, d)), rng.uniform(0, 2, n)
    amount = 1e-6
    found = leave_one_out_log_dets(R @ R.T, d, log_w, amount)
    for i in range(n):
        rest = np.delete(R, i, axis=0)
        expected = brute_log_det(rest, np.exp(np.delete(log_w, i)), amount)
        assert found[i] == pytest.approx(expected, rel=1e-7, abs=1e-6)


def test_repeated_rows_stay_finite():
    R = np.tile(np.random.default_rng(0).standard_normal(10), (4, 1))
    options = {"intercept_kind": "a0", "jitter": 1e-8}
    assert np.isfinite(jackknife_tau2(R @ R.T, 10, np.zeros(4), **options))
    assert np.isfinite(split_half_tau2(R @ R.T, 10, np.zeros(4), **options))


@pytest.mark.parametrize("kind", ["a0", "taylor", "exact"])
def test_jackknife_equals_its_definition(kind):
    rng = np.random.default_rng(1)
    n, d = 7, 25
    R, log_w = rng.standard_normal((n, d)), rng.uniform(0, 1, n)
    replicates = []
    for i in range(n):
        rest, w = np.delete(R, i, axis=0), np.delete(log_w, i)
        V = semantic_evidence(rest, np.exp(w), jitter=0.0).value
        replicates.append((V - intercept(kind, n - 1, d, w)) / (n - 1))
    expected = n**2 * (n - 1) * np.var(replicates)
    found = jackknife_tau2(R @ R.T, d, log_w, intercept_kind=kind, jitter=0.0)
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("estimator", [jackknife_tau2, split_half_tau2])
@pytest.mark.parametrize(("n", "d"), [(10, 200), (20, 200), (50, 1000), (40, 5)])
def test_right_on_average_where_the_paper_is_right(estimator, n, d):
    """For Gaussian responses both estimate the Wishart variance v."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(400):
        R = rng.standard_normal((n, d))
        found.append(estimator(R @ R.T, d, np.zeros(n), intercept_kind="a0", jitter=1e-10))
    v = scatter_moments(n, d)[1]
    assert np.mean(found) == pytest.approx(v, rel=0.15)


@pytest.mark.parametrize("estimator", [jackknife_tau2, split_half_tau2])
def test_grows_with_what_the_wishart_model_ignores(estimator):
    """Heavy-tailed responses vary more than Gaussian ones; the analytic v cannot see it."""
    rng = np.random.default_rng(3)
    n, d = 20, 400
    scale = np.exp(rng.standard_normal((n, 1)))  # every response with its own size
    R = scale * rng.standard_normal((n, d))
    found = estimator(R @ R.T, d, np.zeros(n), intercept_kind="a0", jitter=1e-10)
    assert found > 20 * scatter_moments(n, d)[1]


@pytest.mark.parametrize("estimator", [jackknife_tau2, split_half_tau2])
def test_order_of_samples_does_not_matter(estimator):
    rng = np.random.default_rng(4)
    R, log_w = rng.standard_normal((9, 30)), rng.uniform(0, 1, 9)
    order = rng.permutation(9)
    options = {"intercept_kind": "a0", "jitter": 1e-8}
    one = estimator(R @ R.T, 30, log_w, **options)
    P = R[order]
    assert estimator(P @ P.T, 30, log_w[order], **options) == pytest.approx(one, rel=1e-6)


def test_ols_noise_against_scipys_regression():
    """With slope 1 and m0 a fitted line, â and τ̂² are a regression's intercept and residual."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(60)
    V = 3.0 + 2.0 * x + rng.standard_normal(60)
    line = stats.linregress(x, V)
    a, tau2 = ols_noise(V, np.ones(60), line.slope * x)
    assert a == pytest.approx(line.intercept, rel=1e-10)
    standard_error = np.sqrt(tau2 / np.sum((x - x.mean()) ** 2))
    assert standard_error == pytest.approx(line.stderr, rel=1e-10)


def test_ols_uses_the_gram_slope():
    m0, n = np.array([0.1, -0.3, 0.5, 0.0]), np.array([5.0, 5.0, 8.0, 8.0])
    a, tau2 = ols_noise(7.0 + n * m0, n, m0)
    assert a == pytest.approx(7.0)
    assert tau2 == pytest.approx(0.0, abs=1e-20)


def test_too_few_samples_are_refused():
    G = np.eye(2)
    with pytest.raises(InputError, match="at least 3 samples; got 2"):
        jackknife_tau2(G, 5, np.zeros(2), intercept_kind="a0", jitter=1e-8)
    with pytest.raises(InputError, match="at least 4 samples; got 2"):
        split_half_tau2(G, 5, np.zeros(2), intercept_kind="a0", jitter=1e-8)
    with pytest.raises(InputError, match="at least 3 queries"):
        ols_noise(np.ones(2), np.ones(2), np.zeros(2))
