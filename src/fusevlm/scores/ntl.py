"""NTL, next-token likelihood: the paper's qualitative reference."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._sequences import sequences, starts
from fusevlm.scores.interface import Inputs


def ntl(inputs: Inputs) -> FloatArray:
    """1 − NTL, NTL the mean of p_t over all tokens of all samples of the query."""
    table = sequences(inputs)
    first = starts(table.sizes)
    total = np.add.reduceat(table.per_sample(np.exp(table.logprobs)), first)
    return np.asarray(1.0 - total / np.add.reduceat(table.length, first))
