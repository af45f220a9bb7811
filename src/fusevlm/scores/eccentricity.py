"""Eccentricity (Lin et al.): the spread of the samples in the graph's spectral embedding."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._stacks import Stack, by_size, normalised_adjacency, symmetric
from fusevlm.scores.interface import Inputs, given

KEEP_BELOW = 0.9  # eigenvalues of the Laplacian whose eigenvectors embed the samples


def eccentricity(inputs: Inputs) -> FloatArray:
    """‖(v_1 − v̄, …, v_n − v̄)‖, v_i the entries for sample i of the kept eigenvectors.

    Kept are those of the normalised Laplacian with eigenvalue below 0.9.
    """
    return by_size(symmetric(given(inputs.similarity, "similarity")), _spread)


def _spread(W: Stack) -> FloatArray:
    values, vectors = np.linalg.eigh(normalised_adjacency(W))
    kept = 1.0 - values < KEEP_BELOW
    # centring a unit vector over samples leaves 1 − (1ᵀv)²/n of its squared length
    left = 1.0 - vectors.sum(axis=-2) ** 2 / W.shape[-1]
    return np.asarray(np.sqrt(np.maximum((kept * left).sum(axis=-1), 0.0)))
