"""τ², the variance of Ṽ given u, estimated from the samples of a query.

The paper takes the Wishart variance v(d, n); real response noise is far larger, which is what makes
the prior count. Estimators here are on the scale of Ṽ: τ² = slope²·Var(û), û = (Ṽ − a)/slope.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.maths.evidence import intercept, inverse_diagonal, jitter_amount, log_det


def jackknife_tau2(
    G: FloatArray, d: int, log_w: FloatArray, *, intercept_kind: str, jitter: float
) -> float:
    """Leave-one-out τ² of one query at the cost of one factorisation.

    n ≤ d: logdet S₋ᵢ = logdet S + log (S⁻¹)ᵢᵢ.  n > d: logdet S₋ᵢ = logdet S + log(1 − hᵢ) with the
    leverage hᵢ. Each û₋ᵢ uses the moments of n−1 samples; Var(û) = (n−1)/n · Σ(û₋ᵢ − mean)².
    """
    n = len(G)
    if n < 3:
        raise InputError(
            f"the jackknife needs at least 3 samples; got {n}. Sample more, or use "
            f"noise='analytic'."
        )
    amount = jitter_amount(G, d, jitter)
    left_out = leave_one_out_log_dets(G, d, log_w, amount)
    slope = min(n - 1, d)
    intercepts = [
        intercept(intercept_kind, n - 1, d, np.delete(log_w, i))
        if intercept_kind != "a0"
        else intercept("a0", n - 1, d, log_w)
        for i in range(n)
    ]
    u = (left_out - np.array(intercepts)) / slope
    variance = (n - 1) / n * float(np.sum((u - u.mean()) ** 2))
    return min(n, d) ** 2 * variance


def leave_one_out_log_dets(G: FloatArray, d: int, log_w: FloatArray, amount: float) -> FloatArray:
    """logdet of the weighted scatter [n] with each response left out in turn."""
    n = len(G)
    whole = log_det(G, d, log_w, amount)
    if n <= d:
        return np.asarray(whole - log_w + np.log(inverse_diagonal(G, amount)))
    root_w = np.exp(0.5 * log_w)
    values, vectors = np.linalg.eigh(G * root_w[:, None] * root_w[None, :])
    values, vectors = np.maximum(values[n - d :], 0.0), vectors[:, n - d :]
    leverage = np.einsum("nk,k->n", vectors**2, values / (values + amount))
    return np.asarray(whole + np.log1p(-leverage))


def split_half_tau2(
    G: FloatArray, d: int, log_w: FloatArray, *, intercept_kind: str, jitter: float
) -> float:
    """τ² of one query from the disagreement of û between halves of its samples.

    If û averages n independent contributions, halves of sizes h and n−h differ with variance
    σ²(1/h + 1/(n−h)), and Var(û) = σ²/n. The halvings are the rows of a Hadamard matrix (balanced
    repeated replication): any two samples are together in half of them. Samples are put into a
    canonical order first, so that the order of drawing does not matter, and then into fixed random
    ones, so that no halving separates large from small.
    """
    n = len(G)
    if n < 4:
        raise InputError(
            f"split halves need at least 4 samples; got {n}. Sample more, or use noise='jackknife'."
        )
    order = np.lexsort((np.round(G.sum(axis=1), 9), np.round(np.diag(G), 9), log_w))
    variances = []
    for side in _halvings(n):
        a, b = order[side], order[~side]
        u = [_scale(G, d, log_w, part, intercept_kind, jitter) for part in (a, b)]
        variances.append((u[0] - u[1]) ** 2 / (1 / len(a) + 1 / len(b)))
    return min(n, d) ** 2 * float(np.mean(variances)) / n


@cache
def _halvings(n: int) -> tuple[BoolArray, ...]:
    """Balanced halvings of n things in three shuffles, as masks; neither side much below 40 %."""
    from scipy.linalg import hadamard

    rows = hadamard(1 << (n - 1).bit_length())[1:, :n] > 0
    least = max(2, math.floor(0.4 * n))
    kept = [row for row in rows if least <= row.sum() <= n - least]
    rng = np.random.default_rng(0)
    shuffles = [rng.permutation(n) for _ in range(3)]
    return tuple(row[shuffle] for shuffle in shuffles for row in kept)


def _scale(
    G: FloatArray, d: int, log_w: FloatArray, part: IntArray, kind: str, jitter: float
) -> float:
    """û of a subset of the samples."""
    sub, weights = G[np.ix_(part, part)], log_w[part]
    amount = jitter_amount(sub, d, jitter)
    n = len(part)
    return (log_det(sub, d, weights, amount) - intercept(kind, n, d, weights)) / min(n, d)


def ols_noise(V: FloatArray, slope: FloatArray, m0: FloatArray) -> tuple[float, float]:
    """The paper's OLS ablation: Ṽ = a + slope·m0(s) + ε, returning (â, τ̂²) over N queries.

    â = mean(Ṽ − slope·m0),  τ̂² = Σ(Ṽ − â − slope·m0)²/(N−2).
    Differs from the paper: its slope d is a leftover (the Gram slope is n) and its û is undefined;
    here û = m0(s).
    """
    if len(V) < 3:
        raise InputError(f"the OLS noise needs at least 3 queries; got {len(V)}.")
    rest = V - slope * m0
    a = float(rest.mean())
    return a, float(np.sum((rest - a) ** 2)) / (len(V) - 2)
