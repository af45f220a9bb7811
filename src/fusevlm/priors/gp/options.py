"""The adapter's options and its two presets. No torch here: the command line reads this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fusevlm import checks
from fusevlm.checks import POSITIVE, SHARE, Number, OneOf, Whole
from fusevlm.errors import InputError
from fusevlm.priors.interface import NORMS

MOST_HELD_OUT = 500


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
    precision        of kernels and data; Choleskys and the bound are float64 always. mixed:
                     float32, and bfloat16 (autocast) in the paper's one large product, with its S_k
    """

    objective: Annotated[str, OneOf("collapsed", "paper")] = "collapsed"
    n_latent: Annotated[int, Whole()] = 10
    n_inducing: Annotated[int, Whole()] = 250
    ard: bool = False
    fit_amplitude: bool = True
    steps: Annotated[int, Whole()] = 300
    epochs: Annotated[int, Whole()] = 200
    batch_size: Annotated[int, Whole()] = 128
    lr: Annotated[float, POSITIVE] = 0.03
    latent_lr: Annotated[float, POSITIVE] = 0.03
    weight_decay: Annotated[float, Number(0.0)] = 0.0
    lambda1: Annotated[float, Number(0.0)] = 1.0
    lambda2: Annotated[float, Number(0.0)] = 0.0
    held_out: Annotated[float, SHARE] = 0.05
    check_every: Annotated[int, Whole()] = 10
    patience: Annotated[int, Whole()] = 3
    min_gain: Annotated[float, Number(0.0)] = 1e-4
    norm: Annotated[str, OneOf(*NORMS)] = "unit"
    precision: Annotated[str, OneOf("float32", "float64", "mixed")] = "float32"
    seed: Annotated[int, Whole(0)] = 0


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
    options: Options = checks.changed(PRESETS[preset], changes, "option of the adapter")
    checks.options(options)
    if options.objective == "collapsed" and (options.lambda1, options.lambda2) != (1.0, 0.0):
        raise InputError(
            "lambda1 and lambda2 belong to the paper's objective, in which q(i_k) is free: with "
            "λ2·L_KL the collapsed q is no longer the optimum. Use objective='paper'."
        )
    if options.objective == "collapsed" and options.precision == "mixed":
        raise InputError("precision='mixed' belongs to the paper's objective; use 'float32'.")
    if options.objective == "paper" and options.lambda1 == options.lambda2 == 0.0:
        raise InputError("lambda1 and lambda2 are both 0: nothing would be minimised.")
    return options


def n_held_out(n_pairs: int, options: Options) -> int:
    """How many of so many pairs are kept for early stopping."""
    return min(MOST_HELD_OUT, round(options.held_out * n_pairs))


def refuse_few(n_pairs: int, options: Options) -> None:
    """Pairs that cannot carry the inducing points or the latent dimensions are refused."""
    n_held = n_held_out(n_pairs, options)
    n_train = n_pairs - n_held
    if n_train < options.n_inducing:
        raise InputError(
            f"{n_train} training pairs ({n_held} more held out) are fewer than "
            f"{options.n_inducing} inducing points. Add pairs, or lower their number "
            f"(adapter.inducing; --inducing, n_inducing)."
        )
    if n_train <= options.n_latent:
        raise InputError(
            f"{n_train} training pairs cannot start {options.n_latent} latent dimensions. "
            f"Add pairs, or lower their number (adapter.latent; --latent, n_latent)."
        )
