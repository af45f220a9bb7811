"""The semantic evidence Ṽ = logdet S_w of one query, and its intercept.

All functions work on the Gram matrix G = RRᵀ [n, n] of (whitened) responses: it is all the evidence
needs. Weights are handled as logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.displays import Displayed
from fusevlm.errors import InputError
from fusevlm.maths.wishart import scatter_moments

DEFAULT_JITTER = 1e-8
_ROUNDING = 1e-14  # a pivot this much smaller than the largest is rounding error

Intercept = Literal["a0", "taylor", "exact"]


@dataclass(frozen=True)
class Evidence(Displayed):
    """Ṽ of one query with what was done to obtain it. ``float(evidence)`` is Ṽ."""

    value: float  # Ṽ = logdet of the jittered, weighted scatter
    slope: int  # dṼ/du: n, or d when n > d
    n: int  # samples
    d: int  # features of each
    jitter: float  # absolute amount added to the diagonal before weighting

    def __float__(self) -> float:
        return self.value

    def _title(self) -> str:
        return f"Ṽ = {self.value:.6g}"

    def _facts(self) -> dict[str, str]:
        return {
            "samples, features": f"{self.n}, {self.d}",
            "slope": str(self.slope),
            "jitter": f"{self.jitter:.3g}",
        }


def semantic_evidence(
    embeddings: Any, weights: Any = None, jitter: float = DEFAULT_JITTER
) -> Evidence:
    """Ṽ = logdet(W^½ (RRᵀ + jI) W^½) of responses R [n, d] (Def. 4.3, Def. 4.7).

    ``embeddings`` are used as they are: normalise, centre and whiten first where that is wanted.
    ``weights`` are the w_i (default 1). ``jitter`` is relative to the mean diagonal of RRᵀ and is
    added *before* the weights, so repeated responses give a finite value that still moves with
    them; the absolute amount is reported. With n > d the d×d scatter is used, with slope d.
    Differs from the paper: it has no jitter, and is −inf as soon as two responses are equal.
    """
    R = checks.matrix(embeddings, "embeddings")
    log_w = None
    if weights is not None:
        w = checks.vector(weights, "weights", length=len(R))
        if float(w.min()) <= 0:
            raise InputError(f"weights must be above 0; the smallest is {w.min():g}.")
        log_w = np.log(w)
    return gram_evidence(R @ R.T, R.shape[1], log_w, jitter)


def gram_evidence(
    G: FloatArray, d: int, log_w: FloatArray | None = None, jitter: float = DEFAULT_JITTER
) -> Evidence:
    """:func:`semantic_evidence` from the Gram matrix G [n, n] of rows in R^d and log-weights."""
    n = len(G)
    amount = jitter_amount(G, d, jitter)
    return Evidence(log_det(G, d, log_w, amount), slope=min(n, d), n=n, d=d, jitter=amount)


def jitter_amount(G: FloatArray, d: int, jitter: float) -> float:
    """Relative ``jitter`` × the mean diagonal of the scatter that will be factorised."""
    n = len(G)
    if n < 2:
        raise InputError(
            f"the evidence needs at least 2 sampled responses; got {n}. Sample more answers, "
            f"or score without the log-det evidence."
        )
    if not 0.0 <= jitter < 1.0:
        raise InputError(f"jitter is {jitter:g}; expected a relative amount from 0 to below 1.")
    trace = float(np.trace(G))
    if trace <= 0.0:
        raise InputError(
            "all embeddings of a query are zero after centring, so their volume is undefined. "
            "Check the hidden states, or use center='none'."
        )
    return jitter * trace / min(n, d)


def log_det(G: FloatArray, d: int, log_w: FloatArray | None, amount: float) -> float:
    """logdet of the weighted scatter with ``amount`` on its unweighted diagonal.

    n ≤ d: logdet(G + jI) + Σ log w, as det(W^½AW^½) = det W · det A.
    n > d: Σ log of the d leading eigenvalues of W^½GW^½ plus j, which is logdet(RᵀWR + jI).
    """
    n = len(G)
    if n <= d:
        diagonal = np.diag(_cholesky(G, amount))
        plain = 2.0 * float(np.sum(np.log(diagonal)))
        return plain if log_w is None else plain + float(np.sum(log_w))
    log_w = np.zeros(n) if log_w is None else log_w
    top = float(log_w.max())  # weights relative to the largest: no overflow
    weighted = G * np.exp(0.5 * (log_w[:, None] + log_w[None, :]) - top)
    values = np.maximum(np.linalg.eigvalsh(weighted)[n - d :], 0.0) + amount * np.exp(-top)
    if float(values.min()) <= _ROUNDING * float(values.max()):
        raise _singular()
    return float(np.sum(np.log(values))) + d * top


def inverse_diagonal(G: FloatArray, amount: float) -> FloatArray:
    """diag((G + jI)^{-1}) [n] from one Cholesky factor."""
    from scipy.linalg import solve_triangular

    root = solve_triangular(_cholesky(G, amount), np.eye(len(G)), lower=True, check_finite=False)
    return np.asarray(np.einsum("ij,ij->j", root, root))


def _cholesky(G: FloatArray, amount: float) -> FloatArray:
    A = G.copy()
    A[np.diag_indices(len(A))] += amount
    try:
        L = np.asarray(np.linalg.cholesky(A), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        raise _singular() from error
    pivots = np.diag(L) ** 2
    if float(pivots.min()) <= _ROUNDING * float(pivots.max()):
        raise _singular()
    return L


def _singular() -> InputError:
    return InputError(
        "the scatter of responses is singular: responses repeat, or span too few directions. "
        "Use a jitter above 0 (1e-8 is the default)."
    )


# --- weights --------------------------------------------------------------------------------------


def log_weights(p: FloatArray, alpha: float) -> FloatArray:
    """log w_i = 2α(1 − p_i) (Def. 4.6); ``p`` [n] is the confidence in each response."""
    return 2.0 * alpha * (1.0 - p)


def effective_size(log_w: FloatArray) -> float:
    """ν_eff = (Σw)²/Σw², between 1 and n, stable for weights of any size."""
    w = np.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / (w @ w))


def taylor_log_det(log_w: FloatArray) -> tuple[float, float]:
    """The paper's second-order form of logdet W = Σ log w, and its error R_w.

    logdet W = n·ln w̄ − (n/2)(n/ν_eff − 1) + R_w   (eq. logdetW-approx)
    """
    n = len(log_w)
    top = float(log_w.max())
    log_mean = top + float(np.log(np.mean(np.exp(log_w - top))))
    approx = n * log_mean - 0.5 * n * (n / effective_size(log_w) - 1.0)
    return approx, float(np.sum(log_w)) - approx


# --- intercepts -----------------------------------------------------------------------------------


def intercept(kind: str, n: int, d: int, log_w: FloatArray) -> float:
    """The a of Ṽ | u ~ N(a + slope·u, τ²).

    ``a0``      the Wishart mean alone: the weights then act on Ṽ − a.
    ``taylor``  the paper's a_w = a0 + n·ln w̄ − (n/2)(n/ν_eff − 1): the weights cancel up to R_w.
    ``exact``   a0 + logdet W: the weights cancel entirely, Ṽ − a is the unweighted one.
    """
    checks.choice(kind, "intercept", get_args(Intercept))
    a0, _ = scatter_moments(n, d)
    if kind == "a0":
        return a0
    if n > d:
        raise InputError(
            f"intercept {kind!r} is defined for n ≤ d; got n={n} samples in d={d} dimensions. "
            f"Use intercept='a0', or fewer samples."
        )
    return a0 + (taylor_log_det(log_w)[0] if kind == "taylor" else float(np.sum(log_w)))
