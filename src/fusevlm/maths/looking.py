"""What another look is worth: the expected gain of a decision by evidence that is still to come.

u | what is known now ~ N(m, σ²) and an answer is wrong iff u > t, so P = P(wrong) = Φ(x) with
x = (m − t)/σ. More evidence will leave a variance σ'² < σ². Its posterior mean is not known yet,
but its distribution is: m' ~ N(m, σ² − σ'²), for a posterior mean is a martingale. With
ρ² = 1 − σ'²/σ², the share of the variance that it explains, and z ~ N(0, 1),

    P' = Φ((x + ρz)/√(1 − ρ²)),   E[P'] = P

An answer that is given where P ≤ θ is worth θ − P, none is worth nothing: the value of deciding now
is (θ − P)₊, and a look is worth what it adds,

    gain(P, ρ, θ) = E[(θ − P')₊] − (θ − P)₊ ≥ 0
                  = θ·Φ(a) − Φ₂(x, a; −ρ) − (θ − P)₊,   a = (√(1 − ρ²)·Φ⁻¹(θ) − x)/ρ

where Φ₂ is the bivariate normal distribution function: P' ≤ θ iff z ≤ a, and P' is the chance that
an independent normal v has √(1 − ρ²)·v − ρz ≤ x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusevlm.checks import FloatArray

LEAST = 1e-6  # ρ below which nothing is to be learnt
EDGE = 1e-12  # probabilities are kept as far from 0 and 1


def expected_gain(p: Any, rho: Any, theta: Any) -> FloatArray:
    """gain(P, ρ, θ) of each query; arrays are broadcast. 0 where ρ is (nearly) 0."""
    from scipy.special import ndtr, ndtri

    p, rho, theta = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (p, rho, theta)))
    p, theta = np.clip(p, EDGE, 1 - EDGE), np.clip(theta, EDGE, 1 - EDGE)
    tells = rho > LEAST
    r = np.clip(np.where(tells, rho, 0.5), LEAST, 1 - EDGE)
    x = ndtri(p)
    a = (np.sqrt(1 - r**2) * ndtri(theta) - x) / r
    later = theta * ndtr(a) - bivariate_normal(x, a, -r)
    return np.where(tells, np.maximum(later - np.maximum(theta - p, 0.0), 0.0), 0.0)


def bivariate_normal(h: Any, k: Any, rho: Any) -> FloatArray:
    """Φ₂(h, k; ρ) = P(X ≤ h, Y ≤ k) of standard normals with correlation ρ, |ρ| < 1.

    Owen (1956): Φ₂ = ½(Φ(h) + Φ(k)) − T(h, (k − ρh)/(h·c)) − T(k, (h − ρk)/(k·c)) − δ,
    c = √(1 − ρ²), with δ = ½ where hk < 0, or hk = 0 and h + k < 0; else 0.
    """
    from scipy.special import ndtr, owens_t

    h, k, rho = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (h, k, rho)))
    tiny = 1e-300  # in place of 0, where the fraction below would be 0/0 or infinite
    h, k = np.where(h == 0, tiny, h), np.where(k == 0, tiny, k)
    c = np.sqrt(1 - rho**2)
    parts = owens_t(h, (k - rho * h) / (h * c)) + owens_t(k, (h - rho * k) / (k * c))
    apart = np.where(h * k < 0, 0.5, np.where((h * k == 0) & (h + k < 0), 0.5, 0.0))
    return np.asarray(np.clip(0.5 * (ndtr(h) + ndtr(k)) - parts - apart, 0.0, 1.0))
