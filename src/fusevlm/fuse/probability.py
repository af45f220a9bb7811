"""From a score to P(wrong): min–max, Platt, isotonic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
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

    u: FloatArray
    p: FloatArray

    def __call__(self, u: FloatArray) -> FloatArray:
        return np.interp(u, self.u, self.p)


ScoreMap = MinMax | Platt | Isotonic


def fit_score_map(kind: str, u: FloatArray, wrong: BoolArray | None) -> ScoreMap | None:
    """The map of this ``kind`` on calibration scores; None where the model has its own P(wrong)."""
    if kind == "model":
        return None
    if kind == "auto":
        kind = "min_max" if wrong is None else "platt"
    if kind == "min_max":
        return fit_min_max(u)
    if wrong is None:
        raise InputError(f"probability={kind!r} needs labels: pass wrong=... to fit().")
    return fit_platt(u, wrong) if kind == "platt" else fit_isotonic(u, wrong)


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
