"""The closed-form fusion of prior and evidence: everything Gaussian, everything vectorised.

One linear-Gaussian update serves both presets. The ``paper`` preset has the single evidence Ṽ with
slope n; the ``practical`` preset reduces a vector of evidence to one sufficient statistic first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import InputError


@dataclass(frozen=True)
class Posterior:
    """u | evidence ~ N(m, sigma²), with the prior's share of the precision; arrays over queries."""

    m: FloatArray
    sigma: FloatArray
    prior_weight: FloatArray


def posterior(
    m0: Any, sigma0: Any, evidence: Any, intercept: Any, slope: Any, tau2: Any
) -> Posterior:
    """Thm 4.9 for evidence ~ N(a + b·u, τ²) and prior u ~ N(m0, σ0²).

        1/σ_post² = 1/σ0² + b²/τ²
        m_post    = σ_post² (m0/σ0² + b(evidence − a)/τ²)

    and prior_weight = (1/σ0²)/(1/σ_post²). It is written as a convex combination of m0 and
    û = (evidence − a)/b, so that the limits are exact: σ0 = ∞ gives û, τ² = ∞ or σ0 = 0 gives m0.
    """
    m0, sigma0, evidence, a, b, tau2 = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (m0, sigma0, evidence, intercept, slope, tau2))
    )
    if not (np.all(sigma0 >= 0) and np.all(tau2 >= 0)):
        raise InputError("sigma0 and tau2 must be 0 or above.")
    prior_var, noise_var = sigma0**2, tau2 / b**2  # two variances on the scale of u
    total = prior_var + noise_var
    if np.any(total == 0) or np.any(np.isinf(prior_var) & np.isinf(noise_var)):
        raise InputError(
            "prior and evidence are both exact or both uninformative (sigma0 and tau2 both 0 or "
            "both infinite), so the posterior is undefined. Use another noise estimate."
        )
    with np.errstate(invalid="ignore"):
        weight = np.where(
            np.isinf(prior_var), 0.0, np.where(np.isinf(noise_var), 1.0, noise_var / total)
        )
        # precision form, stable when one variance is huge
        variance = np.where(weight < 0.5, (1.0 - weight) * noise_var, weight * prior_var)
    u_hat = (evidence - a) / b
    m = np.where(weight == 0, u_hat, np.where(weight == 1, m0, weight * m0 + (1 - weight) * u_hat))
    return Posterior(m, np.sqrt(variance), weight)


@dataclass(frozen=True)
class Reduced:
    """A vector of evidence as one statistic: û ~ N(u, tau2), with each component's share of it."""

    u_hat: FloatArray  # [N]
    tau2: float
    share: FloatArray  # [K], sums to 1; a suppressor's share can be negative


def reduce_evidence(e: FloatArray, c: FloatArray, T: FloatArray) -> Reduced:
    """e | u ~ N(c·u, T) for e [N, K] reduced to its sufficient statistic.

        û = cᵀT⁻¹e / cᵀT⁻¹c,   Var(û | u) = 1 / cᵀT⁻¹c

    so that prior × likelihood of the vector is :func:`posterior` with slope 1 and intercept 0.
    Component k contributes c_k·(T⁻¹c)_k to the precision. Uninformative evidence (c = 0) gives
    û = 0 and τ² = ∞.
    """
    g = np.linalg.solve(T, c)
    precision = float(c @ g)
    if precision <= 0.0:
        return Reduced(np.zeros(len(e)), np.inf, np.zeros(len(c)))
    return Reduced(e @ g / precision, 1.0 / precision, c * g / precision)


def score(m_post: FloatArray, sigma_post: FloatArray, z: float) -> FloatArray:
    """u* = m_post + z·σ_post (Def. 4.10).

    Differs from the paper: its algorithm box writes z·σ²; the definition's z·σ is meant.
    """
    return np.asarray(m_post + z * sigma_post)
