"""Labelled tuning of single numbers, and the paper's two supervised ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse.prior import Prior
from fusevlm.fuse.probability import Platt
from fusevlm.maths.fusion import posterior, score
from fusevlm.maths.logistic import logistic_regression, sigmoid
from fusevlm.metrics import auroc

ALPHA_GRID = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
DEFAULT_Z = 2.0
Z_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
TEMPERATURES = tuple(float(t) for t in np.logspace(0, 6, 25))
# global tuning: a slope of the evidence so small beside the prior's counts as none; a log T at
# which the evidence has no weight left
PRIOR_ALONE, FAR = 1e-8, 25.0


def choose_alpha(
    scores: Callable[[float], FloatArray], wrong: BoolArray, grid: Sequence[float] = ALPHA_GRID
) -> float:
    """The α of ``grid`` whose scores rank wrong answers best (AUROC); ties go to the smallest.

    An α whose scores cannot be computed (weights so far apart that a scatter of n > d samples is
    singular in double precision) is passed over; α = 0, the unweighted evidence, is not.
    """
    best, highest = 0.0, -np.inf
    for alpha in grid:
        try:
            value = auroc(scores(alpha), wrong)
        except InputError:
            if alpha == 0.0:
                raise
            continue
        if value > highest:
            best, highest = float(alpha), value
    return best


def choose_z(
    m_post: FloatArray, sigma_post: FloatArray, wrong: BoolArray, grid: Sequence[float] = Z_GRID
) -> float:
    """The z_α of ``grid`` with the best AUROC of m_post + z·σ_post; ties go to the one nearest 2.

    At fixed n and d, σ_post is the same for all queries: z only shifts the score, every z ties, and
    the paper's 2 is returned. It can matter only where σ_post varies (per-query noise, mixed n).
    """
    values = np.array([auroc(score(m_post, sigma_post, z), wrong) for z in grid])
    best = [z for z, value in zip(grid, values, strict=True) if value >= values.max() - 1e-12]
    return float(min(best, key=lambda z: (abs(z - DEFAULT_Z), z)))


def choose_temperature(
    prior: Prior,
    s: FloatArray | None,
    evidence: FloatArray,
    intercept: FloatArray,
    slope: FloatArray,
    tau2: FloatArray,
    wrong: BoolArray,
    grid: Sequence[float] = TEMPERATURES,
) -> float:
    """The factor T ≥ 1 on τ² with the best AUROC of m_post; ties go to the smallest.

    Tempering the likelihood by 1/T is the least one can do for a prior that is otherwise inert.
    The prior's line is kept, so only the balance between the two sources changes.
    """
    m0 = prior.mean(s, len(evidence))
    # a σ0 of 0 would make every temperature equal; the spread of the evidence stands in
    u_hat = (evidence - intercept) / slope
    sigma0 = prior.sigma0 or float(np.std(u_hat - m0))
    values = [
        auroc(posterior(m0, sigma0, evidence, intercept, slope, tau2 * T).m, wrong) for T in grid
    ]
    return float(grid[int(np.argmax(values))])


@dataclass(frozen=True)
class LogisticScore:
    """P(wrong) = sigmoid(γ0 + γ1·m_post + γ2·log σ_post): the paper's "Logistic u*" ablation."""

    gamma: tuple[float, float, float]

    def __call__(self, m_post: FloatArray, sigma_post: FloatArray) -> FloatArray:
        logs = _finite_log(sigma_post)
        return sigmoid(self.gamma[0] + self.gamma[1] * m_post + self.gamma[2] * logs)


def _finite_log(sigma: FloatArray) -> FloatArray:
    """log σ; a σ of 0 (a prior that is sure of itself) as the smallest number there is."""
    return np.log(np.maximum(sigma, np.finfo(np.float64).tiny))


def fit_logistic_score(
    m_post: FloatArray, sigma_post: FloatArray, wrong: BoolArray
) -> LogisticScore:
    """Fit :class:`LogisticScore`. A constant σ_post carries no information: γ2 is then 0.

    With γ2 = 0 and γ1 > 0 it is a monotone map of m_post: AUROC cannot differ from the mean-only
    score, whatever the paper's table says.
    """
    columns = np.column_stack([m_post, _finite_log(sigma_post)])
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    used = scale > 1e-9 * (1 + np.abs(centre))
    gamma = np.zeros(2)
    beta = logistic_regression(
        (columns[:, used] - centre[used]) / scale[used], wrong.astype(np.float64)
    )
    gamma[used] = beta[1:] / scale[used]
    return LogisticScore((float(beta[0] - gamma @ centre), float(gamma[0]), float(gamma[1])))


@dataclass(frozen=True)
class GlobalTuning:
    """Parameters of prior and likelihood tuned together on labels (the paper's ablation)."""

    prior: Prior
    temperature: float  # factor on τ²
    link_intercept: float
    link_slope: float
    nll: float  # mean negative log-likelihood reached

    @property
    def link(self) -> Platt:
        """m_post → P(wrong)."""
        return Platt(self.link_intercept, self.link_slope)


