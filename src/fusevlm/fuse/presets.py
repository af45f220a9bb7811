"""The two presets and every option they set."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from fusevlm import checks
from fusevlm.errors import InputError
from fusevlm.maths.covariance import CountedIn

CHOICES: dict[str, tuple[str, ...]] = {
    "fusion": ("scalar", "vector"),
    "sources": ("joint", "independent"),
    "center": ("global", "query", "none"),
    "whitening": ("exact", "low_rank", "pca", "none"),
    "counted_in": get_args(CountedIn),
    "confidence": ("token", "sequence", "logprob"),
    "intercept": ("a0", "taylor", "exact", "fitted"),
    "noise": ("analytic", "jackknife", "split_half", "ols", "tempered"),
    "more_samples_than_features": ("d_scatter", "error"),
    "probability": ("model", "min_max", "platt", "isotonic"),
    "rule": ("empirical", "learn_then_test", "clopper_pearson", "paper_bound"),
}
NUMBER_OR_WORD: dict[str, tuple[str, ...]] = {
    "alpha": ("median", "spread", "grid"),
    "shrinkage": ("ledoit_wolf", "oas", "none"),
    "z": ("grid",),
}


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen. Defaults are those of ``practical``."""

    fusion: str = "vector"  # scalar: Ṽ alone (the paper); vector: named evidence
    normalize: bool = True  # unit-norm rows first
    center: str = "global"  # subtract the calibration mean, the query's own mean, or nothing
    whitening: str = "exact"
    rank: int = 128  # of low_rank and pca
    shrinkage: str | float = "ledoit_wolf"  # or oas, none, or a number in [0, 1]
    counted_in: str = "queries"  # what shrinkage counts as independent observations
    jitter: float = 1e-8  # relative to the mean diagonal, before the weights
    confidence: str = "token"  # p_i = exp(mean log p); sequence: exp(sum); logprob: mean log p
    alpha: str | float = "spread"  # or median, grid (labels), or a number
    intercept: str = "a0"
    more_samples_than_features: str = "d_scatter"  # n > d: the d×d scatter, or refuse
    noise: str = "analytic"  # scalar fusion only
    z: str | float = 2.0  # or grid (labels)
    sources: str = "joint"  # vector fusion: whether s may speak of the evidence beyond u
    kappa: float = 0.3  # weight of s without labels (vector fusion)
    base_rate: float | None = None  # share of wrong answers to assume without labels
    probability: str = "model"
    rule: str = "learn_then_test"
    threshold_share: float = 0.5  # of labelled queries kept apart for the threshold
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            checks.choice(getattr(self, name), name, allowed)
        if self.fusion == "scalar" and self.probability == "model":
            raise InputError(
                "probability='model' belongs to the vector fusion; for fusion='scalar' use "
                "'min_max', 'platt' or 'isotonic'."
            )
        for name, words in NUMBER_OR_WORD.items():
            value = getattr(self, name)
            if isinstance(value, str):
                checks.choice(value, name, words)
            else:
                checks.scalar(value, name)
        if not 0.0 <= self.threshold_share < 1.0:
            raise InputError(
                f"threshold_share is {self.threshold_share:g}; expected from 0 to below 1."
            )


PRESETS: dict[str, Options] = {
    "practical": Options(),
    "paper": Options(
        fusion="scalar",
        alpha="median",
        intercept="taylor",
        more_samples_than_features="error",
        z="grid",
        probability="min_max",
        rule="empirical",
        threshold_share=0.0,
    ),
}


def resolve(preset: str, given: dict[str, Any]) -> Options:
    """The preset with the given options on top; an unknown name is refused with a suggestion."""
    checks.choice(preset, "preset", tuple(PRESETS))
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"unknown option {name!r}.{hint} Options are: {', '.join(known)}.")
    return replace(PRESETS[preset], **given)
