"""A seeded, checkpointed training loop: step t is a function of the state and t alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusevlm.errors import ArtefactError
from fusevlm.store.checkpoints import load_newest, save_numbered

KIND, SCHEMA_VERSION = "fusevlm.embedded.Checkpoint", 1
WARM_UP = 0.06  # share of the steps
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Checkpoint:
    """Weights and AdamW's moments by parameter name, after ``step`` steps of ``task``."""

    task: dict[str, Any]
    step: int
    losses: list[float]
    arrays: dict[str, dict[str, Any]]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then half a cosine to nothing."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def optimise(
    model: torch.nn.Module,
    loss_at: Callable[[int], Tensor],
    *,
    steps: int,
    lr: float,
    folder: Path,
    task: dict[str, Any],
    weight_decay: float = 0.05,
    slow: str = "",
    pace: float = 1.0,
    every: int = 100,
    show: Callable[..., None] = lambda done, steps, note: None,
) -> list[float]:
    """Minimise ``loss_at(step)`` by AdamW; the losses of all steps.

    Parameters whose name holds ``slow`` (if given) learn at ``pace`` times the learning rate.
    A checkpoint of the same ``task`` in ``folder`` is gone on with, one of another is refused.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(_groups(named, weight_decay, slow, pace), betas=(0.9, 0.98))
    task = {**task, "steps": steps, "lr": lr, "slow": slow, "pace": pace}
    losses = _resume(folder, task, named, optimiser)
    model.train()
    for step in range(len(losses), steps):
        for group in optimiser.param_groups:
            group["lr"] = group["pace"] * learning_rate(step, steps, lr)
        optimiser.zero_grad()
        loss = loss_at(step)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(list(named.values()), CLIP_NORM)
        optimiser.step()
        losses.append(float(loss.detach()))
        done = step + 1
        show(done, steps, note=f"loss {losses[-1]:.3f}")
        if done % every == 0 or done == steps:
            _save(folder, task, done, losses, named, optimiser)
    model.eval()
    return losses


def _groups(
    named: dict[str, torch.nn.Parameter], weight_decay: float, slow: str, pace: float
) -> list[dict[str, Any]]:
    """AdamW's groups: matrices decay and vectors do not, each at its pace."""
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, p in named.items():
        is_matrix, is_slow = p.ndim > 1, bool(slow) and slow in name
        group = groups.setdefault(
            (is_matrix, is_slow),
            {
                "params": [],
                "weight_decay": weight_decay if is_matrix else 0.0,
                "pace": pace if is_slow else 1.0,
            },
        )
        group["params"].append(p)
    return list(groups.values())


def _save(
    folder: Path,
    task: dict[str, Any],
    step: int,
    losses: list[float],
    named: dict[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
) -> None:
    groups: dict[str, dict[str, Any]] = {"weights": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for name, p in named.items():
        groups["weights"][name] = p.detach().numpy()
        state = optimiser.state.get(p, {})  # a parameter without gradient has none
        for key in ("exp_avg", "exp_avg_sq"):
            if key in state:
                groups[key][name] = state[key].numpy()
    saved = Checkpoint(task, step, losses, groups)
    save_numbered(folder, step, KIND, SCHEMA_VERSION, saved)


def _resume(
    folder: Path,
    task: dict[str, Any],
    named: dict[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
) -> list[float]:
    """Load the newest whole checkpoint into model and optimiser; the losses so far."""
    found = load_newest(folder, KIND, SCHEMA_VERSION, Checkpoint)
    if found is None:
        return []
    if found.task != task:
        raise ArtefactError(
            f"{folder} belongs to another run: {found.task}, now {task}. Use the same seed and "
            f"minutes, or another --out."
        )
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(_like(p, found.arrays["weights"][name]))
            if name in found.arrays["exp_avg"]:
                optimiser.state[p] = {
                    "step": torch.tensor(float(found.step)),
                    "exp_avg": _like(p, found.arrays["exp_avg"][name]),
                    "exp_avg_sq": _like(p, found.arrays["exp_avg_sq"][name]),
                }
    return list(found.losses)


def _like(p: Tensor, array: Any) -> Tensor:
    """A stored array in the parameter's shape: a single number is stored as an array of one."""
    return torch.tensor(array).reshape(p.shape)
