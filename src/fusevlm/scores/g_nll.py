"""G-NLL: how surprising the judged answer itself is."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores.interface import Inputs, given


def g_nll(inputs: Inputs) -> FloatArray:
    """−Σ_t ln p(ŷ_t) of the judged (greedy) answer at temperature 1, EOS included."""
    rows = [given(one.answer_logprobs, "answer_logprobs") for one in inputs.samples]
    return np.array([-float(np.sum(row)) for row in rows])
