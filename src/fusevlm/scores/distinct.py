"""The number of different answers among the samples."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._answers import answers
from fusevlm.scores.interface import Inputs


def distinct(inputs: Inputs) -> FloatArray:
    """How many different answers were sampled."""
    return np.array([float(len(answers(one).texts)) for one in inputs.samples])
