"""α, the strength of the incoherence weights w = exp(2α(1−p))."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.metrics import auroc

ALPHA_GRID = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def balance_by_median(log_volume: FloatArray, incoherence: FloatArray) -> float:
    """UMPIRE's label-free α = |median(½·logdet/n) / median(mean(1−p))|.

    ``log_volume`` [N] is ½·logdet/n of the unweighted scatter, ``incoherence`` [N] is mean(1−p).
    Without incoherence (all p = 1) every weight is 1 and α is 0.
    """
    below = float(np.median(incoherence))
    return abs(float(np.median(log_volume)) / below) if below > 0 else 0.0


def balance_by_spread(log_volume: FloatArray, incoherence: FloatArray) -> float:
    """α that gives both terms the same standard deviation over calibration queries (label-free).

    Differs from the paper and UMPIRE: medians depend on where zero lies on the log-det scale,
    spreads do not.
    """
    below = float(np.std(incoherence))
    return float(np.std(log_volume)) / below if below > 0 else 0.0


def alpha_by_grid(
    scores: Callable[[float], FloatArray], wrong: BoolArray, grid: Sequence[float] = ALPHA_GRID
) -> float:
    """The α of ``grid`` whose scores rank wrong answers best (AUROC); ties go to the smallest."""
    values = [auroc(scores(alpha), wrong) for alpha in grid]
    return float(grid[int(np.argmax(values))])
