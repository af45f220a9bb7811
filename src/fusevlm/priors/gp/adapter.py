"""``GpAdapter``: fit on paired embeddings, then give each query a distribution and statistics."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusevlm import store
from fusevlm.checks import BoolArray, FloatArray, count
from fusevlm.errors import InputError, NotFittedError
from fusevlm.priors.gp import checkpoints, infer
from fusevlm.priors.gp.bound import Decoder, Statistics
from fusevlm.priors.gp.elbo import symmetrised_kl
from fusevlm.priors.gp.infer import Found, Landmarks, View
from fusevlm.priors.gp.options import Options, resolve
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import Posterior, moments, predictive_mean
from fusevlm.priors.gp.start import Units, as_tensor, standardise
from fusevlm.priors.gp.train import (
    LATENTS,
    CollapsedObjective,
    Objective,
    PaperObjective,
    Progress,
    Task,
    Values,
    collapsed_posteriors,
    decoder_of,
    first_state,
    free_posterior,
    objective_for,
    prepare,
    train,
)
from fusevlm.priors.interface import check_pairs
from fusevlm.priors.distances import mean_nearest_distance

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
KIND, MANIFEST = "fusevlm.GpAdapter", "adapter.json"
N_LANDMARKS = 1024
N_NEAREST = 2  # landmarks to start from
N_CORRECTIONS = 2  # linear steps towards z before a climb
RIDGE_ROWS = 4096  # pairs from which the linear start is fitted
LATENT_NEIGHBOURS = 10


@dataclass(frozen=True)
class Predictive:
    """Diagonal Gaussians of a batch in embedding units, noise included: two [B, D]."""

    mean: FloatArray
    variance: FloatArray


@dataclass(frozen=True)
class Latents:
    """x* of a batch, the objective reached (log p(z, x*), embedding units), and convergence."""

    x: FloatArray  # [B, Q]
    log_joint: FloatArray  # [B]
    converged: BoolArray  # [B]


@dataclass(frozen=True)
class Record:
    """How training went; likelihoods in nat per pair and output, embedding units."""

    n_pairs: int
    n_held_out: int
    steps: int
    finished: str
    seconds: float
    objective: list[float]  # collapsed: (Σ bound − ½‖X‖²); paper: the mini-batch estimate of ΣELBO
    held_out_step: list[float]
    held_out: list[float]  # log p(z, x*) of held-out pairs
    best_step: int
    kl: float | None  # mean L_KL over the training pairs; None if widths differ


@dataclass(frozen=True)
class Fitted:
    """A trained adapter as plain arrays: what is saved."""

    options: dict[str, Any]
    widths: dict[str, int]
    arrays: dict[str, Any]  # decoder and posterior arrays as "modality.name", and "latents"
    record: Record


class GpAdapter:
    """Sparse GP latent variable model of paired embeddings (paper, section 4.1).

    A pair shares one latent x; each modality has a GP decoder. A new embedding is placed at x* and
    the decoder's predictive Gaussian there is its distribution. Statistics (larger = stranger):

    s                s = (1/2D)[log det Σ_I + log det Σ_T], the paper's (primary); with unequal
                     widths each term has its own D; with one modality given it is that one's
    s_image, s_text  (1/D)·log det Σ of each modality
    reconstruction   mean over outputs and modalities of (z − μ)²/Σ: far from 1, z is not on the
                     decoder's manifold
    latent_distance  mean distance of x* to the 10 nearest training latents (an inverse density)
    disagreement     ‖x*_I − x*_T‖: the modalities tell different stories (needs both)

    Σ is diagonal, noise included, each modality at its own x* (``joint=True``: one x* for both).
    """

    primary = "s"

    def __init__(self, preset: str = "default", *, device: str = "cpu", **changes: Any) -> None:
        self.options: Options = resolve(preset, **changes)
        self.device = _device(device)
        self._fitted: Fitted | None = None

    @property
    def fitted(self) -> Fitted:
        """What training left, or NotFittedError."""
        if self._fitted is None:
            raise NotFittedError("this adapter is untrained: call fit, or load a saved one.")
        return self._fitted

    def fit(
        self,
        image: Any = None,
        text: Any = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 25,
        fresh: bool = False,
        progress: Callable[[Progress], None] | None = None,
        team: Team | None = None,
    ) -> GpAdapter:
        """Train on paired embeddings [N, D_I] and [N, D_T].

        With a ``folder``, checkpoints go there and an interrupted run of the same options and data
        goes on where it stopped; ``fresh`` forgets it.
        """
        team = team or Team()
        count(checkpoint_every, "checkpoint_every")
        pairs = check_pairs(image, text, norm=self.options.norm)
        task = prepare(pairs, self.options, team, self.device)
        objective = objective_for(task, self.options, team)
        state, save = None, None
        if folder is not None:
            home = Path(folder)
            if fresh and team.rank == 0:
                checkpoints.remove_checkpoints(home)
            team.sum(torch.zeros(1))  # nobody looks before rank 0 has cleared
            state = checkpoints.load_checkpoint(home, task, self.options, team, self.device)

            def save(now: Any) -> None:
                checkpoints.save_checkpoint(home, now, task, self.options, team)

        state = train(
            task,
            self.options,
            team,
            objective,
            state or first_state(objective),
            checkpoint=save,
            checkpoint_every=checkpoint_every,
            progress=progress,
        )
        values = state.best if state.best is not None else state.values
        record = Record(
            task.n_pairs,
            len(next(iter(task.held_out.values()))) if task.held_out else 0,
            state.step,
            state.finished,
            state.seconds,
            state.history["objective"],
            state.history["held_out_step"],
            state.history["held_out"],
            state.best_step if state.best is not None else state.step,
            _mean_kl(task, objective, values, team),
        )
        self._use(
            Fitted(
                asdict(self.options), _widths(task), _arrays(task, objective, values, team), record
            )
        )
        return self

    def _use(self, fitted: Fitted) -> None:
        """Make the tensors that queries need."""
        work = getattr(torch, self.options.precision)
        t = {k: torch.as_tensor(np.array(v), device=self.device) for k, v in fitted.arrays.items()}
        names = list(fitted.widths)
        if self.options.objective == "collapsed":
            stats = {n: Statistics(t[f"{n}.Phi"], t[f"{n}.AY"], t[f"{n}.A1"]) for n in names}
            self._posteriors: dict[str, Posterior] = collapsed_posteriors(t, stats, work)
        else:
            self._posteriors = {
                n: free_posterior(_double(decoder_of(t, n)), t[f"{n}.q_mean"], t[f"{n}.q_factor"])
                for n in names
            }
        self._units = {n: Units(t[f"{n}.shift"], t[f"{n}.scale"]) for n in names}
        self._ridge = {n: t[f"{n}.ridge"] for n in names}
        order = np.random.default_rng([self.options.seed, 2]).permutation(len(t[LATENTS]))
        marks = t[LATENTS][torch.as_tensor(np.sort(order[:N_LANDMARKS]))]
        self._landmarks: dict[str, Landmarks] = {
            n: infer.landmarks(p, marks) for n, p in self._posteriors.items()
        }
        self._fitted = fitted

    @property
    def training_latents(self) -> FloatArray:
        """X [N, Q] of the training pairs."""
        return np.asarray(self.fitted.arrays[LATENTS], dtype=np.float64)

    def latents(
        self,
        image: Any = None,
        text: Any = None,
        *,
        n_climbs: int = 2,
        starts: Any = None,
        max_steps: int = 60,
        tol: float = 1e-4,
    ) -> Latents:
        """x* of each query, from the modalities given (both: jointly).

        Starts: the two training latents under which z is likeliest, 0, and 0 after a linear
        correction towards z; the ``n_climbs`` best are climbed from. ``starts`` [B, S, Q] replaces
        them (each is tried as it is and corrected). A climb ends when a step promises less than
        ``tol`` nat.
        """
        pairs = check_pairs(image, text, norm=self.options.norm, widths=self.fitted.widths)
        z = {name: self._standardised(name, rows) for name, rows in pairs.items()}
        views = [infer.view(self._posteriors[name], rows) for name, rows in z.items()]
        size = len(views[0].z)
        given = None if starts is None else torch.as_tensor(np.asarray(starts), device=self.device)
        parts: list[Found] = []
        for begin in range(0, size, infer.BATCH):
            index = torch.arange(begin, min(size, begin + infer.BATCH), device=self.device)
            some = infer.select(views, index)
            if given is None:
                first = self._starts(list(z), some)
            else:
                first = torch.cat([given[index], self._corrected(list(z), some, given[index])], 1)
            parts.append(
                infer.find_latents(some, first, n_climbs=n_climbs, max_steps=max_steps, tol=tol)
            )
        log_scale = sum(
            self.fitted.widths[name] * float(torch.log(self._units[name].scale)) for name in z
        )
        return Latents(
            torch.cat([p.x for p in parts]).cpu().numpy(),
            torch.cat([p.log_joint for p in parts]).cpu().numpy() - log_scale,
            torch.cat([p.converged for p in parts]).cpu().numpy(),
        )

    def _starts(self, names: list[str], views: list[View]) -> Tensor:
        """[B, S, Q]: nearest landmarks and zero, and what a linear correction makes of zero."""
        near, _ = infer.nearest_landmarks(
            [(self._landmarks[n], v.z) for n, v in zip(names, views, strict=True)], N_NEAREST
        )
        zero = torch.zeros_like(near[:, :1])
        return torch.cat([near, zero, self._corrected(names, views, zero)], 1)

    def _corrected(self, names: list[str], views: list[View], starts: Tensor) -> Tensor:
        """x ← x + R·(z − μ(x)), twice, R the linear map z → x: leads most starts to one basin."""
        B, S, Q = starts.shape
        x = starts.reshape(B * S, Q)
        for _ in range(N_CORRECTIONS):
            change = torch.zeros_like(x)
            for name, v in zip(names, views, strict=True):
                mean = predictive_mean(v.posterior, x)
                gap = v.z.repeat_interleave(S, 0) - mean
                change += gap.double() @ self._ridge[name] / len(names)
            x = x + change
        return x.reshape(B, S, Q)

    def _standardised(self, name: str, rows: Any) -> Tensor:
        work = getattr(torch, self.options.precision)
        return standardise(as_tensor(rows, self.device), self._units[name], work)

    def predict(self, x: Any) -> dict[str, Predictive]:
        """The predictive Gaussian of each modality at latents x [B, Q]."""
        at = torch.as_tensor(np.asarray(x, dtype=np.float64), device=self.device)
        _ = self.fitted
        return {name: self._predict(name, at) for name in self._posteriors}

    def _predict(self, name: str, x: Tensor) -> Predictive:
        u = self._units[name]
        parts = [moments(self._posteriors[name], part) for part in torch.split(x, infer.BATCH)]
        mean = torch.cat([m for m, _ in parts]).double() * u.scale + u.shift
        variance = torch.cat([v for _, v in parts]).double() * u.scale**2
        return Predictive(mean.cpu().numpy(), variance.cpu().numpy())

    def statistics(
        self, image: Any = None, text: Any = None, *, joint: bool = False
    ) -> dict[str, FloatArray]:
        """Statistics of each query by name; see the class."""
        pairs = check_pairs(image, text, norm=self.options.norm, widths=self.fitted.widths)
        if joint:
            both = self.latents(image, text).x
            x = dict.fromkeys(pairs, both)
        else:
            x = {n: self.latents(**_only(n, rows)).x for n, rows in pairs.items()}
        log_det, misfit, far = {}, [], []
        for name, rows in pairs.items():
            p = self._predict(name, torch.as_tensor(x[name], device=self.device))
            log_det[name] = np.log(p.variance).mean(axis=1)
            misfit.append(((rows - p.mean) ** 2 / p.variance).mean(axis=1))
            k = min(LATENT_NEIGHBOURS, len(self.training_latents))
            far.append(mean_nearest_distance(x[name], self.training_latents, k))
        found = {"s": np.mean(list(log_det.values()), axis=0)}
        found |= {f"s_{name}": value for name, value in log_det.items()}
        found["reconstruction"] = np.mean(misfit, axis=0)
        found["latent_distance"] = np.mean(far, axis=0)
        if len(x) == 2 and not joint:
            one, other = x.values()
            found["disagreement"] = np.linalg.norm(one - other, axis=1)
        return found

    def log_likelihood(self, target: str, rows: Any, x: Any) -> FloatArray:
        """log N(rows; μ(x), Σ(x)) of modality ``target`` at latents x, embedding units [B]."""
        widths = self.fitted.widths
        if target not in widths:
            raise InputError(f"target is {target!r}; expected one of {', '.join(widths)}.")
        z = check_pairs(**_only(target, rows), norm=self.options.norm, widths=widths)
        p = self._predict(target, torch.as_tensor(np.asarray(x), device=self.device))
        terms = np.log(2.0 * np.pi * p.variance) + (z[target] - p.mean) ** 2 / p.variance
        return np.asarray(-0.5 * terms.sum(axis=1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the adapter to the folder ``path`` (JSON + safetensors)."""
        store.save_object(path, MANIFEST, KIND, SCHEMA_VERSION, self.fitted)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu") -> GpAdapter:
        """Read an adapter written by :meth:`save`; another schema is migrated or refused."""
        classes: dict[str, type] = {"Fitted": Fitted, "Record": Record}
        fitted = store.load_object(path, MANIFEST, KIND, SCHEMA_VERSION, classes, MIGRATIONS)
        adapter = cls(device=device)
        adapter.options = Options(**fitted.options)
        adapter._use(fitted)
        return adapter


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used: {error}.") from error
    return device


