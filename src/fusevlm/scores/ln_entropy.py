"""Length-normalised entropy (Malinin & Gales) from the samples' log-probabilities."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._sequences import sequences
from fusevlm.scores.interface import Inputs


def ln_entropy(inputs: Inputs) -> FloatArray:
    """−(1/n) Σ_i (1/L_i) Σ_t ln p_it."""
    table = sequences(inputs)
    return -table.per_query(table.mean_log_likelihood)


def ln_entropy_umpire(inputs: Inputs) -> FloatArray:
    """(1/n) Σ_i (1/L_i) Σ_t −p_it·ln p_it: the reading in UMPIRE's comparison."""
    table = sequences(inputs)
    surprise = -np.exp(table.logprobs) * table.logprobs
    return table.per_query(table.per_sample(surprise) / table.length)
