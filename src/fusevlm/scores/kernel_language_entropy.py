"""Kernel language entropy (Nikitin et al.): von Neumann entropy of a heat kernel over samples."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._stacks import Stack, by_size, symmetric
from fusevlm.scores.interface import Inputs, given

TIME = 0.3


def kernel_language_entropy(inputs: Inputs) -> FloatArray:
    """−Σ λ ln λ / ln n over the eigenvalues of K_ij/(n·√(K_ii·K_jj)), K = exp(−0.3·(D − W)).

    W_ij adds the similarity in both directions. 0 for a single sample.
    """
    return by_size(symmetric(given(inputs.similarity, "similarity")), _entropy)


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