def _only(name: str, rows: Any) -> dict[str, Any]:
    """Arguments that give one modality and not the other."""
    return {"image": None, "text": None, name: rows}


def _double(decoder: Decoder) -> Decoder:
    return Decoder(**{name: value.double() for name, value in decoder.named().items()})


def _widths(task: Task) -> dict[str, int]:
    return {name: int(data.Y.shape[1]) for name, data in task.data.items()}


def _arrays(task: Task, objective: Objective, values: Values, team: Team) -> dict[str, Any]:
    """Everything a query needs, as numpy arrays."""
    found: dict[str, Tensor] = {name: value for name, value in values.items() if name != LATENTS}
    found[LATENTS] = team.gather(values[LATENTS], task.n_pairs).double()
    if isinstance(objective, CollapsedObjective):
        for name, stats in objective.statistics(values).items():
            found |= {f"{name}.{k}": v for k, v in asdict(stats).items()}
    if isinstance(objective, PaperObjective):
        for name in task.data:
            found[f"{name}.q_factor"] = torch.tril(values[f"{name}.q_factor"])
    for name, u in task.units.items():
        found |= {f"{name}.shift": u.shift, f"{name}.scale": u.scale}
        found[f"{name}.ridge"] = _ridge(task, name, values[LATENTS], team)
    return {name: value.cpu().numpy() for name, value in found.items()}


def _ridge(task: Task, name: str, X: Tensor, team: Team) -> Tensor:
    """The linear map z → x that starts a query: (ZᵀZ + N/10·I)⁻¹ZᵀX on some training pairs."""
    most = -(-RIDGE_ROWS // team.size)
    Z, x = task.data[name].Y[:most].double(), X[:most].double()
    gram, cross = team.sum(Z.T @ Z), team.sum(Z.T @ x)
    gram.diagonal().add_(0.1 * min(RIDGE_ROWS, task.n_pairs))
    solution: Tensor = torch.linalg.solve(gram, cross)
    return solution


def _mean_kl(task: Task, objective: Objective, values: Values, team: Team) -> float | None:
    """Mean symmetrised KL of the two predictive Gaussians at the training latents.

    In standardised units, as the paper option optimises it.
    """
    if len(set(_widths(task).values())) != 1 or len(task.data) != 2:
        return None
    one, other = objective.posteriors(values).values()
    total = torch.zeros((), dtype=torch.float64, device=values[LATENTS].device)
    for x in torch.split(values[LATENTS].double(), infer.BATCH):
        total += symmetrised_kl(*moments(one, x), *moments(other, x)).sum(dtype=torch.float64)
    return float(team.sum(total)) / task.n_pairs
