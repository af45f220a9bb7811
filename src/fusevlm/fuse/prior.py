"""The prior: its statistics as one number s, and m0(s) = α0 + β0·s with σ0, without labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fusevlm.checks import FloatArray, Shape
from fusevlm.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """The prior statistics of a fit, and how several become the one number of the scalar fusion.

    The one named s, or the only one, is taken as it is; of several others it is the mean of the
    columns, each standardised on the calibration queries (one that did not vary there counts 0).
    They should rise together.
    """

    names: Annotated[tuple[str, ...], Shape("P")]
    mean: Annotated[tuple[float, ...], Shape("P")]
    sd: Annotated[tuple[float, ...], Shape("P")]

    def reduce(self, prior: Mapping[str, FloatArray]) -> FloatArray | None:
        """s [N], or None without statistics."""
        if not prior:
            return None
        if "s" in self.names or len(self.names) == 1:
            return prior["s" if "s" in self.names else self.names[0]]
        rows = zip(self.names, self.mean, self.sd, strict=True)
        columns = [(prior[k] - mean) / sd if sd else 0 * prior[k] for k, mean, sd in rows]
        return np.asarray(np.mean(columns, axis=0))


def fit_statistics(prior: Mapping[str, FloatArray]) -> Statistics:
    """Names, means and standard deviations on calibration queries; 0 where nothing varies."""
    means = tuple(float(v.mean()) for v in prior.values())
    spreads = tuple(
        0.0 if float(np.ptp(v)) <= 1e-12 * float(np.abs(v).max()) else float(v.std())
        for v in prior.values()
    )
    return Statistics(tuple(prior), means, spreads)


@dataclass(frozen=True)
class Prior:
    """u | s ~ N(alpha0 + beta0·s, sigma0²) (Def. 4.1)."""

    alpha0: float
    beta0: float
    sigma0: float

    def mean(self, s: FloatArray | None, size: int) -> FloatArray:
        """m0 of ``size`` queries; without s the constant alpha0."""
        if s is None:
            return np.full(size, self.alpha0)
        return np.asarray(self.alpha0 + self.beta0 * s)


def fit_prior(
    s: FloatArray | None,
    evidence: FloatArray,
    intercept: FloatArray,
    slope: FloatArray,
    tau2: FloatArray,
) -> Prior:
    """Maximise Σ log N(Ṽ; a + b(α0 + β0 s), τ² + b²σ0²) over (α0, β0, σ0²) (appendix F).

    For given σ0² the coefficients are weighted least squares with ω = 1/(τ²/b² + σ0²); σ0² is a
    one-dimensional search. When all queries share τ²/b² the maximum is closed form,
    σ0² = max(0, RSS/N − τ²/b²), and is used as such. No labels. A constant or absent s gives
    β0 = 0. Differs from the paper: its main text regresses error rates on s, which has other
    units; its appendix is followed.
    """
    z = (evidence - intercept) / slope
    noise = tau2 / slope**2
    if len(z) < 3:
        raise InputError(
            f"the prior needs at least 3 calibration queries; got {len(z)} "
            f"(a few hundred are sensible)."
        )
    x = np.zeros_like(z) if s is None else s
    if s is not None and float(np.ptp(s)) <= 1e-12 * max(1.0, float(np.abs(s).max())):
        logger.warning("s is the same for all calibration queries: the prior cannot use it.")
        x = np.zeros_like(z)
    sigma2 = _search_sigma2(x, z, noise)
    alpha0, beta0 = _weighted_line(x, z, 1.0 / (noise + sigma2) if _proper(noise, sigma2) else None)
    return Prior(alpha0, beta0, float(np.sqrt(sigma2)))


def _proper(noise: FloatArray, sigma2: float) -> bool:
    return bool(np.all(noise + sigma2 > 0))


def _search_sigma2(x: FloatArray, z: FloatArray, noise: FloatArray) -> float:
    if float(np.ptp(noise)) <= 1e-12 * float(noise.max()):
        alpha0, beta0 = _weighted_line(x, z, None)
        rss = float(np.sum((z - alpha0 - beta0 * x) ** 2))
        return max(0.0, rss / len(z) - float(noise[0]))
    return maximise_sigma2(x, z, noise)


def maximise_sigma2(x: FloatArray, z: FloatArray, noise: FloatArray) -> float:
    """The σ0² ≥ 0 of greatest profile likelihood, by a log grid and a bounded refinement.

    The profile can have several maxima when the noise differs between queries, hence the grid.
    """
    from scipy.optimize import minimize_scalar

    def cost(sigma2: float) -> float:
        variance = noise + sigma2
        if not np.all(variance > 0):
            return np.inf
        alpha0, beta0 = _weighted_line(x, z, 1.0 / variance)
        rest = z - alpha0 - beta0 * x
        return float(np.sum(np.log(variance) + rest**2 / variance))

    top = float(np.sum((z - z.mean()) ** 2)) + float(noise.max())  # beyond any maximum
    grid = np.concatenate([[0.0], top * np.logspace(-12, 0, 97)])
    costs = [cost(float(value)) for value in grid]
    best = int(np.argmin(costs))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    inner = minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * max(high, 1e-300)}
    )
    return float(inner.x) if inner.fun < costs[best] else float(grid[best])


def _weighted_line(x: FloatArray, z: FloatArray, w: FloatArray | None) -> tuple[float, float]:
    """Weighted least squares of z on x, (α, β); β = 0 when x does not vary."""
    w = np.ones_like(z) if w is None else w
    w = w / w.sum()
    x_mean, z_mean = float(w @ x), float(w @ z)
    spread = float(w @ (x - x_mean) ** 2)
    beta = float(w @ ((x - x_mean) * (z - z_mean))) / spread if spread > 0 else 0.0
    return z_mean - beta * x_mean, beta
