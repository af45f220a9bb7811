"""Training: data in, parameters at the best held-out likelihood out. Deterministic, resumable."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fusevlm.errors import InputError
from fusevlm.priors.gp import elbo, infer, start
from fusevlm.priors.gp.bound import (
    JITTER,
    Decoder,
    DivergedError,
    Rows,
    Statistics,
    bound_and_gradient,
    inducing_cholesky,
    rows,
    statistics,
)
from fusevlm.priors.gp.options import Options
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import FreePosterior, Posterior, collapsed_posterior
from fusevlm.priors.gp.start import Units
from fusevlm.priors.interface import Embeddings

MOST_HELD_OUT = 500
WARM_UP = 10  # steps until the full learning rate
LAST_RATE = 0.1  # share of the learning rate at the last step
N_LANDMARKS = 1024
LATENTS = "latents"

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """Everything training needs, in standardised units; rows are this process's own."""

    data: dict[str, Rows]
    held_out: dict[str, Tensor]  # empty when none
    units: dict[str, Units]
    latents: Tensor  # [N, Q], the PCA start of all processes' pairs
    decoders: dict[str, Decoder]
    n_pairs: int
    fingerprint: str  # of the embeddings, so that a checkpoint of other data is refused

    @property
    def n_outputs(self) -> int:
        return sum(data.Y.shape[1] for data in self.data.values())

    def per_output(self, objective: float) -> float:
        """Nat per pair and output, in embedding units (not standardised ones)."""
        log_scale = sum(
            data.Y.shape[1] * math.log(float(self.units[name].scale))
            for name, data in self.data.items()
        )
        return (objective / self.n_pairs - log_scale) / self.n_outputs


def prepare(
    pairs: Mapping[str, Embeddings], options: Options, team: Team, device: torch.device
) -> Task:
    """Split off held-out pairs, standardise, start from PCA; every rank computes the same start."""
    size = len(next(iter(pairs.values())))
    n_held = min(MOST_HELD_OUT, round(options.held_out * size))
    n_train = size - n_held
    if n_train < options.n_inducing:
        raise InputError(
            f"{n_train} training pairs ({n_held} more held out) are fewer than "
            f"{options.n_inducing} inducing points. Add pairs, or lower n_inducing."
        )
    if n_train <= options.n_latent:
        raise InputError(
            f"{n_train} training pairs cannot start {options.n_latent} latent dimensions. "
            f"Add pairs, or lower n_latent."
        )
    order = np.random.default_rng(options.seed).permutation(size)
    train, held = np.sort(order[n_held:]), np.sort(order[:n_held])
    work = getattr(torch, options.precision)
    scales, whole, apart = {}, {}, {}
    for name, embeddings in pairs.items():
        Y = start.as_tensor(embeddings[train] if n_held else embeddings, device)
        scales[name] = start.units(Y)
        if not float(scales[name].scale) > 0.0:
            raise InputError(f"all {name} embeddings are equal; nothing can be learnt from them.")
        whole[name] = start.standardise(Y, scales[name], work)
        if n_held:
            rest = start.as_tensor(embeddings[held], device)
            apart[name] = start.standardise(rest, scales[name], work)
    X = start.principal_latents(list(whole.values()), options.n_latent, options.seed)
    decoders = {
        name: start.first_decoder(X, Y, options.n_inducing, options.seed, ard=options.ard)
        for name, Y in whole.items()
    }
    own = team.rows(n_train)
    return Task(
        data={
            name: rows(Y if team.size == 1 else Y[own].clone(), team.sum)
            for name, Y in whole.items()
        },
        held_out=apart,
        units=scales,
        latents=X,
        decoders=decoders,
        n_pairs=n_train,
        fingerprint=_fingerprint(pairs),
    )


