"""Exact and concentration bounds on a selective risk seen through m answered queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusevlm.checks import FloatArray, IntArray


def binomial_p_value(errors: Any, m: Any, risk: float) -> FloatArray:
    """P(Binomial(m, risk) ≤ errors): small when ``errors`` is too few for a risk above ``risk``.

    A valid p-value of H: R > risk when the m losses are 0/1. m = 0 gives 1. Fractions, such as
    counts over a design effect, go by the incomplete beta function that is the binomial's tail.
    """
    from scipy.special import betainc

    errors, m = np.broadcast_arrays(np.asarray(errors, float), np.asarray(m, float))
    right = np.where(errors < m, m - errors, 1.0)
    return np.where(errors < m, betainc(right, errors + 1.0, 1.0 - risk), 1.0)


def allowed_errors(m: Any, risk: float, delta: float) -> IntArray:
    """The most errors in ``m`` answers with which the exact test of ``risk`` succeeds.

    max{e : P(Binomial(m, risk) ≤ e) ≤ delta}; −1: not even with none. scipy.stats has the same and
    takes a third of a second to import.
    """
    from scipy.special import bdtrik

    m = np.maximum(np.asarray(m), 0)
    found = np.nan_to_num(np.floor(bdtrik(delta, np.maximum(m, 1), risk)), nan=0.0)
    found = np.clip(found, 0, m)
    for step in (1, -1):  # a root is known up to rounding
        moved = np.clip(found + step, -1, m)
        passes = binomial_p_value(np.maximum(moved, 0), m, risk) <= delta
        here = binomial_p_value(np.maximum(found, 0), m, risk) <= delta
        found = np.where(passes if step > 0 else ~here, moved, found)
    return np.asarray(found).astype(np.int64)


def power_of_test(m: Any, error: Any, risk: float, delta: float) -> FloatArray:
    """P(the exact test of ``risk`` succeeds) after ``m`` answers, each wrong with ``error``."""
    from scipy.special import bdtr

    most = allowed_errors(m, risk, delta)
    found = bdtr(np.maximum(most, 0).astype(np.float64), np.maximum(m, 1), error)
    return np.where(most < 0, 0.0, found)


def clopper_pearson_upper(errors: Any, m: Any, delta: float) -> FloatArray:
    """The exact 1−δ upper confidence limit of a risk after ``errors`` in ``m``; 1 when m = 0."""
    from scipy.special import betaincinv

    errors, m = np.broadcast_arrays(np.asarray(errors, float), np.asarray(m, float))
    inside = errors < m
    safe = np.where(inside, errors, 0.0)
    return np.where(
        inside, betaincinv(safe + 1.0, np.where(inside, m, 1.0) - safe, 1.0 - delta), 1.0
    )


def hoeffding_bentkus_p_value(mean_loss: Any, m: Any, risk: float) -> FloatArray:
    """A valid p-value of H: R > risk for losses anywhere in [0, 1] (Bates et al. 2021).

    min( exp(−m·h(L̂∧r, r)),  e·P(Binomial(m, r) ≤ ⌈m·L̂⌉) ),  h(a, b) the Bernoulli KL divergence.
    """
    from scipy.special import rel_entr

    mean, m = np.broadcast_arrays(np.asarray(mean_loss, float), np.asarray(m, float))
    a = np.minimum(mean, risk)
    divergence = rel_entr(a, risk) + rel_entr(1.0 - a, 1.0 - risk)
    hoeffding = np.exp(-m * divergence)
    # the ceiling is taken with a hair of slack, so that 3/10·10 counts as 3
    bentkus = np.e * binomial_p_value(np.ceil(m * mean - 1e-9), m, risk)
    return np.asarray(np.minimum(1.0, np.minimum(hoeffding, bentkus)))


def finite_sample_epsilon(n_candidates: int, delta: float, min_answered: int) -> float:
    """The paper's ε = √(log(2|Θ|/δ)/(2·m₀)) (Thm H.1): |Θ| candidates, m₀ answered or more."""
    return float(np.sqrt(np.log(2.0 * n_candidates / delta) / (2.0 * min_answered)))
