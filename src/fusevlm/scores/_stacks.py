"""Square matrices of many queries, worked on together when they have the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

Stack = FloatArray  # [B, n, n]
_ROUNDING = 1e-6


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


def mean_log_eigenvalue(grams: Stack, added: float) -> FloatArray:
    """(1/n)·logdet(G + added·I) [B] of Gram matrices; eigenvalues below 0 are rounding."""
    values = np.maximum(np.linalg.eigvalsh(grams), 0.0) + added
    return np.asarray(np.log(values).mean(axis=-1))


def gram(rows: FloatArray, name: str, *, unit: bool = False, centred: bool = False) -> FloatArray:
    """RRᵀ [n, n] of the rows of R, made unit length and centred over features if wanted."""
    rows = checks.matrix(rows, name)
    if unit:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        if float(norms.min()) == 0.0:
            raise InputError(
                f"row {int(norms.argmin())} of {name} is all zeros and has no direction. "
                f"Repair the step that made these hidden states."
            )
        rows = rows / norms
    if centred:
        rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows @ rows.T)


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


def normalised_adjacency(W: Stack) -> Stack:
    """D^-½ W D^-½ [B, n, n]; 1 minus its eigenvalues are those of the normalised Laplacian."""
    root = np.sqrt(W.sum(axis=-1))
    return np.asarray(W / (root[..., :, None] * root[..., None, :]))
