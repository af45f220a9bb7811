"""Bounds against scipy.stats and their published definitions."""

import numpy as np
import pytest
from scipy import optimize, stats

from fusevlm.maths import bounds
from fusevlm.maths.bounds import (
    binomial_p_value,
    clopper_pearson_upper,
    finite_sample_epsilon,
    hoeffding_bentkus_p_value,
)


@pytest.mark.parametrize(("k", "m"), [(0, 1), (0, 11), (3, 20), (20, 20), (7, 500)])
def test_binomial_p_value(k, m):
    expected = stats.binomtest(k, m, 0.2, alternative="less").pvalue
    assert binomial_p_value(k, m, 0.2) == pytest.approx(expected, rel=1e-10)


def test_nothing_seen_is_no_evidence():
    assert binomial_p_value(0, 0, 0.2) == 1.0
    assert clopper_pearson_upper(0, 0, 0.1) == 1.0
    assert hoeffding_bentkus_p_value(0.0, 0, 0.2) == 1.0


@pytest.mark.parametrize(("k", "m"), [(0, 10), (3, 20), (19, 20), (60, 500)])
def test_clopper_pearson_against_scipy(k, m):
    interval = stats.binomtest(k, m, alternative="less").proportion_ci(0.9, method="exact")
    assert clopper_pearson_upper(k, m, 0.1) == pytest.approx(interval.high, rel=1e-9)


def test_clopper_pearson_inverts_the_test():
    root = optimize.brentq(lambda r: float(binomial_p_value(4, 30, r)) - 0.05, 0.01, 0.99)
    assert clopper_pearson_upper(4, 30, 0.05) == pytest.approx(root, rel=1e-9)


def test_everything_wrong_bounds_nothing():
    assert clopper_pearson_upper(5, 5, 0.1) == 1.0
    assert binomial_p_value(5, 5, 0.1) == 1.0


@pytest.mark.parametrize(("mean", "m"), [(0.05, 100), (0.1, 40), (0.19, 500), (0.3, 100)])
def test_hoeffding_bentkus_by_its_definition(mean, m):
    risk = 0.2

    def divergence(a, b):
        return a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))

    hoeffding = np.exp(-m * divergence(min(mean, risk), risk))
    bentkus = np.e * stats.binom.cdf(np.ceil(round(m * mean, 9)), m, risk)
    expected = min(1.0, hoeffding, bentkus)
    assert hoeffding_bentkus_p_value(mean, m, risk) == pytest.approx(expected, rel=1e-9)


def test_p_values_are_valid_at_the_edge_of_the_null():
    """P(p ≤ δ) ≤ δ when the risk is exactly the wanted one, binary and graded losses."""
    rng = np.random.default_rng(0)
    errors = rng.binomial(80, 0.2, 20_000)
    graded = rng.beta(0.4, 1.6, (20_000, 80)).mean(axis=1)  # mean loss 0.2
    for delta in (0.05, 0.1, 0.3):
        slack = 3 * np.sqrt(delta * (1 - delta) / 20_000)
        assert np.mean(binomial_p_value(errors, 80, 0.2) <= delta) <= delta + slack
        assert np.mean(hoeffding_bentkus_p_value(graded, 80, 0.2) <= delta) <= delta + slack


def test_the_papers_epsilon_at_its_own_size():
    assert finite_sample_epsilon(501, 0.1, 50) == pytest.approx(0.303, abs=1e-3)


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5])
def test_allowed_errors_are_the_most_that_pass(risk, delta):
    """One more would not pass, by scipy's own binomial; a tie (229 at ½) may fall either way."""
    sizes = np.array([0, 1, 2, 5, 22, 44, 45, 114, 229, 230, 1000])
    found = bounds.allowed_errors(sizes, risk, delta)
    assert found[0] == -1
    for m, most in zip(sizes[1:], found[1:], strict=True):
        assert most == -1 or stats.binom.cdf(most, m, risk) <= delta + 1e-12
        assert most == m or stats.binom.cdf(most + 1, m, risk) > delta - 1e-12


@pytest.mark.parametrize(("m", "error"), [(11, 0.0), (40, 0.05), (40, 0.2), (200, 0.12), (5, 0.01)])
def test_the_power_of_a_test_by_summing_over_errors(m, error):
    passes = stats.binom.cdf(np.arange(m + 1), m, 0.2) <= 0.1
    expected = stats.binom.pmf(np.arange(m + 1), m, error)[passes].sum()
    assert bounds.power_of_test(m, error, 0.2, 0.1) == pytest.approx(expected, abs=1e-12)