def global_tuning(
    prior: Prior,
    s: FloatArray,
    evidence: FloatArray,
    intercept: FloatArray,
    slope: FloatArray,
    tau2: FloatArray,
    wrong: BoolArray,
) -> GlobalTuning:
    """Minimise the NLL of ``wrong`` under sigmoid(c0 + c1·m_post) over β0, τ², c0 and c1 ≥ 0.

    The paper tunes (α0, β0, σ0², a, τ²) without naming the link. Through m_post alone these are
    over-parameterised: shifts of α0 and a are shifts of c0, and scaling σ0² with τ² changes
    nothing. So a and σ0² keep their analytic values and α0 puts the mean of m0 on the mean
    evidence.

    With w the prior's weight, c0 + c1·m_post = c0 + A·w·s̃ + B·(1−w)·ũ for A = c1·β0 and B = c1, in
    standardised units. So for each factor T on τ² the rest is a logistic regression with B ≥ 0,
    convex, and only T is searched. (Descending in β0, T, c0 and c1 together stops at c1 = 0, where
    β0 and T no longer matter: one value for all queries.) Where B = 0 is best, evidence that points
    the wrong way, T → ∞ leaves the prior alone. At equal n every T gives the same fit: prior and
    evidence then get equal weight.
    """
    u_hat = (evidence - intercept) / slope
    sigma2 = prior.sigma0**2 or float(np.var(u_hat))
    spread = tau2 / slope**2 / sigma2
    even = -float(np.log(np.median(spread)))  # log T at which both weigh the same
    s_mean, s_scale = _location(s)
    u_mean, u_scale = _location(u_hat)
    sources = np.column_stack([(s - s_mean) / s_scale, (u_hat - u_mean) / u_scale])

    def fitted(log_t: float) -> tuple[float, FloatArray]:
        weight = 1.0 / (1.0 + 1.0 / (spread * np.exp(log_t)))
        return _rising_logistic(sources * np.column_stack([weight, 1.0 - weight]), wrong)

    log_t = even if _constant(spread) else _best_log_temperature(lambda t: fitted(t)[0], even)
    nll, (c0, A, B) = fitted(log_t)
    if PRIOR_ALONE * abs(A) >= B:
        log_t = even + FAR
        nll, (c0, A, _) = fitted(log_t)
        B = abs(A)
    if not B > 0.0:
        raise InputError(
            "global tuning finds nothing to rank by: s is the same for all queries and the "
            "evidence does not rise with the errors."
        )
    # back to the units of u: m_std = (m_post − u_mean)/u_scale, β0 = (A/B)·u_scale/s_scale
    beta0 = float(A / B) * u_scale / s_scale
    tuned = Prior(u_mean - beta0 * s_mean, beta0, float(np.sqrt(sigma2)))
    link = float(c0 - B * u_mean / u_scale), float(B / u_scale)
    return GlobalTuning(tuned, float(np.exp(log_t)), *link, nll)


def _location(x: FloatArray) -> tuple[float, float]:
    """Mean and standard deviation; 1 for what does not vary."""
    return float(x.mean()), 1.0 if _constant(x) else float(x.std())


def _constant(x: FloatArray) -> bool:
    return float(np.ptp(x)) <= 1e-12 * float(np.abs(x).max())


def _best_log_temperature(cost: Callable[[float], float], even: float) -> float:
    """The log T of least cost: a grid around equal weights, then a bounded search."""
    from scipy.optimize import minimize_scalar

    grid = even + np.arange(-12.0, 13.0)
    costs = [cost(float(t)) for t in grid]
    best = int(np.argmin(costs))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded")
    return float(found.x) if found.fun < costs[best] else float(grid[best])


def _rising_logistic(X: FloatArray, wrong: BoolArray) -> tuple[float, FloatArray]:
    """Mean NLL and (c0, A, B ≥ 0) of a logistic regression on the columns of ``X`` [N, 2].

    The cost is convex: where the free optimum has B < 0, the constrained one has B = 0.
    """
    y = wrong.astype(np.float64)
    scale = np.where(X.std(axis=0) > 0.0, X.std(axis=0), 1.0)
    varies = [k for k in (0, 1) if float(np.ptp(X[:, k])) > 0.0]
    beta = np.zeros(3)
    for used in (varies, [k for k in varies if k == 0]):
        beta = np.zeros(3)
        found = logistic_regression((X / scale)[:, used], y)
        beta[[0, *(1 + k for k in used)]] = found
        if beta[2] >= 0.0:
            break
    beta[1:] /= scale
    logits = beta[0] + X @ beta[1:]
    return float(np.mean(np.logaddexp(0.0, logits) - y * logits)), beta