def _fingerprint(pairs: Mapping[str, Embeddings]) -> str:
    digest = hashlib.sha256()
    for name, embeddings in pairs.items():
        digest.update(f"{name} {embeddings.shape} {embeddings.dtype}".encode())
        for begin in range(0, len(embeddings), 8192):
            digest.update(np.ascontiguousarray(embeddings[begin : begin + 8192]).tobytes())
    return digest.hexdigest()


def decoder_of(values: Mapping[str, Tensor], name: str) -> Decoder:
    """The decoder of one modality among flat parameters."""
    return Decoder(
        inducing=values[f"{name}.inducing"],
        log_lengthscale=values[f"{name}.log_lengthscale"],
        log_amplitude2=values[f"{name}.log_amplitude2"],
        log_noise=values[f"{name}.log_noise"],
        mean=values[f"{name}.mean"],
    )


@dataclass(frozen=True)
class Evaluation:
    """An objective (to be raised) with its gradient; the posterior belongs to the same values."""

    objective: float
    gradient: Values
    posteriors: Callable[[], dict[str, Posterior]]


class Objective(Protocol):
    """What :func:`train` climbs."""

    n_steps: int
    betas: tuple[float, float]

    def first_values(self) -> Values: ...

    def evaluate(self, step: int, values: Values) -> Evaluation: ...

    def posteriors(self, values: Values) -> dict[str, Posterior]: ...

    def rate(self, step: int) -> float: ...


class CollapsedObjective:
    """Σ_M Σ_k bound_k(X) − ½‖X‖², full batch: the default.

    Differs from the paper: no λ2·L_KL (it is reported, not optimised), q(i_k) at its optimum, and a
    N(0, I) prior on x, the one that query time assumes.
    """

    betas = (0.9, 0.99)

    def __init__(self, task: Task, options: Options, team: Team) -> None:
        self.task, self.options, self.team = task, options, team
        self.n_steps = options.steps
        self.work = getattr(torch, options.precision)

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
            for name in self.task.data:
                gradient[f"{name}.log_amplitude2"].zero_()
        return Evaluation(
            float(total), gradient, lambda: collapsed_posteriors(values, stats, self.work)
        )

    def statistics(self, values: Values) -> dict[str, Statistics]:
        """The sums over all processes' pairs from which the posterior follows."""
        found = {}
        for name, data in self.task.data.items():
            decoder = decoder_of(values, name)
            L = inducing_cholesky(decoder)
            found[name] = statistics(values[LATENTS], data.Y, decoder, L, self.team.sum)
        return found

    def posteriors(self, values: Values) -> dict[str, Posterior]:
        return collapsed_posteriors(values, self.statistics(values), self.work)

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        done = min(1.0, step / max(1, self.n_steps))
        cosine = LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * done))
        return min(1.0, (step + 1) / WARM_UP) * cosine


def collapsed_posteriors(
    values: Values, stats: Mapping[str, Statistics], work: torch.dtype
) -> dict[str, Posterior]:
    """The optimal posterior of each modality."""
    return {
        name: collapsed_posterior(decoder_of(values, name), found, work=work)
        for name, found in stats.items()
    }


