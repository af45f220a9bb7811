"""P(True) (Kadavath et al.): the model's own probability that its answer is right."""

from __future__ import annotations

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.scores.interface import Inputs, given


def p_true(inputs: Inputs) -> FloatArray:
    """1 − P(True), as the back-end reported it."""
    p = checks.vector(given(inputs.p_true, "p_true"), "p_true", length=len(inputs))
    if float(p.min()) < 0.0 or float(p.max()) > 1.0:
        raise InputError(f"p_true ranges over [{p.min():g}, {p.max():g}]; expected probabilities.")
    return np.asarray(1.0 - p)
