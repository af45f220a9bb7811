"""What training climbs: the collapsed bound (the default), or the paper's objective.

The paper's, λ1·L_emb + λ2·L_KL with a free Gaussian q(i_k) for every output, is spelt out here; the
collapsed bound in :mod:`fusevlm.priors.gp.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fusevlm.errors import InputError
from fusevlm.priors.gp import infer
from fusevlm.priors.gp.blocks import rows_of, work_type
from fusevlm.priors.gp.bound import (
    JITTER,
    Decoder,
    Statistics,
    bound_and_gradient,
    decoder_of,
    inducing_cholesky,
    statistics,
)
from fusevlm.priors.gp.options import Options
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import Posterior, collapsed_posteriors, free_posteriors, moments
from fusevlm.priors.gp.task import Task

WARM_UP = 10  # steps until the full learning rate
LAST_RATE = 0.1  # share of the learning rate at the last step
LATENTS = "latents"

Values = dict[str, Tensor]


def symmetrised_kl(
    mean_p: Tensor, variance_p: Tensor, mean_q: Tensor, variance_q: Tensor
) -> Tensor:
    """½[KL(p‖q) + KL(q‖p)] of diagonal Gaussians, row by row: four [n, D] in, [n] out.

    ¼·Σ_k [v_p/v_q + v_q/v_p − 2 + (μ_p − μ_q)²·(1/v_p + 1/v_q)]; the log-determinants cancel.
    """
    if mean_p.shape != mean_q.shape:
        raise InputError(
            f"L_KL compares modalities of equal width; got {mean_p.shape[1]} and "
            f"{mean_q.shape[1]} outputs. Set lambda2=0."
        )
    ratio = variance_p / variance_q
    gap = (mean_p - mean_q).square() * (1.0 / variance_p + 1.0 / variance_q)
    return 0.25 * (ratio + 1.0 / ratio - 2.0 + gap).sum(1)


def predictive(
    x: Tensor, decoder: Decoder, L: Tensor, m: Tensor, T: Tensor, *, mixed: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean and variance (without noise) of every output at x [n, Q], differentiable: two [n, D].

    Whitened: i_k = L·ι_k with q(ι_k) = N(m_k, T_k·T_kᵀ); a = L⁻¹k(Z, x);
    μ_k = mean_k + a·m_k, v_k = k(x, x) − ‖a‖² + ‖T_kᵀa‖². The last product costs O(n·D·M²), all
    the rest O(n·M·(M + D)): ``mixed`` takes it in bfloat16 and adds up in the type of x.
    """
    K = _kernel(decoder, x)
    a = torch.linalg.solve_triangular(L, K, upper=False)
    slack = decoder.log_amplitude2.exp() - (a * a).sum(0)
    with torch.autocast(x.device.type, torch.bfloat16) if mixed else nullcontext():
        product = torch.einsum("mn,dmj->ndj", a, T)
    spread = product.square().sum(2, dtype=a.dtype)
    return decoder.mean + a.T @ m, slack[:, None] + spread


def _kernel(decoder: Decoder, x: Tensor) -> Tensor:
    """k(Z, x) [M, n] without in-place operations, for autograd."""
    scale = torch.exp(-decoder.log_lengthscale)
    z, x = decoder.inducing * scale, x * scale
    d2 = (z * z).sum(1)[:, None] + (x * x).sum(1) - 2.0 * z @ x.T
    return torch.exp(decoder.log_amplitude2 - 0.5 * d2.clamp(min=0.0))


def free_cholesky(decoder: Decoder, jitter: float = JITTER) -> Tensor:
    """L of K_uu + jitter·a²·I, differentiable; NaN if there is none, which no device waits for."""
    K = _kernel(decoder, decoder.inducing)
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    L, info = torch.linalg.cholesky_ex(K + jitter * decoder.log_amplitude2.exp() * eye)
    return torch.where(info == 0, L, torch.nan)


def expected_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor, log_noise: Tensor) -> Tensor:
    """Σ_{n,k} E_q log N(y_nk; g_k(x_n), σ_k²)."""
    squares = (y - mean).square() + variance
    return -0.5 * (math.log(2.0 * math.pi) + log_noise + squares * torch.exp(-log_noise)).sum()


def kl_to_prior(m: Tensor, T: Tensor) -> Tensor:
    """Σ_k KL(N(m_k, T_kT_kᵀ) ‖ N(0, I)) = ½Σ_k [tr S_k + ‖m_k‖² − M − log det S_k]."""
    log_det = torch.log(T.diagonal(dim1=1, dim2=2).square()).sum()
    return 0.5 * (T.square().sum() + m.square().sum() - m.numel() - log_det)


