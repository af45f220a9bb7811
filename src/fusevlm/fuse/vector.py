"""The ``practical`` model: named prior statistics and named evidence, jointly Gaussian with u.

u ~ N(0, 1) and an answer is wrong iff u > t. All columns x = (s, e) are standardised on calibration
queries; how strongly each follows u is a biserial correlation with the labels:

    π = (Σy + ½)/(N + 1),  t = Φ⁻¹(1 − π),  k_j = Cov(x̃_j, y)/φ(t),  C = Cov(x̃)

Conditioning the joint Gaussian of (u, s̃, ẽ) in two steps gives the paper's closed form. With k and
C in blocks, and C_e·s = C_ee − C_es C_ss⁻¹ C_se the covariance of the evidence given s:

    prior       u | s ~ N(k_sᵀC_ss⁻¹s̃, σ0²),  σ0² = 1 − k_sᵀC_ss⁻¹k_s
    likelihood  ẽ | u, s ~ N(C_es C_ss⁻¹ s̃ + c·(u − m0), T)
                c = (k_e − C_es C_ss⁻¹ k_s)/σ0²,  T = C_e·s − σ0²·c·cᵀ

``independent`` sources assume that s says nothing of the evidence once u is known: C_es = k_e·k_sᵀ,
for which the likelihood is N(k_e·u, C_ee − k_e·k_eᵀ). What a query was not asked (NaN) is
integrated out: the rows and columns of k and C are left out. Where a prior statistic is itself
uncertain, by ``spread`` on the scale of m0, σ0² grows by what exceeds its mean on calibration.

Few labels: N of them leave noise of variance ν·C in k, ν = π(1−π)/φ(t)²/N. If the weights C⁻¹k of p
columns share a total of R² = 0.4 evenly, their posterior mean is (C + (p·ν/0.4)·I)⁻¹k: that is
added to the variances, and directions that hardly vary cannot claim weight.

Differs from the paper: (n, a, τ²) come from calibration queries instead of a Wishart model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, Shape
from fusevlm.errors import InputError, NotFittedError
from fusevlm.maths import fusion

logger = logging.getLogger(__name__)

VARIANCE_GUARD = 0.02  # added to the measured variances of standardised values
MAX_R2 = 0.9  # no evidence may claim to explain more of u than this
USUAL_R2 = 0.4  # of u that all columns explain together, for the ridge on their weights
MIN_PER_CLASS = 10  # fewer right or wrong labels than this cannot set the weights
TYPICAL_CORRELATION = 0.55  # of the leading evidence with u when there are no labels
LEAST_SHARE = 0.5  # of σ0² that remains where a prior statistic is surer than it usually is
Columns = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Conditioned:
    """Prior, reduced likelihood and posterior of N queries, and each evidence's share."""

    m0: FloatArray
    sigma0: FloatArray
    u_hat: FloatArray
    tau2: FloatArray
    posterior: fusion.Posterior
    shares: dict[str, FloatArray]


