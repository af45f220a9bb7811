"""The two presets and every option they set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args

import numpy as np

from fusevlm import checks
from fusevlm.checks import FRACTION, SHARE, Number, OneOf, Whole
from fusevlm.errors import InputError
from fusevlm.maths.covariance import CountedIn


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen. Defaults are those of ``practical``."""

    # scalar: Ṽ alone (the paper); vector: named evidence
    fusion: Annotated[str, OneOf("scalar", "vector")] = "vector"
    # rows to unit norm before whitening, after it (then only their directions count), or not
    normalize: Annotated[str, OneOf("before", "after", "none")] = "before"
    # subtract the calibration mean, the query's own mean, or nothing
    center: Annotated[str, OneOf("global", "query", "none")] = "global"
    whitening: Annotated[str, OneOf("exact", "low_rank", "pca", "none")] = "exact"
    # of low_rank and pca
    rank: Annotated[int, Whole(1)] = 128
    shrinkage: Annotated[str | float, OneOf("ledoit_wolf", "oas", "none"), Number(0.0, 1.0)] = (
        "ledoit_wolf"
    )
    # what shrinkage counts as independent observations
    counted_in: Annotated[str, OneOf(*get_args(CountedIn))] = "queries"
    # relative to the mean diagonal, before the weights
    jitter: Annotated[float, SHARE] = 1e-8
    # p_i = exp(mean log p); sequence: exp(sum); logprob: mean log p
    confidence: Annotated[str, OneOf("token", "sequence", "logprob")] = "token"
    # tuned: by the AUROC of u* where there are labels, else as remainder; the others need none
    alpha: Annotated[str | float, OneOf("spread", "tuned", "remainder", "median"), Number()] = (
        "spread"
    )
    intercept: Annotated[str, OneOf("a0", "taylor", "exact", "fitted")] = "a0"
    # n > d: the d×d scatter, or refuse
    more_samples_than_features: Annotated[str, OneOf("d_scatter", "error")] = "d_scatter"
    # scalar fusion only
    noise: Annotated[str, OneOf("analytic", "jackknife", "split_half", "ols", "tempered")] = (
        "analytic"
    )
    # grid needs labels
    z: Annotated[str | float, OneOf("grid"), Number()] = 1.0
    # vector fusion: whether s may speak of the evidence beyond u
    sources: Annotated[str, OneOf("joint", "independent")] = "joint"
    # of the judged answer's surprisal: √ alone, or √ and log, weighed by the labels (vector fusion)
    shapes: Annotated[str, OneOf("sqrt", "both")] = "both"
    # vector fusion: learn from labels and inputs where the model goes wrong
    competence: bool = True
    # weight of s without labels (vector fusion)
    kappa: Annotated[float, Number()] = 0.3
    # share of wrong answers to assume without labels
    base_rate: Annotated[float | None, FRACTION] = None
    # auto: by the number of labels, beta or Platt; without any the model's own, or min–max
    probability: Annotated[str, OneOf("model", "auto", "min_max", "platt", "beta", "isotonic")] = (
        "auto"
    )
    rule: Annotated[
        str, OneOf("empirical", "learn_then_test", "clopper_pearson", "paper_bound")
    ] = "learn_then_test"
    # never answer where P(wrong) is above it
    cap: Annotated[float, Number(0.0, 1.0)] = 0.5
    # share of queries like the calibration's that may be called novel; 0: novelty is not judged
    novelty_level: Annotated[float, SHARE] = 0.01
    # of labelled queries kept apart for the threshold
    threshold_share: Annotated[float, SHARE] = 0.5
    seed: Annotated[int, Whole(0)] = 0

    def __post_init__(self) -> None:
        checks.options(self)
        if self.fusion == "scalar" and self.probability == "model":
            raise InputError(
                "probability='model' belongs to the vector fusion; for fusion='scalar' use "
                "'auto', 'min_max', 'platt' or 'isotonic'."
            )


PRESETS: dict[str, Options] = {
    "practical": Options(),
    "paper": Options(
        fusion="scalar",
        normalize="after",
        alpha="tuned",
        intercept="taylor",
        more_samples_than_features="error",
        z="grid",
        probability="auto",
        rule="empirical",
        cap=1.0,
        novelty_level=0.0,
        threshold_share=0.0,
    ),
}


def resolve(preset: str, given: dict[str, Any]) -> Options:
    """The preset with the given options on top; an unknown name is refused with the nearest."""
    checks.choice(preset, "preset", tuple(PRESETS))
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
    found: Options = checks.changed(PRESETS[preset], plain, "option")
    return found
