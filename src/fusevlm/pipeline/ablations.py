"""FUSE with one choice changed: the paper's ablations and the sensitivities, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse import probability, thresholds
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.presets import Options
from fusevlm.fuse.tuning import fit_logistic_score, global_tuning
from fusevlm.maths.fusion import posterior
from fusevlm.types import Samples, Scores

GENERATIONS = (2, 5, 10, 20, 30, 40, 50)
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
COVERAGE = 0.8  # of the quantile rule


@dataclass(frozen=True, eq=False)
class Split:
    """Queries with the prior statistic and the labels."""

    samples: Sequence[Samples]
    s: FloatArray
    wrong: BoolArray

    def __post_init__(self) -> None:
        size = len(self.samples)
        object.__setattr__(self, "s", checks.vector(self.s, "s", length=size))
        object.__setattr__(self, "wrong", checks.labels(self.wrong, length=size))

    def first(self, n: int) -> Split:
        """The same queries with their first n sampled responses: subsamples are nested."""
        return Split([first_samples(q, n) for q in self.samples], self.s, self.wrong)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a row of the table is made of, for test queries."""

    u: FloatArray
    p_wrong: FloatArray
    theta: float  # answer iff u ≤ θ


@dataclass(frozen=True)
class Ablation:
    """One row: a preset, the options changed, which source counts, and how u is read off.

    ``equals`` names the row whose ranking this one must share by the formulas (or reverse: a fitted
    map may fall), ``reason`` says why.
    """

    name: str
    title: str
    preset: str = "paper"
    options: Mapping[str, Any] = field(default_factory=dict)
    uses: str = "both"  # or prior, evidence
    readout: str = "u"  # or mean, logistic, quantile, global
    equals: str = ""
    reason: str = ""


def _row(name: str, title: str, **facts: Any) -> Ablation:
    options = {k: facts.pop(k) for k in list(facts) if k not in Ablation.__dataclass_fields__}
    return Ablation(name, title, options=options, **facts)


MONOTONE = "a sigmoid of m_post where σ_post is one number: monotone, or reversed by the labels"
CONSTANT = "σ_post is one number at fixed n and d, so u* is m_post shifted"
PAPER = (
    _row("paper", "FUSE (paper)"),
    _row(
        "paper_logistic", "Logistic u*", readout="logistic", equals="paper",
        reason=MONOTONE,
    ),
    _row("paper_mean", "Mean-only u*", readout="mean", equals="paper", reason=CONSTANT),
    _row(
        "paper_quantile", "Quantile θ*", readout="quantile", equals="paper",
        reason="a threshold does not change the ranking",
    ),
    _row("paper_global", "Global Tuning", readout="global"),
    _row("paper_ols", "OLS Ṽ", noise="ols"),
    _row("paper_unweighted", "Unweighted", alpha=0.0),
    _row("paper_prior", "Prior-only", uses="prior"),
    _row("paper_evidence", "Evidence-only", uses="evidence"),
)  # fmt: skip
PRACTICAL = (
    _row("practical", "FUSE (practical)", preset="practical"),
    _row(
        "practical_logistic", "Logistic u*", preset="practical", readout="logistic",
        equals="practical", reason=MONOTONE,
    ),
    _row(
        "practical_mean", "Mean-only u*", preset="practical", readout="mean", equals="practical",
        reason=CONSTANT,
    ),
    _row(
        "practical_quantile", "Quantile θ*", preset="practical", readout="quantile",
        equals="practical", reason="a threshold does not change the ranking",
    ),
    _row("practical_unweighted", "Unweighted", preset="practical", alpha=0.0),
    _row("practical_independent", "Sources independent", preset="practical", sources="independent"),
    _row("practical_prior", "Prior-only", preset="practical", uses="prior"),
    _row("practical_evidence", "Evidence-only", preset="practical", uses="evidence"),
)  # fmt: skip
SENSITIVITY = (
    *(
        _row(f"{preset}_whitening_{kind}", f"Whitening {kind}", preset=preset, whitening=kind)
        for preset in ("paper", "practical")
        for kind in ("low_rank", "pca", "none")
    ),
    _row("paper_intercept_a0", "Intercept a0", intercept="a0"),
    _row(
        "paper_intercept_exact", "Intercept exact", intercept="exact", equals="paper_unweighted",
        reason="the exact intercept takes the weights out again",
    ),
    _row(
        "paper_intercept_fitted", "Intercept fitted", intercept="fitted",
        equals="paper_intercept_a0", reason="one offset for all queries shifts u",
    ),
    *(
        _row(f"paper_a0_noise_{kind}", f"Intercept a0, τ² {kind}", intercept="a0", noise=kind)
        for kind in ("jackknife", "split_half", "ols", "tempered")
    ),
    *(
        _row(f"{preset}_jitter_{jitter:g}", f"Jitter {jitter:g}", preset=preset, jitter=jitter)
        for preset in ("paper", "practical")
        for jitter in JITTERS
    ),
)  # fmt: skip
ABLATIONS: dict[str, Ablation] = {row.name: row for row in (*PAPER, *PRACTICAL, *SENSITIVITY)}


