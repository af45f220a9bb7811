"""Σ_r, the shape of response space, from one streaming and mergeable pass.

The accumulator keeps the mean, the d×d scatter and two small higher moments: what shrinkage needs,
and never the hidden states themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

Shrinkage = Literal["ledoit_wolf", "oas", "none"]
CountedIn = Literal["queries", "samples"]

_BLOCK_ROWS = 1024  # rows gathered before the d×d scatter is touched


@dataclass(frozen=True)
class ResponseShape:
    """Where responses lie and how they spread, with tr(Sigma_r)/d = 1."""

    mean: FloatArray  # [d]
    Sigma_r: FloatArray  # [d, d]
    scale: float  # tr/d before normalisation
    intensity: float  # how far Sigma_r was pulled towards the identity, 0..1
    n_samples: int
    n_queries: int


@dataclass(frozen=True)
class _Moments:
    """Sums over rows y = x − mean: count, mean, Σyyᵀ (lower triangle), Σ‖y‖²y and Σ‖y‖⁴."""

    count: int
    mean: FloatArray
    scatter: FloatArray
    third: FloatArray
    fourth: float

    @property
    def trace(self) -> float:
        return float(np.trace(self.scatter))


class CovarianceAccumulator:
    """Mean and covariance of all responses of all queries, in one pass and in bounded memory.

    ``update`` once per query; ``merge`` combines accumulators built on parts of the data in any
    order. Memory is one d×d float64 matrix plus a block of rows, whatever the number of queries.
    """

    def __init__(self, d: int) -> None:
        self.d = checks.count(d, "d")
        self.n_queries = 0
        self._pending: list[FloatArray] = []
        self._moments = _Moments(
            0, np.zeros(d), np.zeros((d, d), order="F"), np.zeros(d), fourth=0.0
        )

    @property
    def n_samples(self) -> int:
        return self._moments.count + sum(len(rows) for rows in self._pending)

    @property
    def mean(self) -> FloatArray:
        """Mean of all responses seen [d]."""
        self._flush()
        return self._moments.mean

    def update(self, rows: FloatArray) -> None:
        """Add the responses [n, d] of one query."""
        rows = checks.matrix(rows, "embeddings")
        if rows.shape[1] != self.d:
            raise InputError(
                f"embeddings has {rows.shape[1]} features; this run has {self.d}. "
                f"Use one model and one layer for all queries."
            )
        self.n_queries += 1
        self._pending.append(np.array(rows, order="C"))
        if sum(len(rows) for rows in self._pending) >= _BLOCK_ROWS:
            self._flush()

    def merge(self, other: CovarianceAccumulator) -> None:
        """Add everything ``other`` has seen; ``other`` stays usable."""
        if other.d != self.d:
            raise InputError(f"cannot merge accumulators of {other.d} and {self.d} features.")
        self._flush()
        other._flush()
        self._moments = _merged(self._moments, other._moments)
        self.n_queries += other.n_queries

    def estimate(
        self,
        shrinkage: Shrinkage | float = "ledoit_wolf",
        counted_in: CountedIn = "queries",
    ) -> ResponseShape:
        """Sigma_r = trace-normalised (1−ρ)·S + ρ·(tr S/d)·I.

        ρ is chosen by Ledoit–Wolf or OAS, or given as a number. Differs from the paper: it uses S
        itself, which is singular as soon as the distinct responses number fewer than d. Responses
        to one query are not independent, so ρ is chosen for ``n_queries`` observations unless
        ``counted_in="samples"``.
        """
        self._flush()
        moments = self._moments
        if moments.count < 2:
            raise InputError(
                f"the covariance of responses needs at least 2 samples; got {moments.count}."
            )
        S = _symmetric(moments.scatter) / moments.count
        scale = float(np.trace(S)) / self.d
        spread = np.finfo(float).eps * (float(np.mean(moments.mean**2)) + np.finfo(float).tiny)
        if not scale > spread:
            raise InputError(
                "all response embeddings are equal, so their covariance is zero and nothing can "
                "be whitened. Check that the hidden states belong to different responses, or use "
                "whitening='none'."
            )
        size = self.n_queries if counted_in == "queries" else moments.count
        intensity = _intensity(shrinkage, S, moments, size)
        S *= (1.0 - intensity) / scale
        S[np.diag_indices(self.d)] += intensity
        return ResponseShape(
            moments.mean, S, scale, intensity, n_samples=moments.count, n_queries=self.n_queries
        )

    def _flush(self) -> None:
        if self._pending:
            block = np.concatenate(self._pending)
            self._pending = []
            self._moments = _absorbed(self._moments, block)


def _intensity(shrinkage: Shrinkage | float, S: FloatArray, moments: _Moments, size: int) -> float:
    if isinstance(shrinkage, str):
        checks.choice(shrinkage, "shrinkage", get_args(Shrinkage))
        if shrinkage == "none":
            return 0.0
        if shrinkage == "oas":
            return oas_intensity(S, size)
        return ledoit_wolf_intensity(S, moments.fourth / moments.count, size)
    given = checks.scalar(shrinkage, "shrinkage")
    if not 0.0 <= given <= 1.0:
        raise InputError(f"shrinkage is {given:g}; expected a number from 0 to 1 or a rule's name.")
    return given


def ledoit_wolf_intensity(S: FloatArray, mean_fourth: float, size: int) -> float:
    """Ledoit & Wolf's ρ for covariance ``S`` [d, d] seen through ``size`` observations.

        ρ = min(1, b²/δ²),  δ² = ‖S − μI‖²/d,  b² = (E‖y‖⁴ − ‖S‖²)/(d·size),  μ = tr S/d

    ``mean_fourth`` is the mean of ‖y‖⁴ over centred rows. With clustered rows, ``size`` = clusters
    makes b² an upper bound of the cluster-robust variance of S (Jensen), exact when the rows of a
    cluster coincide; with one row per cluster it is the textbook estimator.
    """
    d = len(S)
    squared_norm = float(np.vdot(S, S))
    mu = float(np.trace(S)) / d
    delta2 = squared_norm / d - mu**2
    b2 = (mean_fourth - squared_norm) / (d * size)
    return _ratio(b2, delta2)


def oas_intensity(S: FloatArray, size: int) -> float:
    """Oracle-approximating shrinkage of Chen et al. (2010, eq. 23) for ``size`` observations.

    ρ = min(1, [(1−2/d)·tr S² + tr² S] / [(size+1−2/d)·(tr S² − tr² S/d)])
    """
    return oas_of_traces(float(np.trace(S)), float(np.vdot(S, S)), len(S), size)


def oas_of_traces(trace: float, squared_norm: float, d: int, size: int) -> float:
    """:func:`oas_intensity` from tr S and tr S² of a covariance in d dimensions."""
    return _ratio(
        (1 - 2 / d) * squared_norm + trace**2,
        (size + 1 - 2 / d) * (squared_norm - trace**2 / d),
    )


def _ratio(numerator: float, denominator: float) -> float:
    """numerator/denominator clipped to [0, 1]; 1 when S already is a multiple of the identity."""
    if denominator <= numerator:
        return 1.0
    return max(0.0, numerator / denominator)


def _absorbed(old: _Moments, block: FloatArray) -> _Moments:
    """``old`` plus a block of rows, adding to the scatter of ``old`` in place (it is ours)."""
    from scipy.linalg.blas import dsyrk

    size, mean = len(block), block.mean(axis=0)
    Y = block - mean
    norms = np.einsum("nd,nd->n", Y, Y)
    gap = mean - old.mean
    total = old.count + size
    # Chan's rank-one correction rides along as one more row of Y
    rank_one = np.sqrt(old.count * size / total) * gap
    new = _Moments(size, mean, np.zeros((0, 0)), third=norms @ Y, fourth=float(norms @ norms))
    shifted_old = _higher(old, gap * (size / total), old.scatter)
    shifted_new = _higher(new, -gap * (old.count / total), Y)
    scatter = dsyrk(
        1.0, np.vstack([Y, rank_one]).T, beta=1.0, c=old.scatter, lower=1, overwrite_c=1
    )
    return _Moments(
        total,
        old.mean + gap * (size / total),
        scatter,
        shifted_old[0] + shifted_new[0],
        shifted_old[1] + shifted_new[1],
    )


def _merged(a: _Moments, b: _Moments) -> _Moments:
    if b.count == 0:
        return a
    if a.count == 0:
        return replace(b, scatter=b.scatter.copy(order="F"))
    total = a.count + b.count
    gap = b.mean - a.mean
    shifted_a = _higher(a, gap * (b.count / total), a.scatter)
    shifted_b = _higher(b, -gap * (a.count / total), b.scatter)
    scatter = np.asfortranarray(a.scatter + b.scatter)
    scatter += np.outer(gap, gap) * (a.count * b.count / total)
    return _Moments(
        total,
        a.mean + gap * (b.count / total),
        scatter,
        shifted_a[0] + shifted_b[0],
        shifted_a[1] + shifted_b[1],
    )


def _higher(m: _Moments, shift: FloatArray, spread: FloatArray) -> tuple[FloatArray, float]:
    """Σ‖y'‖²y' and Σ‖y'‖⁴ for y' = y − shift, where the y are centred.

    ``spread`` is either the lower-triangular scatter [d, d] or the centred rows [n, d] themselves.
    """
    from scipy.linalg.blas import dsymv

    if m.count == 0:
        return m.third, m.fourth
    if spread is m.scatter:
        trace, product = m.trace, dsymv(1.0, m.scatter, shift, lower=1)
    else:
        trace, product = float(np.vdot(spread, spread)), spread.T @ (spread @ shift)
    square = float(shift @ shift)
    third = m.third - trace * shift - 2 * product - m.count * square * shift
    fourth = (
        m.fourth
        + 4 * float(shift @ product)
        + m.count * square**2
        - 4 * float(m.third @ shift)
        + 2 * square * trace
    )
    return third, fourth


def _symmetric(lower: FloatArray) -> FloatArray:
    """The full matrix of which ``lower`` holds the lower triangle (its upper one is ignored)."""
    full = np.tril(lower)
    full += np.tril(lower, -1).T
    return full
