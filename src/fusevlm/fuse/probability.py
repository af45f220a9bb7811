"""From a score to P(wrong): min–max, Platt, beta, isotonic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, Shape
from fusevlm.errors import InputError
from fusevlm.maths.logistic import logistic_regression, sigmoid


@dataclass(frozen=True)
class MinMax:
    """(u − low)/(high − low), clipped to [0, 1]: the paper's "normalised" u*."""

    low: float
    high: float

    def __call__(self, u: FloatArray) -> FloatArray:
        return np.clip((u - self.low) / (self.high - self.low), 0.0, 1.0)


@dataclass(frozen=True)
class Platt:
    """sigmoid(intercept + slope·u)."""

    intercept: float
    slope: float

    def __call__(self, u: FloatArray) -> FloatArray:
        return sigmoid(self.intercept + self.slope * u)


@dataclass(frozen=True)
class Isotonic:
    """A non-decreasing piecewise-linear map through (u, p), constant outside their range."""

    u: Annotated[FloatArray, Shape("N")]
    p: Annotated[FloatArray, Shape("N")]

    def __call__(self, u: FloatArray) -> FloatArray:
        return np.interp(u, self.u, self.p)


@dataclass(frozen=True)
class Beta:
    """sigmoid(intercept + low·ln p − high·ln(1 − p)) of Platt's p; low, high ≥ 0: it rises with u.

    Beta calibration (Kull et al. 2017): either end of the scale has a slope of its own.
    """

    platt: Platt
    intercept: float
    low: float
    high: float

    def __call__(self, u: FloatArray) -> FloatArray:
        ends = self.intercept + _ends(self.platt, u) @ np.array([self.low, self.high])
        return sigmoid(np.asarray(ends))


def _ends(platt: Platt, u: FloatArray) -> FloatArray:
    """ln p and −ln(1 − p) [N, 2] of Platt's p, exact at either end."""
    logit = platt.intercept + platt.slope * u
    return np.column_stack([-np.logaddexp(0.0, -logit), np.logaddexp(0.0, logit)])


ScoreMap = MinMax | Platt | Beta | Isotonic
ENOUGH_FOR_BETA = 200  # labels, so that its third number is worth it


def fit_score_map(
    kind: str, u: FloatArray, wrong: BoolArray | None, *, own: bool = False
) -> ScoreMap | None:
    """The map of this ``kind`` on calibration scores; None where the model has its ``own``.

    ``auto`` is beta with at least 200 labels of both classes, Platt with fewer; without labels the
    model's own, or else min–max.
    """
    if kind == "model":
        return None
    if kind == "auto":
        if wrong is None and own:
            return None
        enough = (
            wrong is not None and len(wrong) >= ENOUGH_FOR_BETA and 0 < wrong.sum() < len(wrong)
        )
        kind = "min_max" if wrong is None else "beta" if enough else "platt"
    if kind == "min_max":
        return fit_min_max(u)
    if wrong is None:
        raise InputError(f"probability={kind!r} needs labels: pass wrong=... to fit().")
    if kind == "isotonic":
        return fit_isotonic(u, wrong)
    return fit_beta(u, wrong) if kind == "beta" else fit_platt(u, wrong)


def fit_beta(u: FloatArray, wrong: BoolArray) -> Beta:
    """Maximum likelihood of :class:`Beta` with both slopes at least 0."""
    platt = fit_platt(u, wrong)
    if platt.slope <= 0.0:
        return Beta(platt, 0.0, 1.0, 1.0)  # the scores rank the wrong way: as Platt has them
    ends, y = _ends(platt, u), wrong.astype(np.float64)
    for used in ([0, 1], [0], [1]):
        slopes = np.zeros(2)
        beta = logistic_regression(ends[:, used], y)
        slopes[used] = beta[1:]
        if (slopes >= 0.0).all():
            break
    return Beta(platt, float(beta[0]), float(slopes[0]), float(slopes[1]))


def fit_min_max(u: FloatArray) -> MinMax:
    """The range of ``u`` on calibration queries."""
    low, high = float(u.min()), float(u.max())
    if not high > low:
        raise InputError(
            f"all {len(u)} calibration scores are {low:g}: they cannot be normalised. "
            f"Calibrate on queries of different difficulty."
        )
    return MinMax(low, high)


def fit_platt(u: FloatArray, wrong: BoolArray) -> Platt:
    """Platt scaling with his smoothed targets (N₊+1)/(N₊+2) and 1/(N₋+2): always finite."""
    n_wrong = int(wrong.sum())
    n_right = len(wrong) - n_wrong
    targets = np.where(wrong, (n_wrong + 1) / (n_wrong + 2), 1 / (n_right + 2))
    centre, scale = float(u.mean()), float(u.std()) or 1.0
    beta = logistic_regression(((u - centre) / scale)[:, None], targets)
    slope = float(beta[1]) / scale
    return Platt(float(beta[0]) - slope * centre, slope)


def fit_isotonic(u: FloatArray, wrong: BoolArray) -> Isotonic:
    """Least-squares non-decreasing fit of the error rate; equal scores share one value."""
    from scipy.optimize import isotonic_regression

    values, index = np.unique(u, return_inverse=True)
    size = np.bincount(index).astype(np.float64)
    rate = np.bincount(index, weights=wrong.astype(np.float64)) / size
    return Isotonic(values, np.asarray(isotonic_regression(rate, weights=size).x))
