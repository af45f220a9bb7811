"""DegMat (Lin et al.): one minus the mean similarity between samples."""

from __future__ import annotations

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.scores._stacks import symmetric
from fusevlm.scores.interface import Inputs, given


def degree_matrix(inputs: Inputs) -> FloatArray:
    """trace(n·I − D)/n², D the degrees of the similarity graph, self-similarity included."""
    return np.array(
        [1.0 - float(W.mean()) for W in symmetric(given(inputs.similarity, "similarity"))]
    )
