"""Neighborhood consistency (Khan & Fu): does the answer survive rephrased questions?"""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores.interface import Inputs, given


def neighborhood(inputs: Inputs) -> FloatArray:
    """1 − the fraction of rephrasings whose answer agrees with the judged one.

    A query for which no question could be made or answered has nothing that agrees: 1.
    """
    rows = given(inputs.agreement, "agreement")
    return np.array([1.0 - float(np.mean(row)) if np.size(row) else 1.0 for row in rows])
