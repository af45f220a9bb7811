"""``GpAdapter``: fit on paired embeddings, then give each query a distribution and statistics."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fusevlm import store
from fusevlm.checks import BoolArray, FloatArray, count
from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.priors.distances import mean_nearest_distance
from fusevlm.priors.gp import infer
from fusevlm.priors.gp.blocks import Units, standardise, work_type
from fusevlm.priors.gp.bound import DivergedError, Statistics
from fusevlm.priors.gp.objectives import LATENTS, Objective, Values, mean_kl, objective_for
from fusevlm.priors.gp.options import Options, resolve
from fusevlm.priors.gp.pairs import MANIFEST
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import collapsed_posteriors, free_posteriors, moments
from fusevlm.priors.gp.task import Task, as_tensor, prepare
from fusevlm.priors.gp.train import (
    Progress,
    State,
    first_state,
    load_checkpoint,
    price,
    save_checkpoint,
    seconds_per_step,
    train,
)
from fusevlm.priors.interface import check_pairs
from fusevlm.store.declared import built
from fusevlm.store.pairs import MODALITIES

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
KIND = "fusevlm.GpAdapter"
LATENT_NEIGHBOURS = 10
SINGULAR: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]


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
    # decoder and posterior arrays as "modality.name", and "latents"
    arrays: dict[str, npt.NDArray[Any]]
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
        say: Callable[[str], None] | None = None,
        team: Team | None = None,
    ) -> GpAdapter:
        """Train on paired embeddings [N, D_I] and [N, D_T], arrays or stored ones.

        With a ``folder``, checkpoints go there and an interrupted run of the same options and data
        goes on where it stopped; ``fresh`` forgets it. ``say`` is told, before training begins,
        what a step takes and what all of them would.
        """
        team = team or Team()
        count(checkpoint_every, "checkpoint_every")
        pairs = check_pairs(image, text, norm=self.options.norm)
        task = prepare(pairs, self.options, team, self.device)
        objective = objective_for(task, self.options, team)
        state, save = None, None
        if folder is not None:
            home = Path(folder)
            first = objective.first_values()
            state = load_checkpoint(home, task, self.options, team, first, fresh=fresh)

            def save(now: State) -> None:
                save_checkpoint(home, now, task, self.options, team)

        if say is not None and not (state and state.finished):
            say(_price(objective, self.options, team, state))
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
        values = state.values if state.best is None else state.best
        arrays = _arrays(task, objective, values, team)
        record = _record(task, state, mean_kl(task, objective, values, team))
        self._use(Fitted(asdict(self.options), task.widths, arrays, record))
        return self

    def _use(self, fitted: Fitted) -> None:
        """Make the tensors that queries need."""
        work = work_type(self.options)
        t = {k: torch.as_tensor(np.array(v), device=self.device) for k, v in fitted.arrays.items()}
        names = list(fitted.widths)
        if self.options.objective == "collapsed":
            stats = {n: Statistics(t[f"{n}.Phi"], t[f"{n}.AY"], t[f"{n}.A1"]) for n in names}
            posteriors = collapsed_posteriors(t, stats, work)
        else:
            posteriors = free_posteriors(t, names)
        if not all(bool(torch.isfinite(p.mean_map).all()) for p in posteriors.values()):
            raise DivergedError("its predictions are no numbers.")
        marks = infer.landmark_latents(t[LATENTS], [self.options.seed, 2])
        self._search = infer.Search(
            posteriors,
            {n: infer.landmarks(p, marks) for n, p in posteriors.items()},
            {n: t[f"{n}.ridge"] for n in names},
        )
        self._units = {n: Units(t[f"{n}.shift"], t[f"{n}.scale"]) for n in names}
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
        given = None if starts is None else torch.as_tensor(np.asarray(starts), device=self.device)
        try:
            found = self._search.latents(z, given, n_climbs=n_climbs, max_steps=max_steps, tol=tol)
        except SINGULAR as error:
            raise InputError(
                f"this adapter cannot place a query: {error} Train it again."
            ) from error
        log_scale = sum(
            self.fitted.widths[name] * float(torch.log(self._units[name].scale)) for name in z
        )
        return Latents(
            found.x.cpu().numpy(),
            found.log_joint.cpu().numpy() - log_scale,
            found.converged.cpu().numpy(),
        )

    def _standardised(self, name: str, rows: Any) -> Tensor:
        work = work_type(self.options)
        return standardise(as_tensor(rows, self.device), self._units[name], work)

    def predict(self, x: Any) -> dict[str, Predictive]:
        """The predictive Gaussian of each modality at latents x [B, Q]."""
        at = torch.as_tensor(np.asarray(x, dtype=np.float64), device=self.device)
        return {name: self._predict(name, at) for name in self.fitted.widths}

    def _predict(self, name: str, x: Tensor) -> Predictive:
        u = self._units[name]
        posterior = self._search.posteriors[name]
        parts = [moments(posterior, part) for part in torch.split(x, infer.BATCH)]
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
        fitted = store.load_object(
            path, MANIFEST, KIND, SCHEMA_VERSION, classes, MIGRATIONS, of=Fitted
        )
        adapter = cls(device=device)
        try:
            adapter.options = built(Options, fitted.options)
            _need_arrays(fitted, adapter.options)
            adapter._use(fitted)
        except (ArtefactError, DivergedError, SINGULAR) as error:
            raise ArtefactError(f"{path} is damaged: {error} Save it again.") from error
        return adapter


# shapes of a modality's arrays by their names: M inducing points, Q latent, D output dimensions
_DECODER = {
    "inducing": "MQ", "log_lengthscale": "L", "log_amplitude2": "1", "log_noise": "D", "mean": "D",
    "shift": "D", "scale": "1", "ridge": "DQ",
}  # fmt: skip
_POSTERIOR = {
    "collapsed": {"Phi": "MM", "AY": "MD", "A1": "M"},
    "paper": {"q_mean": "MD", "q_factor": "DMM"},
}


def _need_arrays(fitted: Fitted, options: Options) -> None:
    """Refuse arrays that are missing, or not of the shapes that options and widths say."""
    sizes = {"1": 1, "M": options.n_inducing, "Q": options.n_latent}
    sizes["L"] = options.n_latent if options.ard else 1
    wanted = {}
    for name, width in fitted.widths.items():
        if name not in MODALITIES or width < 1:
            raise ArtefactError(f"it is of {name!r} with the width {width}.")
        for own, axes in (_DECODER | _POSTERIOR[options.objective]).items():
            wanted[f"{name}.{own}"] = tuple((sizes | {"D": width})[axis] for axis in axes)
    latents = fitted.arrays.get(LATENTS)
    rows = len(latents) if isinstance(latents, np.ndarray) and latents.ndim else 0
    wanted[LATENTS] = (max(1, rows), options.n_latent)
    for name, shape in wanted.items():
        found = fitted.arrays.get(name, np.zeros(0, bool))
        wide = found.dtype == np.float64 if options.objective == "collapsed" else True
        plain = () if shape == (1,) else shape
        if found.dtype.kind != "f" or not wide or found.shape not in (shape, plain):
            raise ArtefactError(f"the array {name!r} is missing, or not of the shape {shape}.")
    if not fitted.widths:
        raise ArtefactError("it is of no modality.")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used: {error}.") from error
    return device


def _price(objective: Objective, options: Options, team: Team, state: State | None) -> str:
    """What training will cost: from a few steps, or from those that an earlier process took."""
    if state is not None and state.step:
        return price(state.seconds / state.step, options, objective.n_steps, state.step)
    literal = options.objective == "paper"
    pace = seconds_per_step(
        objective, options, team, n_steps=min(3, objective.n_steps) if literal else 1,
        warm_up=int(literal),
    )  # fmt: skip
    return price(pace, options, objective.n_steps)


def _only(name: str, rows: Any) -> dict[str, Any]:
    """Arguments that give one modality and not the other."""
    return {"image": None, "text": None, name: rows}


def _record(task: Task, state: State, kl: float | None) -> Record:
    return Record(
        n_pairs=task.n_pairs,
        n_held_out=len(next(iter(task.held_out.values()))) if task.held_out else 0,
        steps=state.step,
        finished=state.finished,
        seconds=state.seconds,
        **state.history,
        best_step=state.step if state.best is None else state.best_step,
        kl=kl,
    )


def _arrays(task: Task, objective: Objective, values: Values, team: Team) -> dict[str, Any]:
    """Everything a query needs, as numpy arrays."""
    found: dict[str, Tensor] = {name: value for name, value in values.items() if name != LATENTS}
    found[LATENTS] = team.gather(values[LATENTS], task.n_pairs).double()
    found |= objective.sums(values)
    for name, u in task.units.items():
        found |= {f"{name}.shift": u.shift, f"{name}.scale": u.scale}
        Z = task.data[name].Y
        found[f"{name}.ridge"] = infer.linear_start(Z, values[LATENTS], task.n_pairs, team)
    return {name: value.cpu().numpy() for name, value in found.items()}
