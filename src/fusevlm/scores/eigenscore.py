"""EigenScore (INSIDE, Chen et al.): the spread of the responses' hidden states.

The covariance runs over features, so only the n×n Gram matrix of the row-centred states is formed.
"""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._stacks import by_size, gram, mean_log_eigenvalue
from fusevlm.scores.interface import Inputs, given

ALPHA = 1e-3


def eigenscore(inputs: Inputs) -> FloatArray:
    """(1/n)·logdet(E J Eᵀ + αI), J = I − 11ᵀ/d, α = 1e-3, on the middle layer.

    The mean log eigenvalue, as LM-Polygraph computes it too.
    """
    grams = [gram(E, "middle", centred=True) for E in given(inputs.middle, "middle")]
    return by_size(grams, lambda G: mean_log_eigenvalue(G, ALPHA))


def eigenscore_code(inputs: Inputs) -> FloatArray:
    """Mean log10 eigenvalue of E J Eᵀ/(d − 1) + αI: what INSIDE's released code computes."""
    grams = [
        gram(E, "middle", centred=True) / max(np.shape(E)[1] - 1, 1)
        for E in given(inputs.middle, "middle")
    ]
    natural = by_size(grams, lambda G: mean_log_eigenvalue(G, ALPHA))
    return np.asarray(natural / np.log(10.0))


def eigenscore_last(inputs: Inputs) -> FloatArray:
    """:func:`eigenscore` of unit-length last-layer states, the form UMPIRE compares with."""
    states = [given(one.embeddings, "embeddings") for one in inputs.samples]
    grams = [gram(E, "embeddings", unit=True, centred=True) for E in states]
    return by_size(grams, lambda G: mean_log_eigenvalue(G, ALPHA))
