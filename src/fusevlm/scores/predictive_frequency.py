"""How often the samples say the same."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._answers import answers
from fusevlm.scores.interface import Inputs, given


def frequency_answer(inputs: Inputs) -> FloatArray:
    """1 − the share of samples equal to the judged answer."""
    found = []
    for one in inputs.samples:
        sampled = answers(one)
        place = sampled.find(given(one.answer, "answer"))
        found.append(1.0 if place is None else 1.0 - sampled.share[place])
    return np.array(found)


def frequency_top(inputs: Inputs) -> FloatArray:
    """1 − the share of samples equal to the most frequent one; needs texts only."""
    return np.array([1.0 - answers(one).share.max() for one in inputs.samples])
