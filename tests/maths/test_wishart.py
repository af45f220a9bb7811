"""a0 and v against Monte Carlo, scipy's Wishart and differentiated gamma functions."""

import mpmath
import numpy as np
import pytest
from scipy.special import multigammaln
from scipy.stats import wishart

import fusevlm
from fusevlm.errors import InputError
from fusevlm.maths.wishart import scatter_moments, wishart_moments


def test_mean_and_variance_against_scipys_wishart_samples():
    rng = np.random.default_rng(1)
    draws = wishart(df=12, scale=np.eye(5)).rvs(60_000, random_state=rng)
    log_dets = np.linalg.slogdet(draws)[1]
    a0, v = wishart_moments(12, 5)
    assert a0 == pytest.approx(log_dets.mean(), abs=4 * np.sqrt(v / 60_000))
    assert v == pytest.approx(log_dets.var(), rel=0.03)


def test_derivatives_of_the_moment_generating_function():
    # E|Λ|^t = 2^{nt} Γ_n(d/2+t)/Γ_n(d/2): its log has derivatives a0 and v at t = 0
    d, n, h = 40, 7, 1e-4

    def log_moment(t):
        return n * t * np.log(2) + multigammaln(d / 2 + t, n) - multigammaln(d / 2, n)

    a0, v = wishart_moments(d, n)
    assert a0 == pytest.approx((log_moment(h) - log_moment(-h)) / (2 * h), rel=1e-7)
    second = (log_moment(h) + log_moment(-h) - 2 * log_moment(0)) / h**2
    assert v == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize(("d", "n"), [(2, 2), (50, 50), (5120, 50), (16384, 1000), (16384, 1)])
def test_against_forty_digit_arithmetic(d, n):
    with mpmath.workdps(40):
        terms = [mpmath.mpf(d + 1 - j) / 2 for j in range(1, n + 1)]
        a0 = mpmath.fsum(mpmath.digamma(x) for x in terms) + n * mpmath.log(2)
        v = mpmath.fsum(mpmath.psi(1, x) for x in terms)
    assert wishart_moments(d, n) == (pytest.approx(float(a0), rel=1e-13), pytest.approx(float(v)))


def test_figures_measured_at_the_papers_size():
    _, v = fusevlm.wishart_moments(5120, 50)
    assert v == pytest.approx(0.01963, abs=5e-6)
    assert 50**2 / v == pytest.approx(127_361, abs=1)


def test_more_samples_than_features_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"wishart_moments\(9, 4\) with slope d=4"):
        wishart_moments(4, 9)


def test_swapped_moments_against_monte_carlo():
    rng = np.random.default_rng(2)
    R = rng.standard_normal((20_000, 15, 4))
    log_dets = np.linalg.slogdet(R.transpose(0, 2, 1) @ R)[1]
    a0, v = scatter_moments(15, 4)
    assert a0 == pytest.approx(log_dets.mean(), abs=4 * np.sqrt(v / 20_000))
    assert v == pytest.approx(log_dets.var(), rel=0.05)


@pytest.mark.parametrize("bad", [0, -1, 2.5, float("nan"), "x", None])
def test_sizes_must_be_whole_and_positive(bad):
    with pytest.raises(InputError):
        wishart_moments(bad, 1)