class PaperObjective:
    """−(λ1·L_emb + λ2·L_KL) on mini-batches, q(i_k) free: the paper's objective literally.

    q starts at the prior (m_k = 0, S_k = I, whitened); batches depend on seed and epoch only.
    Differs from the paper: outputs are standardised by one scale per modality, so that the kernel's
    amplitude of 1 has a meaning; the start is the same PCA as the default's.
    """

    betas = (0.9, 0.999)

    def __init__(self, task: Task, options: Options, team: Team) -> None:
        if team.size > 1:
            raise InputError(
                "the paper's objective steps on small batches and is not data-parallel. "
                "Run it in one process, or use the default preset."
            )
        self.task, self.options = task, options
        self.per_epoch = math.ceil(task.n_pairs / options.batch_size)
        self.n_steps = options.epochs * self.per_epoch
        self.work = getattr(torch, options.precision)

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
        order = np.random.default_rng([self.options.seed, epoch]).permutation(self.task.n_pairs)
        size = self.options.batch_size
        return torch.as_tensor(order[place * size : (place + 1) * size])

    def evaluate(self, step: int, values: Values) -> Evaluation:
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        index = self.batch(step)
        elbos, moments = {}, {}
        for name, data in self.task.data.items():
            elbos[name], moments[name] = elbo.elbo(
                leaves[LATENTS][index],
                data.Y[index],
                decoder_of(leaves, name),
                leaves[f"{name}.q_mean"],
                torch.tril(leaves[f"{name}.q_factor"]),
                self.task.n_pairs,
            )
        o = self.options
        loss = elbo.total_loss(elbos, moments, self.task.n_pairs, o.lambda1, o.lambda2)
        found = torch.autograd.grad(-loss, list(leaves.values()))
        gradient = dict(zip(leaves, found, strict=True))
        if not o.fit_amplitude:
            for name in self.task.data:
                gradient[f"{name}.log_amplitude2"].zero_()
        total = float(torch.stack([e.detach() for e in elbos.values()]).sum())
        return Evaluation(total, gradient, lambda: self.posteriors(values))

    def posteriors(self, values: Values) -> dict[str, Posterior]:
        return {
            name: free_posterior(
                decoder_of({k: v.double() for k, v in values.items()}, name),
                values[f"{name}.q_mean"],
                torch.tril(values[f"{name}.q_factor"]),
            )
            for name in self.task.data
        }

    def rate(self, step: int) -> float:
        return 1.0


def free_posterior(decoder: Decoder, q_mean: Tensor, q_factor: Tensor) -> FreePosterior:
    """A decoder with a q of its own."""
    L = inducing_cholesky(decoder, JITTER)
    eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
    P = torch.linalg.solve_triangular(L, eye, upper=False)
    return FreePosterior(decoder, P, q_mean, q_factor)


def objective_for(task: Task, options: Options, team: Team) -> CollapsedObjective | PaperObjective:
    """The objective that the options name."""
    kind = CollapsedObjective if options.objective == "collapsed" else PaperObjective
    return kind(task, options, team)


@dataclass
class State:
    """All that a later process needs to go on as if nothing had happened."""

    step: int
    values: Values
    first: Values  # Adam's running mean of the gradient
    second: Values  # and of its square
    held_latents: Tensor | None = None
    best: Values | None = None  # parameters at the best held-out likelihood so far
    best_held_out: float = -math.inf
    best_step: int = 0
    stale: int = 0  # looks at the held-out pairs since the last gain
    seconds: float = 0.0
    finished: str = ""  # why training ended
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"objective": [], "held_out_step": [], "held_out": []}
    )


def first_state(objective: Objective) -> State:
    """Before the first step."""
    values = objective.first_values()
    zeros = {name: torch.zeros_like(value) for name, value in values.items()}
    return State(0, values, zeros, {name: value.clone() for name, value in zeros.items()})


@dataclass(frozen=True)
class Progress:
    """What the progress line shows."""

    step: int
    n_steps: int
    bound: float  # nat per pair and output, embedding units
    held_out: float | None
    seconds: float
    seconds_left: float


