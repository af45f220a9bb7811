"""Logistic regression with a ridge: of a few columns, or of more features than queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fusevlm.checks import FloatArray, IntArray, Shape

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


def sigmoid(x: FloatArray) -> FloatArray:
    """1/(1+e^{−x}) without overflow."""
    from scipy.special import expit

    return np.asarray(expit(x))


def logistic_regression(X: FloatArray, y: FloatArray, ridge: float = 1e-6) -> FloatArray:
    """Coefficients [1+K] (intercept first) minimising the cross-entropy to targets y in [0, 1].

    Newton's method with step halving. ``ridge``·|β|²/2 on the slopes, per observation, keeps
    separable data finite; give columns of unit scale.
    """
    design = np.column_stack([np.ones(len(X)), X])
    penalty = ridge * len(X) * np.r_[0.0, np.ones(X.shape[1])]

    def cost(beta: FloatArray) -> float:
        logits = design @ beta
        loss = np.logaddexp(0.0, logits) - y * logits
        return float(loss.sum() + 0.5 * penalty @ beta**2)

    rate = float(np.clip(y.mean(), 1e-6, 1 - 1e-6))
    beta = np.r_[np.log(rate / (1 - rate)), np.zeros(X.shape[1])]
    now = cost(beta)
    for _ in range(100):
        p = sigmoid(design @ beta)
        gradient = design.T @ (p - y) + penalty * beta
        hessian = (design.T * (p * (1 - p))) @ design + np.diag(penalty + 1e-12)
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while (after := cost(beta - scale * step)) > now and scale > 1e-10:
            scale /= 2
        beta, before, now = beta - scale * step, now, after
        if before - now <= 1e-13 * (1 + abs(now)):
            break
    return np.asarray(beta)


@dataclass(frozen=True, eq=False)
class Linear:
    """P = sigmoid(intercept + slopes·(x − centre)/scale)."""

    centre: Annotated[FloatArray, Shape("K")]
    scale: Annotated[FloatArray, Shape("K")]
    intercept: float
    slopes: Annotated[FloatArray, Shape("K")]

    def __call__(self, X: FloatArray) -> FloatArray:
        return sigmoid(self.intercept + (X - self.centre) / self.scale @ self.slopes)


def fit_linear(X: FloatArray, y: FloatArray, ridge: float) -> Linear:
    """Logistic regression of y [N] in {0, 1} on the standardised columns of X [N, K].

    With K > N the rows are first turned into the N directions they span: the ridge keeps the slopes
    there, so nothing is lost. Where y is one class P is one number, (Σy + ½)/(N + 1).
    """
    centre, spread = X.mean(axis=0), X.std(axis=0)
    varies = spread > 1e-9 * (np.abs(centre) + np.finfo(np.float64).tiny)
    scale = np.where(varies, spread, 1.0)
    if np.ptp(y) == 0:
        share = (float(y.sum()) + 0.5) / (len(y) + 1)
        return Linear(centre, scale, float(np.log(share / (1 - share))), np.zeros(X.shape[1]))
    Z = np.where(varies, (X - centre) / scale, 0.0)
    if Z.shape[1] <= len(Z):
        beta = logistic_regression(Z, y, ridge)
        return Linear(centre, scale, float(beta[0]), beta[1:])
    U, size, turn = np.linalg.svd(Z, full_matrices=False)
    beta = logistic_regression(U * size, y, ridge)
    return Linear(centre, scale, float(beta[0]), beta[1:] @ turn)


def choose_ridge(
    X: FloatArray, y: FloatArray, folds: IntArray, grid: Sequence[float] = RIDGES
) -> float:
    """The ridge of ``grid`` with the least cross-entropy on held-out folds; ties to the largest."""

    def cost(ridge: float) -> float:
        p = np.empty(len(y))
        for fold in np.unique(folds):
            held = folds == fold
            p[held] = fit_linear(X[~held], y[~held], ridge)(X[held])
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return -float(np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))

    return min(sorted(grid, reverse=True), key=cost)


def unit_folds(units: Sequence[str], n_folds: int, seed: int) -> IntArray:
    """Which of ``n_folds`` each row is in: rows of one unit together, whatever the rows' order."""
    names, index = np.unique(np.asarray(units, dtype=np.str_), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return np.asarray((order % n_folds)[index])
