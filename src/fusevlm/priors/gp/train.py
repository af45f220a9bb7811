"""Training: data in, parameters at the best held-out likelihood out. Deterministic, resumable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fusevlm.checks import Whole
from fusevlm.errors import ArtefactError
from fusevlm.priors.gp import infer
from fusevlm.priors.gp.bound import DivergedError
from fusevlm.priors.gp.objectives import LATENTS, Objective, Values
from fusevlm.priors.gp.options import Options
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import Posterior
from fusevlm.priors.gp.task import Task
from fusevlm.store.checkpoints import load_newest, remove_numbered, save_numbered

KIND, SCHEMA_VERSION = "fusevlm.adapter.Checkpoint", 1
CHECKPOINTS = "checkpoints"  # a folder of the adapter's
KEEP = 2


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
    waiting: list[Tensor] = []  # objectives still on the device
    marks = infer.landmark_latents(task.latents, [options.seed, 1])
    while not state.finished:
        found = objective.evaluate(state.step, state.values)
        waiting.append(found.objective)
        last = state.step >= objective.n_steps
        if state.step % objective.look_every == 0 or last:
            _note(task, options, state, waiting)
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
            _note(task, options, state, waiting)
            checkpoint(state)
    return state


def seconds_per_step(
    objective: Objective, options: Options, team: Team, *, n_steps: int, warm_up: int = 0
) -> float:
    """Measured on steps that are thrown away, from the start."""
    state = first_state(objective)
    begun = time.monotonic()
    for number in range(warm_up + n_steps):
        if number == warm_up:
            begun = time.monotonic()
        found = objective.evaluate(state.step, state.values)
        adam_step(state, found.gradient, options, objective, team)
        state.step += 1
        if number + 1 in (warm_up, warm_up + n_steps):
            float(found.objective)  # wait for the device
    return (time.monotonic() - begun) / n_steps


def price(pace: float, options: Options, n_steps: int, n_done: int = 0) -> str:
    """What training costs, in words, from the seconds a step takes."""
    left = pace * (n_steps - n_done)
    hours = f"{left / 3600:.3g} hours" if left >= 3600 else f"{left / 60:.3g} minutes"
    left_of = f"{n_steps - n_done:,} of {n_steps:,} steps" if n_done else f"{n_steps:,} steps"
    if options.objective == "collapsed":
        return f"collapsed bound: {pace:.3g} s a step, at most {left_of}: at most {hours}"
    return (
        f"the paper's objective: {pace:.3g} s a step, {left_of} in {options.epochs} epochs: "
        f"about {hours} (the collapsed bound, preset default, takes a few hundred full-batch steps)"
    )


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


def _note(task: Task, options: Options, state: State, waiting: list[Tensor]) -> None:
    """Objectives from the device into the history, each looked at."""
    found = torch.stack(waiting).tolist() if waiting else []
    waiting.clear()
    for value in found:
        _refuse_divergence(task, options, state, value)
        state.history["objective"].append(task.per_output(value))


def _refuse_divergence(task: Task, options: Options, state: State, objective: float) -> None:
    """Stop, and say so, at a NaN or a full-batch bound that fell below where it began."""
    history = state.history["objective"]
    now = task.per_output(objective)
    fell = options.objective == "collapsed" and history and now < history[0] - 0.05
    if not math.isfinite(objective) or fell:
        before = f" (it was {history[-1]:.4f} a step before)" if history else ""
        raise DivergedError(
            f"training diverged at step {len(history)}: the bound is {now:.4f} nat per output"
            f"{before}. Lower lr and latent_lr (now {options.lr:g} and {options.latent_lr:g})."
        )


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


@dataclass(frozen=True)
class Checkpoint:
    """A :class:`State` as arrays, with what it may be resumed for."""

    options: dict[str, Any]
    fingerprint: str
    n_pairs: int
    step: Annotated[int, Whole(0)]
    # values, first, second, best: by parameter name
    arrays: dict[str, dict[str, npt.NDArray[Any]]]
    held_latents: npt.NDArray[np.floating[Any]] | None
    best_held_out: float
    best_step: int
    stale: int
    seconds: float
    finished: str
    history: dict[str, list[float]]


_PLAIN = ("step", "best_held_out", "best_step", "stale", "seconds", "finished", "history")
_GROUPS = ("values", "first", "second", "best")
HISTORY = {"objective", "held_out_step", "held_out"}


def save_checkpoint(folder: Path, state: State, task: Task, options: Options, team: Team) -> None:
    """Write the whole state; every rank calls it, rank 0 writes."""

    def gathered(values: Values) -> dict[str, Any]:
        return {
            name: (team.gather(v, task.n_pairs) if name == LATENTS else v).cpu().numpy()
            for name, v in values.items()
        }

    groups = {name: getattr(state, name) for name in _GROUPS}
    arrays = {name: gathered(values) for name, values in groups.items() if values is not None}
    if team.rank != 0:
        return
    held = None if state.held_latents is None else state.held_latents.cpu().numpy()
    saved = Checkpoint(
        options=asdict(options),
        fingerprint=task.fingerprint,
        n_pairs=task.n_pairs,
        arrays=arrays,
        held_latents=held,
        **{name: getattr(state, name) for name in _PLAIN},
    )
    save_numbered(folder / CHECKPOINTS, state.step, KIND, SCHEMA_VERSION, saved, keep=KEEP)


def load_checkpoint(
    folder: Path, task: Task, options: Options, team: Team, like: Values, *, fresh: bool = False
) -> State | None:
    """The newest whole checkpoint of this very task, None if there is none; others are refused.

    ``like`` are the values that training begins with; ``fresh`` removes what is there.
    """
    home, device = folder / CHECKPOINTS, task.latents.device
    if fresh and team.rank == 0:
        remove_numbered(home)
    team.sum(torch.zeros(1))  # nobody looks before rank 0 has cleared
    found = load_newest(home, KIND, SCHEMA_VERSION, Checkpoint)
    if found is None:
        return None
    _refuse_other(found, home, task, options)

    def own(name: str, value: Any) -> Tensor:
        rows = value[team.rows(task.n_pairs)] if name == LATENTS and value.ndim else value
        made = torch.tensor(rows, device=device) if rows.dtype.kind == "f" else torch.zeros(0)
        # a single number was stored as a list of one
        return (
            made.reshape(()) if name in like and like[name].ndim == 0 == made.numel() - 1 else made
        )

    groups: dict[str, Any] = {
        group: {name: own(name, value) for name, value in values.items()}
        for group, values in found.arrays.items()
    }
    held = found.held_latents
    apart = next((len(rows) for rows in task.held_out.values()), 0)
    good = held is None or held.shape == (apart, like[LATENTS].shape[1])
    if not good or not _is_like(groups, like) or found.history.keys() != HISTORY:
        raise ArtefactError(f"{home} is damaged. Use another folder, or --fresh to start again.")
    return State(
        held_latents=None if held is None else torch.as_tensor(held, device=device),
        **groups,
        **{name: getattr(found, name) for name in _PLAIN},
    )


def _is_like(groups: Mapping[str, Values], like: Values) -> bool:
    """Whether stored values are such as training begins with: of the same names, shapes, types."""
    return {*_GROUPS[:3]} <= groups.keys() <= {*_GROUPS} and all(
        values.keys() == like.keys()
        and all((values[n].shape, values[n].dtype) == (v.shape, v.dtype) for n, v in like.items())
        for values in groups.values()
    )


def _refuse_other(found: Checkpoint, home: Path, task: Task, options: Options) -> None:
    wanted = asdict(options)
    changed = sorted(name for name in wanted if found.options.get(name) != wanted[name])
    if changed:
        was = ", ".join(f"{n}={found.options.get(n)!r} (now {wanted[n]!r})" for n in changed)
        raise ArtefactError(
            f"{home} was made with other options: {was}. Use the same options, another folder, or "
            f"--fresh to start again."
        )
    if found.fingerprint != task.fingerprint:
        raise ArtefactError(
            f"{home} was made from other embeddings. Use the same pairs, another folder, or "
            f"--fresh to start again."
        )