def first_samples(samples: Samples, n: int) -> Samples:
    """The first n sampled responses of a query, the judged answer unchanged."""
    if n > len(samples):
        raise InputError(f"{n} responses are wanted of a query that has {len(samples)}.")
    if n == len(samples):
        return samples

    def cut(value: Any) -> Any:
        return None if value is None else value[:n]

    return Samples(
        cut(samples.texts),
        cut(samples.token_logprobs),
        cut(samples.embeddings),
        samples.answer,
        samples.answer_logprobs,
        None if samples.gram is None else samples.gram[:n, :n],
        samples.gram_dim,
    )


def run_ablation(row: Ablation, fit: Split, test: Split, *, risk: float = 0.2) -> Outcome:
    """Fit on ``fit`` and score ``test``; θ is for ``risk``, chosen on the labels of ``fit``."""
    fuse = Fuse(row.preset, **_options(row, fit))
    s, new_s = (None, None) if row.uses == "evidence" else (fit.s, test.s)
    fuse.fit(fit.samples, s, fit.wrong)
    known, new = fuse.score(fit.samples, s), fuse.score(test.samples, new_s)
    if row.uses == "prior":
        return _prior_alone(fuse, fit, known, new, risk)
    return READOUTS[row.readout](fuse, fit, test, known, new, risk)


def _options(row: Ablation, fit: Split) -> dict[str, Any]:
    """The row's options; a reduced whitening keeps at most half of the features."""
    if row.options.get("whitening") not in ("low_rank", "pca"):
        return dict(row.options)
    d = fit.samples[0].embeddings.shape[1]
    return {**row.options, "rank": min(Options().rank, d // 2)}


def _as_decided(
    fuse: Fuse, fit: Split, test: Split, known: Scores, new: Scores, risk: float
) -> Outcome:
    theta = float(fuse.threshold(risk=risk).threshold)  # type: ignore[union-attr]
    return Outcome(new.u, fuse.predict_proba(new), theta)


def _quantile(
    fuse: Fuse, fit: Split, test: Split, known: Scores, new: Scores, risk: float
) -> Outcome:
    """The same scores; θ is the calibration quantile that answers ``COVERAGE`` of the queries."""
    theta = float(np.quantile(known.u, COVERAGE, method="inverted_cdf"))
    return Outcome(new.u, fuse.predict_proba(new), theta)


def _mean(fuse: Fuse, fit: Split, test: Split, known: Scores, new: Scores, risk: float) -> Outcome:
    return _mapped(known.m_post, new.m_post, fit.wrong, risk, probability.fit_min_max(known.m_post))


def _logistic(
    fuse: Fuse, fit: Split, test: Split, known: Scores, new: Scores, risk: float
) -> Outcome:
    map_ = fit_logistic_score(known.m_post, known.sigma_post, fit.wrong)
    return _mapped(
        map_(known.m_post, known.sigma_post), map_(new.m_post, new.sigma_post), fit.wrong, risk
    )


def _global(
    fuse: Fuse, fit: Split, test: Split, known: Scores, new: Scores, risk: float
) -> Outcome:
    scalar = fuse.model.scalar
    if scalar is None:
        raise InputError("global tuning is an ablation of the paper preset (scalar fusion).")
    tuned = global_tuning(
        scalar.prior, fit.s, known.evidence, known.intercept, known.slope, known.tau2, fit.wrong
    )

    def p(scores: Scores, s: FloatArray) -> FloatArray:
        m0 = tuned.prior.mean(s, len(s))
        noise = scores.tau2 * tuned.temperature
        fused = posterior(
            m0, tuned.prior.sigma0, scores.evidence, scores.intercept, scores.slope, noise
        )
        return tuned.predict_proba(fused.m)

    return _mapped(p(known, fit.s), p(new, test.s), fit.wrong, risk)


def _prior_alone(fuse: Fuse, fit: Split, known: Scores, new: Scores, risk: float) -> Outcome:
    """m0(s); its sign is what the fit made of it, with or without labels."""
    vector = fuse.model.vector
    if vector is not None:
        return Outcome(
            new.m0,
            vector.p_wrong(new.m0, new.sigma0),
            thresholds.empirical(known.m0, fit.wrong, risk=risk).threshold,
        )
    if float(np.ptp(known.m0)) == 0.0:
        return Outcome(new.m0, np.full(len(new), float(fit.wrong.mean())), -np.inf)
    return _mapped(known.m0, new.m0, fit.wrong, risk, probability.fit_min_max(known.m0))


def _mapped(
    known: FloatArray,
    new: FloatArray,
    wrong: BoolArray,
    risk: float,
    map_: Callable[[FloatArray], FloatArray] = lambda p: p,
) -> Outcome:
    return Outcome(new, map_(new), thresholds.empirical(known, wrong, risk=risk).threshold)


READOUTS: dict[str, Callable[[Fuse, Split, Split, Scores, Scores, float], Outcome]] = {
    "u": _as_decided,
    "quantile": _quantile,
    "mean": _mean,
    "logistic": _logistic,
    "global": _global,
}
