"""Labelled tuning of single numbers, and the paper's two supervised ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse.prior import Prior
from fusevlm.fuse.probability import logistic_regression, sigmoid
from fusevlm.maths.fusion import posterior, score
from fusevlm.metrics import auroc

ALPHA_GRID = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
DEFAULT_Z = 2.0
Z_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
TEMPERATURES = tuple(float(t) for t in np.logspace(0, 6, 25))


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
        return sigmoid(self.gamma[0] + self.gamma[1] * m_post + self.gamma[2] * np.log(sigma_post))


def fit_logistic_score(
    m_post: FloatArray, sigma_post: FloatArray, wrong: BoolArray
) -> LogisticScore:
    """Fit :class:`LogisticScore`. A constant σ_post carries no information: γ2 is then 0.

    With γ2 = 0 and γ1 > 0 it is a monotone map of m_post: AUROC cannot differ from the mean-only
    score, whatever the paper's table says.
    """
    columns = np.column_stack([m_post, np.log(sigma_post)])
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

    def predict_proba(self, m_post: FloatArray) -> FloatArray:
        return sigmoid(self.link_intercept + self.link_slope * m_post)


def global_tuning(
    prior: Prior,
    s: FloatArray,
    evidence: FloatArray,
    intercept: FloatArray,
    slope: FloatArray,
    tau2: FloatArray,
    wrong: BoolArray,
) -> GlobalTuning:
    """Minimise the NLL of ``wrong`` under sigmoid(c0 + c1·m_post) over β0, τ², c0 and c1.

    The paper tunes (α0, β0, σ0², a, τ²) without naming the link. Through m_post alone these are
    over-parameterised: shifts of α0 and a are shifts of c0, and scaling σ0² with τ² changes
    nothing. So a and σ0² keep their analytic values and α0 puts the mean of m0 on the mean
    evidence. (At equal n one more direction is flat; every point on it gives the same ranking and
    the same probabilities.)
    """
    from scipy.optimize import minimize

    y = wrong.astype(np.float64)
    u_hat = (evidence - intercept) / slope
    noise = tau2 / slope**2
    sigma2 = prior.sigma0**2 or float(np.var(u_hat))
    s_mean, s_scale = float(s.mean()), float(s.std()) or 1.0
    u_mean, u_scale = float(u_hat.mean()), float(u_hat.std()) or 1.0
    s_std = (s - s_mean) / s_scale

    def pieces(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        weight = 1.0 / (1.0 + sigma2 / (noise * np.exp(theta[1])))
        m = weight * theta[0] * s_std + (1 - weight) * (u_hat - u_mean) / u_scale
        return m, theta[2] + theta[3] * m

    def cost(theta: FloatArray) -> float:
        logits = pieces(theta)[1]
        return float(np.mean(np.logaddexp(0.0, logits) - y * logits))

    rate = (y.sum() + 0.5) / (len(y) + 1)
    logit = float(np.log(rate / (1 - rate)))
    even = float(np.log(sigma2 / np.median(noise)))  # prior and evidence of equal weight
    starts = [np.array([b, t, logit, 1.0]) for b in (-1.0, 1.0) for t in (0.0, even)]
    bounds = [(-1e3, 1e3), (even - 25.0, even + 25.0), (-50.0, 50.0), (0.0, 1e3)]
    runs = [minimize(cost, start, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(runs, key=lambda run: float(run.fun))
    b, log_t, c0, c1 = (float(v) for v in best.x)
    # back to the units of u: m_std = (m_post − α-shift)/u_scale with β0 = b·u_scale/s_scale
    beta0 = b * u_scale / s_scale
    tuned = Prior(u_mean - beta0 * s_mean, beta0, float(np.sqrt(sigma2)))
    return GlobalTuning(
        tuned, float(np.exp(log_t)), c0 - c1 * u_mean / u_scale, c1 / u_scale, float(best.fun)
    )
