"""Gaussians of embeddings: distances from a reference, and of the reference's own rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fusevlm.checks import FloatArray, IntArray, Shape
from fusevlm.errors import InputError
from fusevlm.maths.covariance import oas_intensity, oas_of_traces


@dataclass(frozen=True)
class Gaussian:
    """Mean and inverse Cholesky factor of one modality's training embeddings."""

    mean: Annotated[FloatArray, Shape("D")]
    # L⁻¹ [D, D] with LLᵀ = Σ; or with a reduction before it
    inverse_root: Annotated[FloatArray, Shape("C", "D")]


def fit_gaussian(rows: FloatArray) -> Gaussian:
    """Mean and covariance (1 − ρ)·S + ρ·(tr S/D)·I with the OAS intensity ρ.

    N is often below D: without shrinkage Σ has no inverse.
    """
    from scipy.linalg import cholesky, solve_triangular

    N, D = rows.shape
    mean = rows.mean(axis=0)
    S = np.cov(rows, rowvar=False, bias=True).reshape(D, D)
    if not np.ptp(rows, axis=0).any():
        raise InputError("all training embeddings are equal; a covariance needs them to differ.")
    rho = oas_intensity(S, N)
    Sigma = (1.0 - rho) * S
    Sigma[np.diag_indices(D)] += rho * float(np.trace(S)) / D
    L = cholesky(Sigma, lower=True)
    return Gaussian(mean, np.asarray(solve_triangular(L, np.eye(D), lower=True)))


def mahalanobis(rows: FloatArray, gaussian: Gaussian) -> FloatArray:
    """√[(z − m)ᵀΣ⁻¹(z − m)/D] of each row: about 1 for rows like the training ones."""
    white = (rows - gaussian.mean) @ gaussian.inverse_root.T
    return np.asarray(np.sqrt(np.mean(white * white, axis=1)))


def left_out_mahalanobis(rows: FloatArray, groups: Sequence[str]) -> FloatArray:
    """:func:`mahalanobis` of each row under a fit without its group.

    With d the rows' deviations from the mean of all and t their sum over the group, of the n other
    rows the mean is m − t/n and the covariance (N/n)·S − UᵀU/n, U = [d; t/√n].
    """
    N, D = rows.shape
    deviations = rows - rows.mean(axis=0)
    values, Q = spectrum(deviations.T @ deviations / N)
    C = deviations @ Q
    trace, square = float(values.sum()), float(values @ values)
    found = np.empty(N)
    for own in rows_of_groups(groups, N):
        n = N - len(own)
        t = C[own].sum(axis=0)
        U = np.vstack([C[own], t / np.sqrt(n)])
        left = (N * trace - float(np.vdot(U, U))) / n
        need_rest(left, trace)
        within = U @ U.T
        squared = N * N * square - 2.0 * N * float(np.sum(U * U * values))
        squared = (squared + float(np.vdot(within, within))) / n**2
        rho = oas_of_traces(left, squared, D, n)
        B = (1.0 - rho) * (N / n) * values + rho * left / D
        gain = (1.0 - rho) / n
        E = C[own] + t / n
        plain = np.einsum("kd,kd->k", E / B, E)
        cross = (U / B) @ E.T
        inner = np.eye(len(U)) - gain * (U / B) @ U.T
        raised = gain * np.einsum("uk,uk->k", cross, np.linalg.solve(inner, cross))
        found[own] = np.sqrt((plain + raised) / D)
    return found


def spectrum(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues, none below 0, and eigenvectors."""
    from scipy.linalg import eigh

    values, Q = eigh(matrix)
    return np.maximum(values, 0.0), np.asarray(Q)


def rows_of_groups(groups: Sequence[str], size: int) -> Iterator[IntArray]:
    """The rows of each group."""
    if len(groups) != size:
        raise InputError(f"there are {len(groups)} groups for {size} rows; expected one each.")
    names, place = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise InputError(
            f"{size} queries of one unit are no reference for their own activations. Use more "
            f"calibration queries, or another data.unit."
        )
    order = np.argsort(place, kind="stable")
    yield from np.split(order, np.cumsum(np.bincount(place))[:-1])


def need_rest(left: float, whole: float) -> None:
    """Refuse a reference that has no variance without one of its groups."""
    if left <= 1e-12 * whole:
        raise InputError(
            "all calibration queries but those of one unit have the same activations; a reference "
            "needs them to differ. Use more calibration queries."
        )