@dataclass(frozen=True)
class VectorModel:
    """Constants of the joint Gaussian; the prior statistics come first in every array."""

    prior_names: tuple[str, ...]
    names: tuple[str, ...]  # of the evidence
    mean: Annotated[FloatArray, Shape("P+K")]  # of the raw columns
    sd: Annotated[FloatArray, Shape("P+K")]
    k: Annotated[FloatArray, Shape("P+K")]  # correlation with u
    C: Annotated[FloatArray, Shape("P+K", "P+K")]
    t: float | None  # wrong ⇔ u > t; None without labels or a base rate
    labelled: bool  # whether labels set k

    def condition(
        self, prior: Columns, evidence: Columns, spread: FloatArray | None = None
    ) -> Conditioned:
        """Prior and posterior of queries; what is not given, or NaN, is integrated out.

        ``spread`` [N] is added to σ0² (see the module); it may be negative.
        """
        x = self._standardised(prior, evidence)
        size = len(x)
        extra = np.zeros(size) if spread is None else spread
        out = [np.empty(size) for _ in range(6)]
        shares = np.zeros((size, len(self.names)))
        known = ~np.isnan(x)
        for pattern in np.unique(known, axis=0):
            rows = np.flatnonzero((known == pattern).all(axis=1))
            *found, share = self._condition(x[rows], pattern, extra[rows])
            for column, values in zip(out, found, strict=True):
                column[rows] = values
            shares[rows] = share
        m0, sigma0, u_hat, tau2, m, sigma = out
        told = np.isfinite(tau2)  # by some evidence; else the prior is all there is
        weight = np.divide(tau2, tau2 + sigma0**2, out=np.ones(size), where=told)
        fused = fusion.Posterior(m, sigma, weight)
        named = {name: shares[:, j] * (1.0 - weight) for j, name in enumerate(self.names)}
        return Conditioned(m0, sigma0, u_hat, tau2, fused, named)

    def contributions(self, prior: Columns, evidence: Columns) -> dict[str, FloatArray]:
        """What each column adds to the posterior mean [N]: b_j·x̃_j with b = C⁻¹k of those known.

        E[u | x] = kᵀC⁻¹x̃ is linear, so they sum to m_post (but for what ``spread`` moves). A column
        that is not known of a query adds nothing.
        """
        x = self._standardised(prior, evidence)
        known = ~np.isnan(x)
        found = np.zeros_like(x)
        for pattern in np.unique(known, axis=0):
            rows, j = np.flatnonzero((known == pattern).all(axis=1)), np.flatnonzero(pattern)
            weights = _solved(self.C[np.ix_(j, j)], self.k[j]) if len(j) else np.zeros(0)
            found[np.ix_(rows, j)] = x[np.ix_(rows, j)] * weights
        return dict(zip((*self.prior_names, *self.names), found.T, strict=True))

    def standardised_prior(self, prior: Columns) -> dict[str, FloatArray]:
        """The prior statistics that are given [N], with calibration mean 0 and variance 1."""
        places = {name: j for j, name in enumerate(self.prior_names)}
        return {
            name: (values - self.mean[places[name]]) / self.sd[places[name]]
            for name, values in prior.items()
            if name in places
        }

    def _standardised(self, prior: Columns, evidence: Columns) -> FloatArray:
        """All columns [N, P+K] with calibration mean 0 and variance 1; NaN where not known."""
        given = {
            **{n: prior.get(n) for n in self.prior_names},
            **{n: evidence[n] for n in self.names},
        }
        size = len(next(v for v in given.values() if v is not None))
        blank = np.full(size, np.nan)
        raw = np.column_stack([blank if v is None else v for v in given.values()])
        return np.asarray((raw - self.mean) / self.sd)

    def _condition(
        self, x: FloatArray, known: BoolArray, extra: FloatArray
    ) -> tuple[FloatArray, ...]:
        P, size = len(self.prior_names), len(x)
        s, e = np.flatnonzero(known[:P]), P + np.flatnonzero(known[P:])
        gain = _solved(self.C[np.ix_(s, s)], self.C[np.ix_(s, [*e])]) if len(s) else None
        weights = _solved(self.C[np.ix_(s, s)], self.k[s]) if len(s) else np.zeros(0)
        m0, variance = x[:, s] @ weights, 1.0 - float(self.k[s] @ weights)
        k, C, rest = self.k[e], self.C[np.ix_(e, e)], x[:, e]
        if gain is not None:
            k, C = k - gain.T @ self.k[s], C - self.C[np.ix_(e, s)] @ gain
            rest = rest - x[:, s] @ gain
        c = k / variance
        reduced = fusion.reduce_evidence(rest + np.outer(m0, c), c, C - variance * np.outer(c, c))
        sigma0 = np.sqrt(np.maximum(variance + extra, LEAST_SHARE * variance))
        fused = fusion.posterior(m0, sigma0, reduced.u_hat, 0.0, 1.0, reduced.tau2)
        share = np.zeros(len(self.names))
        share[e - P] = reduced.share
        tau2 = np.full(size, reduced.tau2)
        return m0, sigma0, reduced.u_hat, tau2, fused.m, fused.sigma, share

    def weight_of(self, name: str) -> float:
        """What one raw unit of a prior statistic adds to m0 where all statistics are known."""
        P = len(self.prior_names)
        j = self.prior_names.index(name)
        return float(_solved(self.C[:P, :P], self.k[:P])[j] / self.sd[j])

    def p_wrong(self, m_post: FloatArray, sigma_post: FloatArray) -> FloatArray:
        """P(wrong) = Φ((m_post − t)/σ_post)."""
        from scipy.special import ndtr

        if self.t is None:
            raise NotFittedError(
                "P(wrong) needs labels: fit with wrong=..., or say base_rate=... (the share of "
                "wrong answers you expect)."
            )
        return np.asarray(ndtr((m_post - self.t) / sigma_post))


