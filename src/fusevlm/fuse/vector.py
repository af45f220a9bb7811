"""The ``practical`` likelihood: a vector of named evidence with measured constants.

u ~ N(0, 1) and an answer is wrong iff u > t. Evidence and prior statistic are standardised on
calibration queries; how strongly each follows u is a biserial correlation with the labels:

    π = (Σy + ½)/(N + 1),  t = Φ⁻¹(1 − π),  k_j = Cov(ẽ_j, y)/φ(t),  ρ_s = Cov(s̃, y)/φ(t)
    prior u | s ~ N(ρ_s·s̃, 1 − ρ_s²),   likelihood ẽ | u, s ~ N(c·u + b·s̃, T)
    P(wrong) = P(u > t) = Φ((m_post − t)/σ_post)

``independent`` sources assume that s says nothing of the evidence once u is known: c = k, b = 0,
T = Cov(ẽ) − k·kᵀ. ``joint`` sources measure r = Cov(ẽ, s̃), which needs no labels, and condition the
joint Gaussian of (u, s̃, ẽ): c = (k − ρr)/(1−ρ²), b = (r − ρk)/(1−ρ²), T = Cov(ẽ) − c·kᵀ − b·rᵀ.
What the two sources share is then not counted twice; with r = ρk the two forms coincide.

Differs from the paper: (n, a, τ²) come from calibration queries instead of a Wishart model.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError, NotFittedError

logger = logging.getLogger(__name__)

VARIANCE_GUARD = 0.02  # added to the measured variances of standardised values
MAX_R2 = 0.9  # no evidence may claim to explain more of u than this
MIN_PER_CLASS = 10  # fewer right or wrong labels than this cannot set the weights
TYPICAL_CORRELATION = 0.55  # of the leading evidence with u when there are no labels


@dataclass(frozen=True)
class VectorModel:
    """Constants of the vector likelihood and its prior."""

    names: tuple[str, ...]
    mean: FloatArray  # [K] of the raw evidence
    sd: FloatArray  # [K]
    s_mean: float
    s_sd: float
    rho_s: float
    c: FloatArray  # [K]
    b: FloatArray  # [K], what s̃ alone adds to the expected evidence
    T: FloatArray  # [K, K]
    t: float | None  # wrong ⇔ u > t; None without labels or a base rate
    labelled: bool  # whether labels set c and rho_s

    def residual(self, e: FloatArray, s: FloatArray | None) -> FloatArray:
        """Standardised evidence [N, K] less what s̃ explains of it: N(c·u, T) given u."""
        standard = np.asarray((e - self.mean) / self.sd)
        if s is None:
            return standard
        return np.asarray(standard - np.outer((s - self.s_mean) / self.s_sd, self.b))

    def without_s(self) -> VectorModel:
        """The model of (u, ẽ) with s̃ integrated out, for queries that have no s."""
        k = self.c + self.b * self.rho_s
        r = self.b + self.c * self.rho_s
        T = self.T + np.outer(self.c, k) + np.outer(self.b, r) - np.outer(k, k)
        return replace(self, c=k, b=np.zeros_like(k), T=T, rho_s=0.0)

    def prior(self, s: FloatArray | None, size: int) -> tuple[FloatArray, FloatArray]:
        """m0 and σ0 [N]; without s the marginal N(0, 1)."""
        if s is None:
            return np.zeros(size), np.ones(size)
        return self.rho_s * (s - self.s_mean) / self.s_sd, np.full(size, np.sqrt(1 - self.rho_s**2))

    def p_wrong(self, m_post: FloatArray, sigma_post: FloatArray) -> FloatArray:
        """P(wrong) = Φ((m_post − t)/σ_post)."""
        from scipy.special import ndtr

        if self.t is None:
            raise NotFittedError(
                "P(wrong) needs labels: fit with wrong=..., or say base_rate=... (the share of "
                "wrong answers you expect)."
            )
        return np.asarray(ndtr((m_post - self.t) / sigma_post))


def fit_vector(
    names: tuple[str, ...],
    e: FloatArray,
    s: FloatArray | None,
    wrong: BoolArray | None,
    *,
    sources: str = "joint",
    kappa: float = 0.3,
    base_rate: float | None = None,
) -> VectorModel:
    """Fit the constants on evidence e [N, K] and s [N], with labels where there are enough.

    With at least 10 right and 10 wrong labels the weights are biserial. Otherwise they are fixed:
    only the first-named evidence is used, with a typical correlation, and s̃ gets ``kappa`` times
    its weight (measured on six runs to lose almost nothing). Labels too few for the weights still
    set the base rate, and so P(wrong); without any, ``base_rate`` does if given.
    """
    if len(e) < 3:
        raise InputError(
            f"calibration needs at least 3 queries; got {len(e)} (a few hundred are sensible)."
        )
    mean, sd = e.mean(axis=0), _spread(e, names)
    s_mean, s_sd = 0.0, 1.0
    if s is not None:
        s_mean, s_sd = float(s.mean()), float(_spread(s[:, None], ("s",))[0])
    t = _level(wrong, base_rate)
    if wrong is not None and min(int(wrong.sum()), int((~wrong).sum())) >= MIN_PER_CLASS:
        assert t is not None
        s_sd *= float(np.sqrt(1 + VARIANCE_GUARD))
        rho, c, b, T = _biserial_weights(
            (e - mean) / sd, None if s is None else (s - s_mean) / s_sd, wrong, t, sources
        )
        return VectorModel(names, mean, sd, s_mean, s_sd, rho, c, b, T, t, labelled=True)
    if wrong is not None:
        logger.warning(
            "%d right and %d wrong labels are too few to set the weights (%d of each are needed): "
            "using the label-free ones.",
            int((~wrong).sum()),
            int(wrong.sum()),
            MIN_PER_CLASS,
        )
    if len(names) > 1:
        logger.info("without enough labels only %r is used as evidence.", names[0])
    c, T, rho = label_free_weights(kappa)
    rho = 0.0 if s is None else rho
    return VectorModel(
        names[:1], mean[:1], sd[:1], s_mean, s_sd, rho, c, np.zeros(1), T, t, labelled=False
    )


def _biserial_weights(
    e: FloatArray, s: FloatArray | None, wrong: BoolArray, t: float, sources: str
) -> tuple[float, FloatArray, FloatArray, FloatArray]:
    """(ρ_s, c, b, T) from standardised evidence [N, K], standardised s and labels.

    Guards: 0.02 is added to every variance (for s by a wider standardisation, so that its guarded
    variance is 1), and the share R² of u that evidence and s explain
    together is capped at 0.9 by shrinking all correlations alike; T is then positive definite.
    """
    with_s = e if s is None else np.column_stack([e, s])
    covariance = np.cov(with_s, rowvar=False, ddof=0).reshape(with_s.shape[1], -1)
    covariance = covariance + VARIANCE_GUARD * np.eye(len(covariance))
    if s is not None:
        covariance[-1, -1] = 1.0
        if sources == "independent":
            covariance[-1, :-1] = covariance[:-1, -1] = 0.0
    k = _biserial(with_s, wrong.astype(np.float64), t)
    r2 = float(k @ np.linalg.solve(covariance, k))
    if r2 > MAX_R2:
        k = k * np.sqrt(MAX_R2 / r2)
    if s is None:
        return 0.0, k, np.zeros_like(k), covariance - np.outer(k, k)
    k, rho, r = k[:-1], float(k[-1]), covariance[:-1, -1]
    covariance = covariance[:-1, :-1]
    if sources == "independent":
        return rho, k, np.zeros_like(k), covariance - np.outer(k, k)
    c, b = (k - rho * r) / (1 - rho**2), (r - rho * k) / (1 - rho**2)
    return rho, c, b, covariance - np.outer(c, k) - np.outer(b, r)


def label_free_weights(kappa: float) -> tuple[FloatArray, FloatArray, float]:
    """(c, T, ρ_s) for one piece of evidence such that m_post ∝ ẽ + kappa·s̃.

    m_post ∝ c/(1−c²)·ẽ + ρ/(1−ρ²)·s̃, so ρ solves ρ/(1−ρ²) = kappa·c/(1−c²).
    """
    kappa = checks.scalar(kappa, "kappa")
    c = TYPICAL_CORRELATION
    target = kappa * c / (1 - c**2)
    rho = 2 * target / (1 + np.sqrt(1 + 4 * target**2))
    return np.array([c]), np.array([[1 - c**2]]), float(rho)


def _spread(values: FloatArray, names: tuple[str, ...]) -> FloatArray:
    sd = values.std(axis=0)
    scale = np.abs(values).max(axis=0)
    still = sd <= 1e-12 * np.maximum(scale, 1e-300)
    for name in np.array(names)[still]:
        logger.warning("%s is the same for all calibration queries and carries no weight.", name)
    return np.where(still, 1.0, sd)


def _level(wrong: BoolArray | None, base_rate: float | None) -> float | None:
    """t = Φ⁻¹(1 − π) with the smoothed error rate π, or the given base rate."""
    from scipy.special import ndtri

    if wrong is not None:
        pi = (float(wrong.sum()) + 0.5) / (len(wrong) + 1)
    elif base_rate is not None:
        pi = checks.fraction(base_rate, "base_rate")
    else:
        return None
    return float(ndtri(1 - pi))


def _biserial(standard: FloatArray, y: FloatArray, t: float) -> FloatArray:
    """Cov(x_k, y)/φ(t) for standardised columns [N, K]."""
    density = float(np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi))
    centred = standard - standard.mean(axis=0)
    return np.asarray(centred.T @ (y - y.mean()) / len(y) / density)
