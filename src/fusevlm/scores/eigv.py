"""EigV (Lin et al.): a continuous count of the semantic groups."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._stacks import Stack, by_size, normalised_adjacency, symmetric
from fusevlm.scores.interface import Inputs, given


def eigv(inputs: Inputs) -> FloatArray:
    """Σ_k max(0, 1 − λ_k) over the eigenvalues of the normalised Laplacian I − D^-½ W D^-½."""
    return by_size(symmetric(given(inputs.similarity, "similarity")), _count)


def _count(W: Stack) -> FloatArray:
    values = np.linalg.eigvalsh(normalised_adjacency(W))  # 1 − λ_k
    return np.asarray(np.maximum(values, 0.0).sum(axis=-1))
