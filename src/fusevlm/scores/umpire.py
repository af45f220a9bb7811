"""UMPIRE (Lau et al.): the volume of the responses, adjusted for the model's incoherence."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.fuse.evidence import balance_by_median
from fusevlm.scores._sequences import Sequences, sequences
from fusevlm.scores._stacks import by_size, gram, mean_log_eigenvalue
from fusevlm.scores.interface import Inputs, given

JITTER = 1e-8


def umpire(inputs: Inputs) -> FloatArray:
    """(1/2n)·logdet(EEᵀ + 1e-8·I) + α·mean(1 − p), p = exp(Σ_t log p_t) with EOS.

    E [n, d] has unit rows, neither centred nor whitened; α = |median/median| of the two terms on
    the calibration queries, without labels.
    """
    table = sequences(inputs)
    return _adjusted(inputs, _incoherence(table, table.log_likelihood))


def umpire_token(inputs: Inputs) -> FloatArray:
    """The same with p = exp(mean_t log p_t), which does not fall with the length."""
    table = sequences(inputs)
    return _adjusted(inputs, _incoherence(table, table.mean_log_likelihood))


def umpire_2025(inputs: Inputs) -> FloatArray:
    """logdet(EEᵀ + 1e-8·I) + 2α·Σ(1 − p): 2n times :func:`umpire`.

    The same ranking where all queries have n samples.
    """
    sizes = np.array([len(one) for one in inputs.samples])
    return 2.0 * sizes * umpire(inputs)


def _incoherence(table: Sequences, log_p: FloatArray) -> FloatArray:
    return table.per_query(-np.expm1(log_p))


def _adjusted(inputs: Inputs, incoherence: FloatArray) -> FloatArray:
    log_volume, fit = 0.5 * log_volumes(inputs), given(inputs.fit, "fit")
    alpha = balance_by_median(log_volume[fit], incoherence[fit])
    return log_volume + alpha * incoherence


def log_volumes(inputs: Inputs) -> FloatArray:
    """(1/n)·logdet(EEᵀ + 1e-8·I) [N]."""
    states = [given(one.embeddings, "embeddings") for one in inputs.samples]
    grams = [gram(E, "embeddings", unit=True) for E in states]
    return by_size(grams, lambda G: mean_log_eigenvalue(G, JITTER))
