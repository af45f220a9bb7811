"""Whitening: from raw response rows to the Gram matrix of whitened ones.

Everything after this point needs only the n×n Gram R̃R̃ᵀ with R̃ = (R − mean)·Σ_r^{-½}, and that does
not depend on which square root is taken: the triangular one is as good as the symmetric one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from typing import Annotated

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, Shape
from fusevlm.errors import InputError
from fusevlm.maths.covariance import ResponseShape


class _Named:
    """What a whitening is known by: a Gram matrix that is kept says which one made it."""

    @cached_property
    def fingerprint(self) -> str:
        """12 hexadecimal digits of its numbers."""
        total = sha256(type(self).__name__.encode())
        for part in fields(self):  # type: ignore[arg-type]
            total.update(np.ascontiguousarray(getattr(self, part.name)).tobytes())
        return total.hexdigest()[:12]


@dataclass(frozen=True)
class NoWhitening(_Named):
    """Centre only (or not even that, with a zero mean): UMPIRE's geometry."""

    mean: Annotated[FloatArray, Shape("d")]

    @property
    def d(self) -> int:
        return len(self.mean)

    def gram(self, rows: FloatArray) -> FloatArray:
        centred = rows - self.mean
        return np.asarray(centred @ centred.T)


@dataclass(frozen=True)
class ExactWhitening(_Named):
    """Σ_r = L·Lᵀ; whitened rows are L^{-1}(r − mean). Cost O(n·d²) a query."""

    mean: Annotated[FloatArray, Shape("d")]
    L: Annotated[FloatArray, Shape("d", "d")]  # lower triangular

    @property
    def d(self) -> int:
        return len(self.mean)

    def gram(self, rows: FloatArray) -> FloatArray:
        from scipy.linalg import solve_triangular

        white = solve_triangular(self.L, (rows - self.mean).T, lower=True, check_finite=False)
        return np.asarray(white.T @ white)


@dataclass(frozen=True)
class LowRankWhitening(_Named):
    """Σ_r ≈ F·Fᵀ + diag(D) with F [d, k]. Cost O(n·d·(n+k)) a query.

    By Woodbury Σ_r^{-1} = D^{-1} − B·Bᵀ with B = D^{-1}F·C^{-ᵀ} and C·Cᵀ = I + FᵀD^{-1}F, so the
    whitened Gram is (R D^{-½})(R D^{-½})ᵀ − (R B)(R B)ᵀ.
    """

    mean: Annotated[FloatArray, Shape("d")]
    inverse_root_D: Annotated[FloatArray, Shape("d")]
    B: Annotated[
        FloatArray, Shape("d", "k")
    ]  # already divided by inverse_root_D: acts on scaled rows

    @property
    def d(self) -> int:
        return len(self.mean)

    def gram(self, rows: FloatArray) -> FloatArray:
        scaled = (rows - self.mean) * self.inverse_root_D
        low = scaled @ self.B
        return np.asarray(scaled @ scaled.T - low @ low.T)


@dataclass(frozen=True)
class PcaWhitening(_Named):
    """The leading r principal directions only, each scaled to unit variance; d is then r."""

    mean: Annotated[FloatArray, Shape("d")]
    projection: Annotated[FloatArray, Shape("d", "r")]

    @property
    def d(self) -> int:
        return int(self.projection.shape[1])

    def gram(self, rows: FloatArray) -> FloatArray:
        white = (rows - self.mean) @ self.projection
        return np.asarray(white @ white.T)


Whitener = NoWhitening | ExactWhitening | LowRankWhitening | PcaWhitening


def no_whitening(mean: FloatArray) -> NoWhitening:
    """Centre rows by ``mean`` and leave their geometry alone."""
    return NoWhitening(mean)


def uncentred(whitener: Whitener) -> Whitener:
    """The same whitening without subtracting the mean."""
    return replace(whitener, mean=np.zeros_like(whitener.mean))


