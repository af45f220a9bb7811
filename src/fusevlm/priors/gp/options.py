"""The adapter's options and its two presets. No torch here: the command line reads this."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fusevlm import checks
from fusevlm.errors import InputError

OBJECTIVES = ("collapsed", "paper")
NORMS = ("unit", "normalize", "any")
PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class Options:
    """What is fitted and how; :data:`PRESETS` holds the two named settings.

    objective        collapsed: max Σ bound − ½‖X‖²; paper: min λ1·L_emb + λ2·L_KL, q(i_k) free
    n_latent         Q
    n_inducing       M, inducing points per modality
    ard              a lengthscale per latent dimension instead of one per modality
    fit_amplitude    learn the kernel's amplitude; otherwise it stays 1 (in standardised units)
    steps            collapsed: full-batch steps at most
    epochs           paper: passes over the pairs
    batch_size       paper: pairs in a step
    lr               learning rate of Adam (collapsed) or AdamW (paper)
    latent_lr        the same for the latents
    weight_decay     of AdamW
    lambda1, lambda2 of the paper's L_total; the collapsed objective has λ1 = 1, λ2 = 0
    held_out         share of pairs kept for early stopping (at most 500); 0 for none
    check_every      steps between looks at the held-out pairs
    patience         looks without a gain of ``min_gain`` nat per output before stopping
    norm             unit: refuse rows that are not of norm 1; normalize: divide; any: leave
    precision        of kernels and data; Choleskys and the bound are float64 always
    """

    objective: str = "collapsed"
    n_latent: int = 10
    n_inducing: int = 250
    ard: bool = False
    fit_amplitude: bool = True
    steps: int = 300
    epochs: int = 200
    batch_size: int = 128
    lr: float = 0.03
    latent_lr: float = 0.03
    weight_decay: float = 0.0
    lambda1: float = 1.0
    lambda2: float = 0.0
    held_out: float = 0.05
    check_every: int = 10
    patience: int = 3
    min_gain: float = 1e-4
    norm: str = "unit"
    precision: str = "float32"
    seed: int = 0


# λ1 and λ2 are GroVE's (the paper gives none), whose adapter FUSE uses.
PRESETS: dict[str, Options] = {
    "default": Options(),
    "paper": Options(
        objective="paper",
        fit_amplitude=False,
        lr=1e-6,
        latent_lr=1e-6,
        weight_decay=0.01,
        lambda1=0.01,
        lambda2=400.0,
        held_out=0.0,
    ),
}


def resolve(preset: str = "default", **changes: Any) -> Options:
    """A preset with named changes, validated."""
    checks.choice(preset, "preset", tuple(PRESETS))
    known = {f.name for f in fields(Options)}
    for name in changes:
        if name not in known:
            raise InputError(
                f"no adapter option is called {name!r}; expected one of {sorted(known)}."
            )
    options = replace(PRESETS[preset], **changes)
    checks.choice(options.objective, "objective", OBJECTIVES)
    checks.choice(options.norm, "norm", NORMS)
    checks.choice(options.precision, "precision", PRECISIONS)
    for name in ("n_latent", "n_inducing", "steps", "epochs", "batch_size", "check_every"):
        checks.count(getattr(options, name), name)
    checks.count(options.patience, "patience")
    checks.count(options.seed, "seed", least=0)
    checks.positive(options.lr, "lr")
    checks.positive(options.latent_lr, "latent_lr")
    if not 0.0 <= checks.scalar(options.held_out, "held_out") < 1.0:
        raise InputError(f"held_out is {options.held_out:g}; expected a share from 0 to below 1.")
    if options.objective == "collapsed" and (options.lambda1, options.lambda2) != (1.0, 0.0):
        raise InputError(
            "lambda1 and lambda2 belong to the paper's objective, in which q(i_k) is free: with "
            "λ2·L_KL the collapsed q is no longer the optimum. Use objective='paper'."
        )
    return options
