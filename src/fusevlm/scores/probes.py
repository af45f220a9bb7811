"""Linear probes of the judged answer's hidden state; calibration queries are scored out of fold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, IntArray
from fusevlm.maths.logistic import fit_linear
from fusevlm.scores.held_out import out_of_fold
from fusevlm.scores.interface import given
from fusevlm.scores.meanings import semantic_entropy
from fusevlm.types import Queries

C = 1.0  # scikit-learn's default, which Kossen et al. use: |slopes|²/2C beside the summed loss


def semantic_entropy_probe(queries: Queries) -> FloatArray:
    """P(high semantic entropy) by a linear probe (Kossen et al.): no label of correctness is read.

    High is above the :func:`best_split` of the training queries.
    """
    entropy = semantic_entropy(queries)

    def target(train: IntArray) -> FloatArray:
        return (entropy[train] > best_split(entropy[train])).astype(np.float64)

    return _probed(queries, target)


def accuracy_probe(queries: Queries) -> FloatArray:
    """P(wrong) by the same probe, trained on labels."""
    wrong = given(queries, "wrong")
    checks.both_classes(wrong[given(queries, "fit")], "a probe of correctness")
    return _probed(queries, lambda train: wrong[train].astype(np.float64))


def _probed(queries: Queries, target: Callable[[IntArray], FloatArray]) -> FloatArray:
    states = checks.matrix(given(queries, "answer_state"), "answer_state")

    def predict(train: IntArray, rows: IntArray) -> FloatArray:
        ridge = 1.0 / (C * len(train))
        return fit_linear(states[train], target(train), ridge)(states[rows])

    return out_of_fold(queries, predict)


def best_split(values: FloatArray) -> float:
    """The largest of the lower values where cutting in two leaves the least variation in each part.

    Variation is the sum of squares about the part's mean; the smallest cut of equals, and the value
    itself if all are one.
    """
    ordered = np.sort(values)
    cuts = np.flatnonzero(np.diff(ordered) > 0) + 1  # how many values are in the lower part
    if cuts.size == 0:
        return float(ordered[0])
    lower = np.cumsum(ordered)[cuts - 1]
    upper = ordered.sum() - lower
    # the total sum of squares is fixed: the least within is the most between
    between = lower**2 / cuts + upper**2 / (len(ordered) - cuts)
    return float(ordered[cuts[int(np.argmax(between))] - 1])
