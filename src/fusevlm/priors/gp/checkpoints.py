"""Checkpoints of a training run: numbered folders, the newest whole one wins.

Each is written under its own name before older ones are removed, so that a process killed at any
moment leaves at least one that is whole.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusevlm import store
from fusevlm.errors import ArtefactError
from fusevlm.priors.gp.options import Options
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.train import LATENTS, State, Task, Values

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
KIND, MANIFEST, FOLDER = "fusevlm.adapter.Checkpoint", "checkpoint.json", "checkpoints"
KEEP = 2

log = logging.getLogger("fusevlm.adapter")


@dataclass(frozen=True)
class Checkpoint:
    """A :class:`State` as arrays, with what it may be resumed for."""

    options: dict[str, Any]
    fingerprint: str
    n_pairs: int
    step: int
    arrays: dict[str, dict[str, Any]]  # values, first, second, best: by parameter name
    held_latents: Any
    best_held_out: float
    best_step: int
    stale: int
    seconds: float
    finished: str
    history: dict[str, list[float]]


def save_checkpoint(folder: Path, state: State, task: Task, options: Options, team: Team) -> None:
    """Write the whole state; every rank calls it, rank 0 writes."""
    groups = {"values": state.values, "first": state.first, "second": state.second}
    if state.best is not None:
        groups["best"] = state.best
    arrays = {name: _gathered(values, task, team) for name, values in groups.items()}
    if team.rank != 0:
        return
    saved = Checkpoint(
        asdict(options),
        task.fingerprint,
        task.n_pairs,
        state.step,
        arrays,
        None if state.held_latents is None else state.held_latents.cpu().numpy(),
        state.best_held_out,
        state.best_step,
        state.stale,
        state.seconds,
        state.finished,
        state.history,
    )
    home = folder / FOLDER
    store.save_object(home / f"{state.step:08d}", MANIFEST, KIND, SCHEMA_VERSION, saved)
    for old in _numbered(home)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)


def _gathered(values: Values, task: Task, team: Team) -> dict[str, Any]:
    return {
        name: (team.gather(v, task.n_pairs) if name == LATENTS else v).cpu().numpy()
        for name, v in values.items()
    }


def _numbered(home: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not home.is_dir():
        return []
    return sorted((p for p in home.iterdir() if p.name.isdigit()), reverse=True)


def load_checkpoint(
    folder: Path, task: Task, options: Options, team: Team, device: torch.device
) -> State | None:
    """The newest whole checkpoint of this very task, None if there is none; others are refused."""
    found: Checkpoint | None = None
    damage: ArtefactError | None = None
    for place in _numbered(folder / FOLDER):
        try:
            found = store.load_object(
                place, MANIFEST, KIND, SCHEMA_VERSION, {"Checkpoint": Checkpoint}, MIGRATIONS
            )
            break
        except ArtefactError as error:
            damage = damage or error
            log.warning("skipped a checkpoint: %s", error)
    if found is None:
        if damage is not None:
            raise damage
        return None
    _refuse_other(found, folder, task, options)
    groups = {group: _own(values, task, team, device) for group, values in found.arrays.items()}
    held = found.held_latents
    return State(
        found.step,
        groups["values"],
        groups["first"],
        groups["second"],
        None if held is None else torch.as_tensor(held, device=device),
        groups.get("best"),
        found.best_held_out,
        found.best_step,
        found.stale,
        found.seconds,
        found.finished,
        found.history,
    )


def _own(values: dict[str, Any], task: Task, team: Team, device: torch.device) -> Values:
    def tensor(name: str, value: Any) -> Tensor:
        rows = value[team.rows(task.n_pairs)] if name == LATENTS else value
        return torch.tensor(rows, device=device)

    return {name: tensor(name, value) for name, value in values.items()}


def _refuse_other(found: Checkpoint, folder: Path, task: Task, options: Options) -> None:
    wanted = asdict(options)
    changed = sorted(name for name in wanted if found.options.get(name) != wanted[name])
    if changed:
        was = ", ".join(f"{n}={found.options.get(n)!r} (now {wanted[n]!r})" for n in changed)
        raise ArtefactError(
            f"{folder / FOLDER} was made with other options: {was}. Use the same options, another "
            f"folder, or --fresh to start again."
        )
    if found.fingerprint != task.fingerprint:
        raise ArtefactError(
            f"{folder / FOLDER} was made from other embeddings. Use the same pairs, another "
            f"folder, or --fresh to start again."
        )


def remove_checkpoints(folder: Path) -> None:
    """Forget an earlier run."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
