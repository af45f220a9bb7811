"""Linear probes of the judged answer's hidden state; calibration queries are scored out of fold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, IntArray
from fusevlm.maths.logistic import Linear, fit_linear
from fusevlm.scores.held_out import out_of_fold
from fusevlm.scores.interface import Predict, given
from fusevlm.scores.meanings import semantic_entropy
from fusevlm.types import Queries

C = 1.0  # scikit-learn's default, which Kossen et al. use: |slopes|²/2C beside the summed loss


def semantic_entropy_probe(queries: Queries) -> FloatArray:
    """P(high semantic entropy) by a linear probe (Kossen et al.): no label of correctness is read.

    High is above the :func:`best_split` of the training queries.
    """
    return _probed(queries, _high_entropy(queries))


def learn_semantic_entropy_probe(known: Queries) -> Predict:
    """The probe of all calibration queries, for others."""
    return _learn_probe(known, _high_entropy(known))


def accuracy_probe(queries: Queries) -> FloatArray:
    """P(wrong) by the same probe, trained on labels."""
    return _probed(queries, _wrong(queries))


def learn_accuracy_probe(known: Queries) -> Predict:
    """The probe of all calibration queries, for others."""
    return _learn_probe(known, _wrong(known))


Target = Callable[[IntArray], FloatArray]  # of some rows


def _high_entropy(queries: Queries) -> Target:
    entropy = semantic_entropy(queries)
    return lambda train: (entropy[train] > best_split(entropy[train])).astype(np.float64)


def _wrong(queries: Queries) -> Target:
    wrong = given(queries, "wrong")
    checks.both_classes(wrong[given(queries, "fit")], "a probe of correctness")
    return lambda train: wrong[train].astype(np.float64)


def _probed(queries: Queries, target: Target) -> FloatArray:
    states = _states(queries)

    def predict(train: IntArray, rows: IntArray) -> FloatArray:
        return _probe(states, target, train)(states[rows])

    return out_of_fold(queries, predict)


def _learn_probe(known: Queries, target: Target) -> Predict:
    probe = _probe(_states(known), target, np.arange(len(known)))
    return lambda new: probe(_states(new))


def _probe(states: FloatArray, target: Target, train: IntArray) -> Linear:
    return fit_linear(states[train], target(train), 1.0 / (C * len(train)))


def _states(queries: Queries) -> FloatArray:
    return checks.matrix(given(queries, "answer_state"), "answer_state")


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