def exact_whitening(shape: ResponseShape) -> ExactWhitening:
    """Whiten with the Cholesky factor of ``shape.Sigma_r``. Cost O(d³) once."""
    from scipy.linalg import LinAlgError, cholesky

    try:
        L = cholesky(shape.Sigma_r, lower=True, check_finite=False)
    except LinAlgError as error:
        raise InputError(
            f"the response covariance is singular: {shape.n_samples} samples of "
            f"{shape.n_queries} queries in {len(shape.mean)} dimensions with shrinkage "
            f"{shape.intensity:g}. Use shrinkage='ledoit_wolf' or 'oas', more queries, or "
            f"whitening='none'."
        ) from error
    return ExactWhitening(shape.mean, np.asarray(L))


def low_rank_whitening(
    shape: ResponseShape, rank: int = 128, *, n_passes: int = 1, seed: int = 0
) -> LowRankWhitening:
    """Whiten with the ``rank`` leading eigenpairs of Σ_r and the exact diagonal of what remains.

    F carries each leading eigenvalue less the mean of the others, so the form is exact for a
    low-rank matrix plus a multiple of the identity.
    The eigenpairs come from randomised subspace iteration (Halko et al. 2011) with ``n_passes``
    power passes: O(d²·rank) instead of the O(d³) of a full factorisation.
    Differs from the paper: it inverts the full matrix. The diagonal is kept exactly, so the trace
    normalisation survives.
    """
    from scipy.linalg import cholesky, solve_triangular

    d = len(shape.mean)
    rank = checks.count(rank, "rank")
    if rank >= d:
        raise InputError(
            f"rank is {rank} for {d} features; a low-rank form needs rank < {d}. "
            f"Use a smaller rank, or whitening='exact'."
        )
    values, vectors = _leading_eigenpairs(shape.Sigma_r, rank, n_passes, seed)
    diagonal = np.diag(shape.Sigma_r)
    rest = (float(diagonal.sum()) - float(values.sum())) / (d - rank)  # mean remaining eigenvalue
    F = vectors * np.sqrt(np.maximum(values - rest, 0.0))
    D = diagonal - np.einsum("dk,dk->d", F, F)
    floor = 1e-12 * float(diagonal.mean())
    if float(D.min()) <= floor:
        raise InputError(
            f"rank {rank} explains a feature's whole variance, so nothing is left for the "
            f"diagonal. Use a smaller rank or a shrunk covariance."
        )
    root = 1.0 / np.sqrt(D)
    scaled_F = F * root[:, None]
    C = cholesky(np.eye(rank) + scaled_F.T @ scaled_F, lower=True)
    B = solve_triangular(C, scaled_F.T, lower=True).T
    return LowRankWhitening(shape.mean, root, np.ascontiguousarray(B))


def pca_whitening(
    shape: ResponseShape, rank: int = 128, *, n_passes: int = 4, seed: int = 0
) -> PcaWhitening:
    """Keep ``rank`` principal directions of Σ_r and whiten within them.

    The responses then live in ``rank`` dimensions: that is the d of all formulas, and more samples
    than directions use the d×d scatter.
    """
    d = len(shape.mean)
    rank = checks.count(rank, "rank")
    if rank > d:
        raise InputError(f"rank is {rank} for {d} features; expected at most {d}.")
    values, vectors = _leading_eigenpairs(shape.Sigma_r, rank, n_passes, seed)
    if float(values.min()) <= 1e-12 * float(values.max()):
        raise InputError(
            f"the responses span fewer than {rank} directions. Use a smaller rank, or shrinkage."
        )
    return PcaWhitening(shape.mean, vectors / np.sqrt(values))


def _leading_eigenpairs(
    Sigma: FloatArray, rank: int, n_passes: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """The ``rank`` largest eigenvalues and their vectors of a symmetric matrix, approximately."""
    d = len(Sigma)
    width = min(d, rank + 16)
    block = Sigma @ np.random.default_rng(seed).standard_normal((d, width))
    for _ in range(n_passes):
        block = Sigma @ np.linalg.qr(block)[0]
    basis = np.linalg.qr(block)[0]
    values, inner = np.linalg.eigh(basis.T @ (Sigma @ basis))
    leading = slice(width - rank, width)
    return values[leading], basis @ inner[:, leading]
