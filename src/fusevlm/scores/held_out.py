"""Columns of scores that learn: calibration queries are scored by fits that did not see them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.maths.logistic import unit_folds
from fusevlm.scores.interface import given
from fusevlm.types import Queries

FOLDS, SEED = 5, 0

Predict = Callable[[IntArray, IntArray], FloatArray]


def out_of_fold(queries: Queries, predict: Predict) -> FloatArray:
    """[N] scores: calibration queries by the fit on the other folds, all others by the whole fit.

    ``predict(train, rows)`` fits on the rows ``train`` and scores ``rows``. Queries of one unit lie
    in one fold, so what is calibrated on the column later is as honest as on new queries.
    """
    fit = given(queries, "fit")
    units = queries.units or queries.ids
    folds = unit_folds([units[i] for i in fit], FOLDS, SEED)
    if len(np.unique(folds)) < 2:
        raise InputError(
            "all calibration queries are of one unit; a score that learns needs at least two, to "
            "score each by a fit on the others."
        )
    column = np.empty(len(queries))
    for fold in np.unique(folds):
        held = folds == fold
        column[fit[held]] = predict(fit[~held], fit[held])
    if queries.test.size:
        column[queries.test] = predict(fit, queries.test)
    return column
