"""The posterior against numerical integration and joint Gaussian conditioning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fusevlm.errors import InputError
from fusevlm.maths.fusion import posterior, reduce_evidence, score


@pytest.mark.parametrize(
    ("m0", "sigma0", "V", "a", "n", "tau2"),
    [(0.3, 1.1, 12.0, 4.0, 7, 3.0), (-2.0, 0.05, -30.0, 1.0, 20, 400.0), (0, 5, 1, 1, 3, 0.5)],
)
def test_against_quadrature(m0, sigma0, V, a, n, tau2):
    def density(u):
        return stats.norm.pdf(u, m0, sigma0) * stats.norm.pdf(V, a + n * u, np.sqrt(tau2))

    found = posterior(m0, sigma0, V, a, n, tau2)
    centre, width = float(found.m), 12 * float(found.sigma)
    limits = (centre - width, centre + width)
    mass = integrate.quad(density, *limits)[0]
    mean = integrate.quad(lambda u: u * density(u), *limits)[0] / mass
    variance = integrate.quad(lambda u: (u - mean) ** 2 * density(u), *limits)[0] / mass
    assert float(found.m) == pytest.approx(mean, rel=1e-6)
    assert float(found.sigma) ** 2 == pytest.approx(variance, rel=1e-6)
    # the prior's weight is how far the posterior mean moves with the prior mean
    moved = posterior(m0 + 1.0, sigma0, V, a, n, tau2)
    assert float(moved.m - found.m) == pytest.approx(float(found.prior_weight), rel=1e-9)


def test_limits_are_exact():
    flat = posterior(5.0, np.inf, 12.0, 2.0, 10, 4.0)
    assert (float(flat.m), float(flat.sigma), float(flat.prior_weight)) == (1.0, 0.2, 0.0)
    blind = posterior(5.0, 3.0, 12.0, 2.0, 10, np.inf)
    assert (float(blind.m), float(blind.sigma), float(blind.prior_weight)) == (5.0, 3.0, 1.0)
    certain = posterior(5.0, 0.0, 12.0, 2.0, 10, 4.0)
    assert (float(certain.m), float(certain.sigma)) == (5.0, 0.0)
    exact = posterior(5.0, 3.0, 12.0, 2.0, 10, 0.0)
    assert (float(exact.m), float(exact.sigma)) == (1.0, 0.0)
    near = posterior(5.0, 1e9, 12.0, 2.0, 10, 4.0)
    assert float(near.m) == pytest.approx(1.0)
    assert float(near.sigma) == pytest.approx(0.2)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(-5, 5), st.floats(0.01, 10), st.floats(-50, 50), st.floats(0.01, 100),
    st.integers(2, 50), st.floats(0.001, 10),
)  # fmt: skip
def test_mean_rises_with_the_evidence_and_lies_between_the_sources(m0, s0, V, tau2, n, step):
    found, higher = posterior(m0, s0, V, 0.0, n, tau2), posterior(m0, s0, V + step, 0.0, n, tau2)
    assert higher.m > found.m
    low, high = sorted((m0, V / n))
    assert low - 1e-9 <= found.m <= high + 1e-9
    assert found.sigma <= min(s0, np.sqrt(tau2) / n) * (1 + 1e-12)


def test_undefined_combinations_are_refused():
    for sigma0, tau2 in ((0.0, 0.0), (np.inf, np.inf)):
        with pytest.raises(InputError, match="undefined"):
            posterior(0.0, sigma0, 1.0, 0.0, 3, tau2)
    with pytest.raises(InputError, match="0 or above"):
        posterior(0.0, -1.0, 1.0, 0.0, 3, 1.0)


def test_vector_evidence_against_conditioning_the_joint_gaussian():
    """(u, e) jointly Gaussian: condition by the block formula and compare with the reduced form."""
    rng = np.random.default_rng(0)
    K, m0, sigma0 = 4, 0.7, 1.3
    c = rng.standard_normal(K)
    A = rng.standard_normal((K, K))
    T = A @ A.T + 0.5 * np.eye(K)
    e = rng.standard_normal((6, K))
    joint = sigma0**2 * np.outer(c, c) + T
    gain = sigma0**2 * c @ np.linalg.inv(joint)
    mean = m0 + (e - m0 * c) @ gain
    variance = sigma0**2 - gain @ (sigma0**2 * c)
    reduced = reduce_evidence(e, c, T)
    found = posterior(m0, sigma0, reduced.u_hat, 0.0, 1.0, reduced.tau2)
    np.testing.assert_allclose(found.m, mean, rtol=1e-10)
    np.testing.assert_allclose(found.sigma**2, variance, rtol=1e-10)


def test_shares_of_independent_evidence_are_their_precisions():
    reduced = reduce_evidence(np.zeros((1, 3)), np.array([1.0, 2.0, 0.0]), np.diag([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(reduced.share, [1 / 3, 2 / 3, 0.0])
    assert reduced.tau2 == pytest.approx(1 / 3)


def test_uninformative_evidence_leaves_the_prior():
    reduced = reduce_evidence(np.ones((2, 2)), np.zeros(2), np.eye(2))
    found = posterior(0.4, 0.9, reduced.u_hat, 0.0, 1.0, reduced.tau2)
    np.testing.assert_allclose(found.m, 0.4)
    np.testing.assert_allclose(found.sigma, 0.9)


def test_score_adds_standard_deviations_not_variances():
    # one standard deviation of 0.5 above the mean is a 84.13 % upper bound
    m, sigma = np.array([1.0]), np.array([0.5])
    assert stats.norm.cdf(score(m, sigma, 1.0)[0], 1.0, 0.5) == pytest.approx(0.8413, abs=1e-4)


def test_law_of_total_variance_on_a_known_chain():
    """Appendix A: Var[r|Z] = E[Var[r|x]] + Var[E[r|x]] for Z → x → r, by simulation."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.5, 0.8, 400_000)  # p(x | Z) for one Z
    r = 2.0 * x + rng.standard_normal(x.size) * (1 + 0.5 * x**2)
    epistemic = np.mean((1 + 0.5 * x**2) ** 2)  # E[Var[r|x]] in the paper's words
    aleatoric = np.var(2.0 * x)
    assert np.var(r) == pytest.approx(epistemic + aleatoric, rel=0.01)