def train(
    task: Task,
    options: Options,
    team: Team,
    objective: Objective,
    state: State,
    *,
    checkpoint: Callable[[State], None] | None = None,
    checkpoint_every: int = 25,
    progress: Callable[[Progress], None] | None = None,
) -> State:
    """Adam from ``state`` until the steps, the patience or the numbers run out."""
    clock = time.monotonic() - state.seconds
    begun_at, begun = state.step, time.monotonic()
    marks = _landmark_latents(task, options.seed)
    while not state.finished:
        found = objective.evaluate(state.step, state.values)
        _refuse_divergence(task, options, state, found.objective)
        state.history["objective"].append(task.per_output(found.objective))
        last = state.step >= objective.n_steps
        if task.held_out and (state.step % options.check_every == 0 or last):
            _look_at_held_out(task, options, team, state, found.posteriors(), marks)
        if last:
            state.finished = f"all {objective.n_steps} steps taken"
        elif state.stale >= options.patience:
            state.finished = f"no gain on held-out pairs since step {state.best_step}"
        else:
            adam_step(state, found.gradient, options, objective, team)
            state.step += 1
        state.seconds = time.monotonic() - clock
        if progress is not None:
            pace = (time.monotonic() - begun) / max(1, state.step - begun_at)
            progress(
                Progress(
                    state.step,
                    objective.n_steps,
                    state.history["objective"][-1],
                    state.history["held_out"][-1] if state.history["held_out"] else None,
                    state.seconds,
                    0.0 if state.finished else pace * (objective.n_steps - state.step),
                )
            )
        if checkpoint is not None and (state.finished or state.step % checkpoint_every == 0):
            checkpoint(state)
    return state


def adam_step(
    state: State, gradient: Values, options: Options, objective: Objective, team: Team
) -> None:
    """One step of Adam (AdamW with weight decay), upwards; shared values as rank 0 has them."""
    beta1, beta2 = objective.betas
    t = state.step + 1
    for name, g in gradient.items():
        lr = objective.rate(state.step) * (options.latent_lr if name == LATENTS else options.lr)
        state.first[name].lerp_(g, 1.0 - beta1)
        state.second[name].mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        mean = state.first[name] / (1.0 - beta1**t)
        root = (state.second[name] / (1.0 - beta2**t)).sqrt_().add_(1e-8)
        value = state.values[name] * (1.0 - lr * options.weight_decay) + lr * mean / root
        state.values[name] = value if name == LATENTS else team.from_first(value)


def _refuse_divergence(task: Task, options: Options, state: State, objective: float) -> None:
    """Stop, and say so, at a NaN or a full-batch bound that fell below where it began."""
    history = state.history["objective"]
    now = task.per_output(objective)
    fell = options.objective == "collapsed" and history and now < history[0] - 0.05
    if not math.isfinite(objective) or fell:
        before = f" (it was {history[-1]:.4f} a step before)" if history else ""
        raise DivergedError(
            f"training diverged at step {state.step}: the bound is {now:.4f} nat per output{before}"
            f". Lower lr and latent_lr (now {options.lr:g} and {options.latent_lr:g})."
        )


def _landmark_latents(task: Task, seed: int) -> Tensor:
    order = np.random.default_rng([seed, 1]).permutation(task.n_pairs)[:N_LANDMARKS]
    return task.latents[torch.as_tensor(np.sort(order))]


def _look_at_held_out(
    task: Task,
    options: Options,
    team: Team,
    state: State,
    posteriors: dict[str, Posterior],
    marks: Tensor,
) -> None:
    """Held-out log p(z, x*) per output, x* of each pair found jointly; remember the best values."""
    views = [infer.view(posteriors[name], z) for name, z in task.held_out.items()]
    if state.held_latents is None:
        scored = [(infer.landmarks(posteriors[n], marks), z) for n, z in task.held_out.items()]
        near, _ = infer.nearest_landmarks(scored, 3)
        found = infer.find_latents(views, near, n_climbs=1, max_steps=30)
    else:
        found = infer.ascend(views, state.held_latents, max_steps=15)
    state.held_latents = found.x
    mean = float(team.from_first(found.log_joint.mean()))
    value = task.per_output(mean * task.n_pairs)
    state.history["held_out"].append(value)
    state.history["held_out_step"].append(float(state.step))
    if value > state.best_held_out + options.min_gain:
        state.stale = 0
    else:
        state.stale += 1
    if value > state.best_held_out:
        state.best_held_out, state.best_step = value, state.step
        state.best = {name: v.clone() for name, v in state.values.items()}
