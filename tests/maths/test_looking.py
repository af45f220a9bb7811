"""What another look is worth, against quadrature, simulation and scipy's own distribution."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from fusevlm.maths.looking import bivariate_normal, expected_gain


@pytest.mark.parametrize("rho", [-0.99, -0.6, -0.1, 0.0, 0.3, 0.9])
def test_the_bivariate_distribution_is_scipys(rho):
    both = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    places = [-3.0, -1.2, -0.3, 0.0, 0.4, 2.1]
    for h in places:
        for k in places:
            assert bivariate_normal(h, k, rho) == pytest.approx(both.cdf([h, k]), abs=2e-6)


@pytest.mark.parametrize("p", [0.001, 0.05, 0.2, 0.5, 0.97])
@pytest.mark.parametrize("rho", [0.05, 0.4, 0.95])
@pytest.mark.parametrize("theta", [0.01, 0.2, 0.6])
def test_the_gain_is_the_integral(p, rho, theta):
    """E[(θ − P')₊] by quadrature over what the look will show."""
    x = stats.norm.ppf(p)

    def worth(z):
        later = stats.norm.cdf((x + rho * z) / np.sqrt(1 - rho**2))
        return max(theta - later, 0.0) * stats.norm.pdf(z)

    edge = (np.sqrt(1 - rho**2) * stats.norm.ppf(theta) - x) / rho
    inside = [edge] if -9 < edge < 9 else None
    found, _ = integrate.quad(worth, -9, 9, points=inside, limit=400)
    assert expected_gain(p, rho, theta) == pytest.approx(found - max(theta - p, 0), abs=1e-7)


def test_it_is_what_a_second_piece_of_evidence_brings():
    """Two noisy measurements of u: the gain of the second, by simulation of the whole chain."""
    rng = np.random.default_rng(1)
    size, t, noise, theta = 400_000, 0.8, (1.0, 0.7), 0.15
    u = rng.standard_normal(size)
    one, two = (u + sd * rng.standard_normal(size) for sd in noise)
    precision = 1 + 1 / noise[0] ** 2
    m, sigma = one / noise[0] ** 2 / precision, precision**-0.5
    more = precision + 1 / noise[1] ** 2
    m2, sigma2 = (one / noise[0] ** 2 + two / noise[1] ** 2) / more, more**-0.5
    now, later = stats.norm.cdf((m - t) / sigma), stats.norm.cdf((m2 - t) / sigma2)
    rho = np.sqrt(1 - sigma2**2 / sigma**2)
    wrong = u > t
    # of labels, not of P: what answering where P ≤ θ is worth
    gained = np.mean((later <= theta) * (theta - wrong)) - np.mean((now <= theta) * (theta - wrong))
    assert np.mean(expected_gain(now, rho, theta)) == pytest.approx(gained, abs=6e-4)
    # and query by query, near one value of P
    near = np.abs(now - 0.12) < 0.004
    worth = np.maximum(theta - later, 0)[near].mean() - np.maximum(theta - now, 0)[near].mean()
    assert expected_gain(0.12, rho, theta) == pytest.approx(worth, abs=1e-3)


def test_nothing_to_learn_is_worth_nothing_and_more_is_worth_more():
    p = np.linspace(0.001, 0.999, 60)
    assert not expected_gain(p, 0.0, 0.3).any()
    gains = [expected_gain(p, rho, 0.3) for rho in (0.1, 0.3, 0.6, 0.9)]
    assert all((b >= a - 1e-12).all() for a, b in pairwise(gains))
    assert expected_gain(p, 0.4, 0.3).argmax() == np.abs(p - 0.3).argmin()  # where it is open
    assert (expected_gain([0.0, 1.0], 0.9, 0.3) < 1e-6).all()