def _solved(C: FloatArray, b: FloatArray) -> FloatArray:
    """C⁻¹b, which a fit that was tampered with may not have."""
    try:
        return np.asarray(np.linalg.solve(C, b))
    except np.linalg.LinAlgError as error:
        raise InputError("the covariance of this fit has no inverse. Fit it again.") from error


def fit_vector(
    prior: Columns,
    evidence: Columns,
    wrong: BoolArray | None,
    *,
    sources: str = "joint",
    kappa: float = 0.3,
    base_rate: float | None = None,
) -> VectorModel:
    """Fit the constants on prior statistics and evidence, with labels where there are enough.

    With at least 10 right and 10 wrong labels the weights are biserial. Otherwise they are fixed:
    only the first-named evidence is used, with a typical correlation, and the mean of the prior
    statistics gets ``kappa`` times its weight (measured on six runs to lose almost nothing). Labels
    too few for the weights still set the base rate, and so P(wrong); without any, ``base_rate``
    does if given.
    """
    columns = [*prior.values(), *evidence.values()]
    size = len(columns[0]) if columns else 0
    if columns and size < 3:
        raise InputError(
            f"calibration needs at least 3 queries; got {size} (a few hundred are sensible)."
        )
    t = level(wrong, base_rate)
    few = wrong is None or min(int(wrong.sum()), int((~wrong).sum())) < MIN_PER_CLASS
    if not columns or (few and not evidence):
        raise InputError(
            "there is no evidence: no samples, and no log-probabilities of the answer. The input "
            "alone (s, inputs) can be weighed only by labels, at least "
            f"{MIN_PER_CLASS} right and {MIN_PER_CLASS} wrong ones."
        )
    if few:
        _tell_of_few(wrong, tuple(evidence))
        evidence = {name: evidence[name] for name in list(evidence)[:1]}
    names = (*prior, *evidence)
    raw = np.column_stack([*prior.values(), *evidence.values()])  # evidence may be fewer by now
    mean, sd = np.nanmean(raw, axis=0), _spread(raw, names)
    x = (raw - mean) / sd
    C = _covariance(x)
    if few or wrong is None:
        k, C = label_free_weights(C, len(prior), kappa)
    else:
        k, C = _biserial_weights(x, wrong, C, len(prior), sources)
    return VectorModel(tuple(prior), tuple(evidence), mean, sd, k, C, t, labelled=not few)


def _tell_of_few(wrong: BoolArray | None, names: tuple[str, ...]) -> None:
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


def _covariance(x: FloatArray) -> FloatArray:
    """Covariance of standardised columns [N, M]; NaN are left out pair by pair."""
    known = ~np.isnan(x)
    filled = np.where(known, x, 0.0)
    counts = known.T.astype(np.float64) @ known
    C = filled.T @ filled / np.maximum(counts, 1.0)
    if known.all():
        return np.asarray(C)
    values, vectors = np.linalg.eigh(C)  # pairs of different rows may contradict each other
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _biserial_weights(
    x: FloatArray, wrong: BoolArray, C: FloatArray, n_prior: int, sources: str
) -> tuple[FloatArray, FloatArray]:
    """(k, C) with their guards: variances are raised (see the module), and R² is capped at 0.9."""
    k = np.array([_biserial(column, wrong) for column in x.T])
    pi = (float(wrong.sum()) + 0.5) / (len(wrong) + 1)
    varying = int(np.sum(np.diag(C) > 0.5))  # 1, or 0 of a constant
    few = varying * pi * (1 - pi) / _density(pi) ** 2 / len(wrong) / USUAL_R2
    C = C + (VARIANCE_GUARD + few) * np.eye(len(k))
    if sources == "independent":
        C[:n_prior, n_prior:] = np.outer(k[:n_prior], k[n_prior:])
        C[n_prior:, :n_prior] = C[:n_prior, n_prior:].T
    r2 = float(k @ np.linalg.solve(C, k))
    if r2 > MAX_R2:
        k = k * np.sqrt(MAX_R2 / r2)
    return k, C