def elbo(
    x: Tensor,
    y: Tensor,
    decoder: Decoder,
    m: Tensor,
    T: Tensor,
    n_total: int,
    jitter: float = JITTER,
    *,
    mixed: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Σ_k ELBO_k of N pairs estimated from n of them, and the predictive moments (with noise)."""
    L = free_cholesky(decoder, jitter)
    mean, variance = predictive(x, decoder, L, m, T, mixed=mixed)
    fit = expected_log_likelihood(y, mean, variance, decoder.log_noise)
    return fit * (n_total / len(x)) - kl_to_prior(m, T), (mean, variance + decoder.log_noise.exp())


def total_loss(
    elbos: Mapping[str, Tensor],
    predicted: Mapping[str, tuple[Tensor, Tensor]],
    n_total: int,
    lambda1: float,
    lambda2: float,
) -> Tensor:
    """L_total per pair: λ1·L_emb/N + λ2·mean_n L_KL(x_n); L_emb = −Σ_M Σ_k ELBO.

    Differs from the paper: it leaves the sum over n of L_KL implicit; both terms are per pair here.
    """
    loss = -lambda1 * torch.stack(list(elbos.values())).sum() / n_total
    if lambda2 and len(predicted) == 2:
        first, second = predicted.values()
        loss = loss + lambda2 * symmetrised_kl(*first, *second).mean()
    return loss


@dataclass(frozen=True)
class Evaluation:
    """An objective (to be raised) with its gradient; the posterior belongs to the same values."""

    objective: Tensor  # [], on the device
    gradient: Values
    posteriors: Callable[[], dict[str, Posterior]]


class Objective(Protocol):
    """What training climbs: parameters in, an :class:`Evaluation` out; the same on every rank.

    ``sums`` are the sums over all processes' pairs from which, with the values, the posterior
    follows. ``look_every`` steps the objective is looked at: a device waits for that.
    """

    n_steps: int
    look_every: int
    betas: tuple[float, float]

    def first_values(self) -> Values: ...

    def evaluate(self, step: int, values: Values) -> Evaluation: ...

    def posteriors(self, values: Values) -> dict[str, Posterior]: ...

    def sums(self, values: Values) -> Values: ...

    def rate(self, step: int) -> float: ...


class CollapsedObjective:
    """Σ_M Σ_k bound_k(X) − ½‖X‖², full batch: the default.

    Differs from the paper: no λ2·L_KL (it is reported, not optimised), q(i_k) at its optimum, and a
    N(0, I) prior on x, the one that query time assumes.
    """

    betas = (0.9, 0.99)
    look_every = 1

    def __init__(self, task: Task, options: Options, team: Team) -> None:
        self.task, self.options, self.team = task, options, team
        self.n_steps = options.steps
        self.work = work_type(options)

    def first_values(self) -> Values:
        values = {LATENTS: self.task.latents[self.team.rows(self.task.n_pairs)].clone()}
        for name, decoder in self.task.decoders.items():
            values |= {f"{name}.{key}": value for key, value in decoder.named().items()}
        return values

    def evaluate(self, step: int, values: Values) -> Evaluation:
        X = values[LATENTS]
        total = self.team.sum(-0.5 * X.square().sum())
        gradient: Values = {LATENTS: -X}
        stats: dict[str, Statistics] = {}
        for name, data in self.task.data.items():
            found = bound_and_gradient(X, data, decoder_of(values, name), reduce=self.team.sum)
            total = total + found.value
            gradient[LATENTS] = gradient[LATENTS] + found.d_X
            gradient |= {f"{name}.{k}": v for k, v in found.d_decoder.named().items()}
            stats[name] = found.stats
        if not self.options.fit_amplitude:
            _hold_amplitude(gradient)
        return Evaluation(total, gradient, lambda: collapsed_posteriors(values, stats, self.work))

    def statistics(self, values: Values) -> dict[str, Statistics]:
        found = {}
        for name, data in self.task.data.items():
            decoder = decoder_of(values, name)
            L = inducing_cholesky(decoder)
            found[name] = statistics(values[LATENTS], data.Y, decoder, L, self.team.sum)
        return found

    def posteriors(self, values: Values) -> dict[str, Posterior]:
        return collapsed_posteriors(values, self.statistics(values), self.work)

    def sums(self, values: Values) -> Values:
        return {
            f"{name}.{key}": value
            for name, stats in self.statistics(values).items()
            for key, value in asdict(stats).items()
        }

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        done = min(1.0, step / max(1, self.n_steps))
        cosine = LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * done))
        return min(1.0, (step + 1) / WARM_UP) * cosine


class PaperObjective:
    """−(λ1·L_emb + λ2·L_KL) on mini-batches, q(i_k) free: the paper's objective literally.

    A step stays on the device: an epoch's order is copied there once, and so are the pairs.
    q starts at the prior (m_k = 0, S_k = I, whitened); batches depend on seed and epoch only.
    Differs from the paper: outputs are standardised by one scale per modality, so that the kernel's
    amplitude of 1 has a meaning; the start is the same PCA as the default's.
    """

    betas = (0.9, 0.999)
    look_every = 10

    def __init__(self, task: Task, options: Options, team: Team) -> None:
        if team.size > 1:
            raise InputError(
                "the paper's objective steps on small batches and is not data-parallel. "
                "Run it in one process, or use the default preset."
            )
        self.task, self.options = task, options
        self.per_epoch = math.ceil(task.n_pairs / options.batch_size)
        self.n_steps = options.epochs * self.per_epoch
        self.work = work_type(options)
        self._order: tuple[int, Tensor] | None = None  # of the epoch at hand

    def first_values(self) -> Values:
        values = {LATENTS: self.task.latents.to(self.work)}
        for name, decoder in self.task.decoders.items():
            values |= {f"{name}.{k}": v.to(self.work) for k, v in decoder.named().items()}
            M, D = len(decoder.inducing), len(decoder.mean)
            eye = torch.eye(M, dtype=self.work, device=decoder.mean.device)
            values[f"{name}.q_mean"] = torch.zeros(M, D, dtype=self.work, device=eye.device)
            values[f"{name}.q_factor"] = eye.repeat(D, 1, 1)
        return values

    def batch(self, step: int) -> Tensor:
        """Row numbers of a step: a fresh permutation each epoch."""
        epoch, place = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.options.seed, epoch])
            order = torch.as_tensor(rng.permutation(self.task.n_pairs))
            self._order = epoch, order.to(self.task.latents.device)
        size = self.options.batch_size
        return self._order[1][place * size : (place + 1) * size]

    def evaluate(self, step: int, values: Values) -> Evaluation:
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        index = self.batch(step)
        elbos, predicted = {}, {}
        for name, data in self.task.data.items():
            elbos[name], predicted[name] = elbo(
                leaves[LATENTS][index],
                rows_of(data.Y, index),
                decoder_of(leaves, name),
                leaves[f"{name}.q_mean"],
                torch.tril(leaves[f"{name}.q_factor"]),
                self.task.n_pairs,
                mixed=self.options.precision == "mixed",
            )
        o = self.options
        loss = total_loss(elbos, predicted, self.task.n_pairs, o.lambda1, o.lambda2)
        found = torch.autograd.grad(-loss, list(leaves.values()))
        gradient = dict(zip(leaves, found, strict=True))
        if not o.fit_amplitude:
            _hold_amplitude(gradient)
        total = torch.stack([e.detach() for e in elbos.values()]).sum()
        return Evaluation(total, gradient, lambda: self.posteriors(values))

    def posteriors(self, values: Values) -> dict[str, Posterior]:
        return free_posteriors(values, self.task.data)

    def sums(self, values: Values) -> Values:
        return {}

    def rate(self, step: int) -> float:
        return 1.0


def _hold_amplitude(gradient: Values) -> None:
    for name, value in gradient.items():
        if name.endswith(".log_amplitude2"):
            value.zero_()


def objective_for(task: Task, options: Options, team: Team) -> Objective:
    """The objective that the options name."""
    kind = CollapsedObjective if options.objective == "collapsed" else PaperObjective
    return kind(task, options, team)


def mean_kl(task: Task, objective: Objective, values: Values, team: Team) -> float | None:
    """Mean symmetrised KL of the two predictive Gaussians at the training latents.

    In standardised units, as the paper option optimises it; None for one modality, or two of
    unequal width.
    """
    if len(set(task.widths.values())) != 1 or len(task.data) != 2:
        return None
    one, other = objective.posteriors(values).values()
    total = torch.zeros((), dtype=torch.float64, device=values[LATENTS].device)
    for x in torch.split(values[LATENTS].double(), infer.BATCH):
        total += symmetrised_kl(*moments(one, x), *moments(other, x)).sum(dtype=torch.float64)
    return float(team.sum(total)) / task.n_pairs
