"""Scores of the graph whose edges are the similarities between the samples of a query.

Matrices of many queries are worked on together when they have the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.scores.interface import given
from fusevlm.types import Queries

Stack = FloatArray  # [B, n, n]
KEEP_BELOW = 0.9  # eigenvalues of the Laplacian whose eigenvectors embed the samples
TIME = 0.3  # of the heat kernel
_ROUNDING = 1e-6


def degree_matrix(queries: Queries) -> FloatArray:
    """DegMat (Lin et al.): trace(n·I − D)/n², D the degrees, self-similarity included.

    That is one minus the mean similarity between samples.
    """
    return np.array([1.0 - float(W.mean()) for W in _graphs(queries)])


def eccentricity(queries: Queries) -> FloatArray:
    """Eccentricity (Lin et al.): ‖(v_1 − v̄, …, v_n − v̄)‖, the spread in the spectral embedding.

    v_i are the entries for sample i of the eigenvectors of the normalised Laplacian with eigenvalue
    below 0.9.
    """
    return by_size(_graphs(queries), _spread)


def eigv(queries: Queries) -> FloatArray:
    """EigV (Lin et al.), a continuous count of groups: Σ_k max(0, 1 − λ_k).

    λ_k are the eigenvalues of the normalised Laplacian I − D^-½ W D^-½.
    """
    return by_size(_graphs(queries), _count)


def kernel_language_entropy(queries: Queries) -> FloatArray:
    """Kernel language entropy (Nikitin et al.): von Neumann entropy of a heat kernel over samples.

    −Σ λ ln λ / ln n over the eigenvalues of K_ij/(n·√(K_ii·K_jj)), K = exp(−0.3·(D − W)). W_ij adds
    the similarity in both directions. 0 for a single sample.
    """
    return by_size(_graphs(queries), _entropy)


def _spread(W: Stack) -> FloatArray:
    values, vectors = np.linalg.eigh(_normalised_adjacency(W))
    kept = 1.0 - values < KEEP_BELOW
    # centring a unit vector over samples leaves 1 − (1ᵀv)²/n of its squared length
    left = 1.0 - vectors.sum(axis=-2) ** 2 / W.shape[-1]
    return np.asarray(np.sqrt(np.maximum((kept * left).sum(axis=-1), 0.0)))


def _count(W: Stack) -> FloatArray:
    values = np.linalg.eigvalsh(_normalised_adjacency(W))  # 1 − λ_k
    return np.asarray(np.maximum(values, 0.0).sum(axis=-1))


def _entropy(similarity: Stack) -> FloatArray:
    n = similarity.shape[-1]
    if n == 1:
        return np.zeros(len(similarity))
    W = 2.0 * similarity
    laplacian = W.sum(axis=-1)[..., None] * np.eye(n) - W
    values, vectors = np.linalg.eigh(laplacian)
    heat = (vectors * np.exp(-TIME * values)[:, None, :]) @ vectors.swapaxes(-1, -2)
    root = np.sqrt(np.einsum("bii->bi", heat))
    density = heat / (n * root[:, :, None] * root[:, None, :])
    p = np.maximum(np.linalg.eigvalsh(density), np.finfo(np.float64).tiny)
    return np.asarray(-(p * np.log(p)).sum(axis=-1) / np.log(n))


def _normalised_adjacency(W: Stack) -> Stack:
    """D^-½ W D^-½ [B, n, n]; 1 minus its eigenvalues are those of the normalised Laplacian."""
    root = np.sqrt(W.sum(axis=-1))
    return np.asarray(W / (root[..., :, None] * root[..., None, :]))


def _graphs(queries: Queries) -> list[FloatArray]:
    return symmetric(given(queries, "similarity"))


def symmetric(similarity: Sequence[FloatArray]) -> list[FloatArray]:
    """(W + Wᵀ)/2 of each similarity matrix, checked to lie in [0, 1]."""
    found = []
    for i, one in enumerate(similarity):
        W = np.asarray(one, dtype=np.float64)
        low, high = float(W.min()), float(W.max())
        if not (low >= -_ROUNDING and high <= 1.0 + _ROUNDING):
            raise InputError(
                f"similarity[{i}] ranges over [{low:g}, {high:g}]; expected [0, 1]. "
                f"Clip negative cosines at 0, or use (1 + cosine)/2."
            )
        W = np.clip(W, 0.0, 1.0)
        if float(W.sum(axis=1).min()) == 0.0:
            raise InputError(
                f"similarity[{i}] has a row of zeros; a sample is at least similar to itself. "
                f"Put 1 on the diagonal."
            )
        found.append(0.5 * (W + W.T))
    return found


def by_size(matrices: Sequence[FloatArray], score: Callable[[Stack], FloatArray]) -> FloatArray:
    """``score`` [B] of every stack of equally large matrices, back in the given order.

    Equal matrices are scored once: where all answers are alike, so are the similarities.
    """
    known: dict[bytes, int] = {}
    distinct: list[FloatArray] = []
    place = []
    for one in matrices:
        key = np.ascontiguousarray(one).tobytes()
        if key not in known:
            known[key] = len(distinct)
            distinct.append(one)
        place.append(known[key])
    sizes = np.array([len(one) for one in distinct])
    found = np.empty(len(distinct))
    for size in np.unique(sizes):
        here = np.flatnonzero(sizes == size)
        found[here] = score(np.stack([distinct[int(i)] for i in here]))
    return found[place]