def label_free_weights(C: FloatArray, n_prior: int, kappa: float) -> tuple[FloatArray, FloatArray]:
    """(k, C) for one piece of evidence such that m_post ∝ ẽ + kappa·s̃, s̃ the mean statistic.

    m_post ∝ c/(1−c²)·ẽ + ρ/(1−ρ²)·s̃, so ρ solves ρ/(1−ρ²) = kappa·c/(1−c²). Several statistics
    share ρ through their standardised mean: C_ss⁻¹k_s is then the same for all of them.
    """
    kappa = checks.scalar(kappa, "kappa")
    c = TYPICAL_CORRELATION
    target = kappa * c / (1 - c**2)
    rho = float(2 * target / (1 + np.sqrt(1 + 4 * target**2)))
    C = np.array(C)
    C[-1, -1] = 1.0
    block = C[:n_prior, :n_prior] + VARIANCE_GUARD * np.eye(n_prior) * (n_prior > 1)
    even = np.full(n_prior, 1.0 / max(n_prior, 1))
    scale = float(np.sqrt(even @ block @ even)) if n_prior else 0.0
    if not scale > 0.0:  # nothing varies
        block, rho, scale = np.eye(n_prior), 0.0, 1.0
    k = np.r_[rho * block @ even / scale, c]
    C[:n_prior, :n_prior] = block
    C[:-1, -1] = C[-1, :-1] = c * k[:-1]
    return k, C


def weakened(model: VectorModel, share: float) -> VectorModel:
    """A label-free model whose one piece of evidence follows u only by this share as closely."""
    k, C = model.k.copy(), model.C.copy()
    k[-1] *= share
    C[:-1, -1] = C[-1, :-1] = k[-1] * k[:-1]
    return replace(model, k=k, C=C)


def _spread(values: FloatArray, names: tuple[str, ...]) -> FloatArray:
    sd = np.nanstd(values, axis=0)
    scale = np.nanmax(np.abs(values), axis=0)
    still = sd <= 1e-12 * np.maximum(scale, 1e-300)
    for name in np.array(names)[still]:
        logger.warning("%s is the same for all calibration queries and carries no weight.", name)
    return np.where(still, 1.0, sd)


def level(wrong: BoolArray | None, base_rate: float | None) -> float | None:
    """t = Φ⁻¹(1 − π) with the smoothed error rate π, or the given base rate."""
    from scipy.special import ndtri

    if wrong is not None:
        pi = (float(wrong.sum()) + 0.5) / (len(wrong) + 1)
    elif base_rate is not None:
        pi = checks.fraction(base_rate, "base_rate")
    else:
        return None
    return float(ndtri(1 - pi))


def _density(pi: float) -> float:
    """φ(t) at the level t = Φ⁻¹(1 − π)."""
    from scipy.special import ndtri

    return float(np.exp(-0.5 * float(ndtri(1 - pi)) ** 2) / np.sqrt(2 * np.pi))


def _biserial(column: FloatArray, wrong: BoolArray) -> float:
    """Cov(x, y)/φ(t) over the queries that have x, t their own level."""
    known = ~np.isnan(column)
    x, y = column[known], wrong[known].astype(np.float64)
    pi = (float(y.sum()) + 0.5) / (len(y) + 1)
    return float((x - x.mean()) @ (y - y.mean())) / len(y) / _density(pi)
