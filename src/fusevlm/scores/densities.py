"""How far the judged answer's hidden state lies from those of calibration answers; and HUQ.

Σ = (1 − ρ)·S + ρ·(tr S/d)·I with the OAS intensity ρ, through the singular values of the centred
states: no d×d matrix is formed. Calibration queries are measured by fits that leave them out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.maths.covariance import oas_of_traces
from fusevlm.metrics import aurc
from fusevlm.scores.held_out import out_of_fold
from fusevlm.scores.interface import Predict, given
from fusevlm.scores.likelihood import g_nll
from fusevlm.types import Queries

# the grid of HUQ's release: shares of calibration queries, and the weight of the data uncertainty
LOW = tuple(round(0.05 * k, 2) for k in range(7))
HIGH = (0.95, 1.0)
MIX = tuple(round(0.1 * k, 1) for k in range(11))


@dataclass(frozen=True, eq=False)
class Density:
    """A Gaussian: ``variances`` [r] along ``axes`` [r, d], ``floor`` in every other direction."""

    mean: FloatArray
    axes: FloatArray
    variances: FloatArray
    floor: float

    def distance(self, rows: FloatArray) -> FloatArray:
        """Squared Mahalanobis distance of each row."""
        centred = rows - self.mean
        along = centred @ self.axes.T
        found = np.sum(along**2 / self.variances, axis=1)
        if len(self.axes) < rows.shape[1]:
            beyond = np.sum(centred**2, axis=1) - np.sum(along**2, axis=1)
            found = found + np.maximum(beyond, 0.0) / self.floor
        return np.asarray(found)


def fit_density(rows: FloatArray, what: str) -> Density:
    """Mean and shrunk covariance of the rows [m, d]."""
    m, d = rows.shape
    if m < 2 or not np.ptp(rows, axis=0).any():
        raise InputError(
            f"{m} hidden states of {what}, or all of them equal, have no covariance. "
            f"Add calibration queries."
        )
    mean = rows.mean(axis=0)
    _, size, axes = np.linalg.svd(rows - mean, full_matrices=False)
    values = size**2 / m  # eigenvalues of S
    rho = oas_of_traces(float(values.sum()), float(values @ values), d, m)
    floor = rho * float(values.sum()) / d
    return Density(mean, axes, (1.0 - rho) * values + floor, floor)


def mahalanobis(queries: Queries) -> FloatArray:
    """Squared distance of the judged answer's state to those of right calibration answers."""
    states, wrong = _states(queries), given(queries, "wrong")
    return out_of_fold(queries, lambda train, rows: _to_right(states, wrong, train, rows))


def learn_mahalanobis(known: Queries) -> Predict:
    """The density of all right calibration answers, for others."""
    density = _density_of_right(_states(known), given(known, "wrong"), np.arange(len(known)))
    return lambda new: density.distance(_states(new))


def relative_mahalanobis(queries: Queries) -> FloatArray:
    """Relative Mahalanobis (Ren et al.): that distance minus the one to all calibration answers.

    What is far from everything is not held against an answer, only what is further from right ones.
    """
    states, wrong = _states(queries), given(queries, "wrong")

    def predict(train: IntArray, rows: IntArray) -> FloatArray:
        background = fit_density(states[train], "calibration answers")
        return _to_right(states, wrong, train, rows) - background.distance(states[rows])

    return out_of_fold(queries, predict)


def learn_relative_mahalanobis(known: Queries) -> Predict:
    """Both densities of all calibration answers, for others."""
    to_right = learn_mahalanobis(known)
    background = fit_density(_states(known), "calibration answers")
    return lambda new: to_right(new) - background.distance(_states(new))


def _states(queries: Queries) -> FloatArray:
    return checks.matrix(given(queries, "answer_state"), "answer_state")


def _to_right(states: FloatArray, wrong: BoolArray, train: IntArray, rows: IntArray) -> FloatArray:
    return _density_of_right(states, wrong, train).distance(states[rows])


def _density_of_right(states: FloatArray, wrong: BoolArray, train: IntArray) -> Density:
    return fit_density(states[train[~wrong[train]]], "right calibration answers")


@dataclass(frozen=True, eq=False)
class Hybrid:
    """HUQ: ranks among calibration queries, of density or of data uncertainty, by region.

    density, doubt  [m] of the calibration queries
    low             share with the smallest density score: in distribution, ranked by doubt
    high            share of doubt above which they count as ambiguous: ranked by doubt among all
    mix             weight of the rank by doubt for queries that are not in distribution
    """

    density: FloatArray
    doubt: FloatArray
    low: float = 0.0
    high: float = 1.0
    mix: float = 0.0

    def __call__(self, density: FloatArray, doubt: FloatArray) -> FloatArray:
        far, unsure = rank_among(density, self.density), rank_among(doubt, self.doubt)
        total = (1.0 - self.mix) * far + self.mix * unsure
        familiar = self.doubt[rank_among(self.density, self.density) <= self.low]
        if familiar.size == 0:
            return total
        # the in-distribution part fills the lowest ranks, as many as it has queries
        near = np.where(unsure > self.high, unsure, self.low * rank_among(doubt, familiar))
        return np.where(far <= self.low, near, total)


def rank_among(values: FloatArray, known: FloatArray) -> FloatArray:
    """Share of ``known`` below each value, in (0, 1), ties at their middle; strictly increasing."""
    knots, counts = np.unique(known, return_counts=True)
    middle = (np.cumsum(counts) - 0.5 * counts) / known.size
    spread = float(knots[-1] - knots[0]) or 1.0
    inside = np.interp(values, knots, middle)
    above, below = np.maximum(values - knots[-1], 0.0), np.maximum(knots[0] - values, 0.0)
    upwards = (1.0 - middle[-1]) * above / (above + spread)
    return np.asarray(inside + upwards - middle[0] * below / (below + spread))


def tune_hybrid(density: FloatArray, doubt: FloatArray, wrong: BoolArray) -> Hybrid:
    """The hybrid of the grid with the least area under the risk–coverage curve; ties to density."""
    best = Hybrid(density, doubt)
    least = aurc(best(density, doubt), wrong)
    for low, high, mix in itertools.product(LOW, HIGH, MIX):
        other = replace(best, low=low, high=high, mix=mix)
        area = aurc(other(density, doubt), wrong)
        if area < least:
            best, least = other, area
    return best


def huq(queries: Queries) -> FloatArray:
    """HUQ (Vazhentsev et al.): data uncertainty in distribution, a mix with the density outside.

    The density score is :func:`mahalanobis`, the data uncertainty G-NLL; both thresholds and the
    mix come from calibration labels. Differs from the release: ranks are among the calibration
    queries, so that a score does not depend on which other queries are scored.
    """
    density, doubt = mahalanobis(queries), g_nll(queries)
    fit, wrong = given(queries, "fit"), given(queries, "wrong")
    return tune_hybrid(density[fit], doubt[fit], wrong[fit])(density, doubt)


def learn_huq(known: Queries) -> Predict:
    """The hybrid tuned on all calibration queries, for others."""
    density = learn_mahalanobis(known)
    hybrid = tune_hybrid(mahalanobis(known), g_nll(known), given(known, "wrong"))
    return lambda new: hybrid(density(new), g_nll(new))
