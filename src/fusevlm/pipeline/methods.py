"""The methods compared, in a run as in a bench: forms of FUSE, their ablations, and baselines.

A method is fitted on the calibration queries and applied to others. One discipline for all: what
has something to learn learns on one part of the calibration queries (tuning), thresholds come from
the rest, and their candidates from the tuning scores, so that the guarantee holds. The paper's
preset uses all queries for everything; its guaranteed threshold comes from a second fit that does
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import CalibrateConfig
from fusevlm.errors import InputError
from fusevlm.fuse import probability, thresholds
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.model import score_model
from fusevlm.fuse.presets import Options
from fusevlm.fuse.prior import Prior
from fusevlm.fuse.thresholds import Threshold
from fusevlm.fuse.tuning import GlobalTuning, LogisticScore, fit_logistic_score, global_tuning
from fusevlm.maths.fusion import posterior
from fusevlm.scores import SCORES
from fusevlm.types import Queries, Scores

GUARANTEED, EMPIRICAL = "guaranteed", "empirical"
SHOWN = ("m0", "evidence", "m_post", "sigma_post", "prior_weight")
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
COVERAGE = 0.8  # of the quantile rule
FUSE, ABLATIONS, SOURCES, SENSITIVITY, BASELINES = (
    "FUSE", "Ablations", "Sources", "Sensitivity", "Baselines",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A row of a comparison.

    preset, options  of the Fuse; no preset: a score column
    uses             both sources, or evidence alone (no prior statistic is given)
    readout          what is read off the fit: u, m0 (prior), mean, logistic, global, quantile
    equals, reason   the row whose ranking this one must share by the formulas (or reverse: a fitted
                     map may fall), and why
    """

    name: str
    title: str
    group: str
    preset: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    uses: str = "both"
    readout: str = "u"
    equals: str = ""
    reason: str = ""
    note: str = ""


MONOTONE = "a sigmoid of m_post where σ_post is one number: monotone, or reversed by the labels"
CONSTANT = "σ_post is one number at fixed n and d, so u* is m_post shifted"
NO_RANK = "a threshold does not change the ranking"


def _row(group: str, preset: str, name: str, title: str, **facts: Any) -> Method:
    options = {k: facts.pop(k) for k in list(facts) if k not in Method.__dataclass_fields__}
    title = title if group == FUSE else f"{title} ({preset})"
    return Method(name, title, group, preset, options, **facts)


def _readouts(preset: str) -> list[Method]:
    return [
        _row(ABLATIONS, preset, f"{preset}_logistic", "Logistic u*", readout="logistic",
             equals=preset, reason=MONOTONE),
        _row(ABLATIONS, preset, f"{preset}_mean", "Mean-only u*", readout="mean", equals=preset,
             reason=CONSTANT),
        _row(ABLATIONS, preset, f"{preset}_quantile", "Quantile θ*", readout="quantile",
             equals=preset, reason=NO_RANK),
    ]  # fmt: skip


def _sensitivity(preset: str) -> list[Method]:
    return [
        *(
            _row(SENSITIVITY, preset, f"{preset}_whitening_{kind}", f"Whitening {kind}",
                 whitening=kind)
            for kind in ("low_rank", "pca", "none")
        ),
        *(
            _row(SENSITIVITY, preset, f"{preset}_jitter_{jitter:g}", f"Jitter {jitter:g}",
                 jitter=jitter)
            for jitter in JITTERS
        ),
    ]  # fmt: skip


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _row(FUSE, "practical", "practical", "FUSE (practical)"),
        _row(FUSE, "paper", "paper", "FUSE (paper)"),
        _row(SOURCES, "practical", "evidence-only", "Evidence-only", uses="evidence"),
        _row(SOURCES, "practical", "prior-only", "Prior-only", readout="prior"),
        _row(SOURCES, "paper", "paper_evidence", "Evidence-only", uses="evidence"),
        _row(SOURCES, "paper", "paper_prior", "Prior-only", readout="prior"),
        *_readouts("paper"),
        _row(ABLATIONS, "paper", "paper_global", "Global Tuning", readout="global"),
        _row(ABLATIONS, "paper", "paper_ols", "OLS Ṽ", noise="ols"),
        _row(ABLATIONS, "paper", "paper_unweighted", "Unweighted", alpha=0.0),
        *_readouts("practical"),
        _row(ABLATIONS, "practical", "practical_unweighted", "Unweighted", alpha=0.0),
        _row(ABLATIONS, "practical", "practical_independent", "Sources independent",
             sources="independent"),
        *_sensitivity("paper"),
        *_sensitivity("practical"),
        _row(SENSITIVITY, "paper", "paper_intercept_a0", "Intercept a0", intercept="a0"),
        _row(SENSITIVITY, "paper", "paper_intercept_exact", "Intercept exact", intercept="exact",
             equals="paper_unweighted", reason="the exact intercept takes the weights out again"),
        _row(SENSITIVITY, "paper", "paper_intercept_fitted", "Intercept fitted",
             intercept="fitted", equals="paper_intercept_a0",
             reason="one offset for all queries shifts u"),
        *(
            _row(SENSITIVITY, "paper", f"paper_a0_noise_{kind}", f"Intercept a0, τ² {kind}",
                 intercept="a0", noise=kind)
            for kind in ("jackknife", "split_half", "ols", "tempered")
        ),
    )
}  # fmt: skip


def find_method(name: str) -> Method:
    """A row of FUSE, or a baseline, by name."""
    if name in METHODS:
        return METHODS[name]
    score = SCORES[checks.known(name, [*METHODS, *SCORES], "method")]
    return Method(name, score.title, BASELINES, note=score.note)


def check_methods(names: Iterable[str]) -> None:
    """Refuse a name that is neither a row of FUSE nor a baseline."""
    for name in names:
        find_method(name)


def needs_of_methods(names: Iterable[str]) -> set[str]:
    """What of the samples the methods read when fitted or applied: states, for forms of FUSE."""
    return {"embeddings"} if any(find_method(name).preset for name in names) else set()


@dataclass(frozen=True, eq=False)
class Applied:
    """What a method says of each query."""

    u: FloatArray
    p_wrong: FloatArray
    u_guaranteed: FloatArray  # what the guaranteed threshold is compared with
    shown: dict[str, FloatArray]  # more to show, such as m0 and evidence

    def answers(self, rule: str, theta: Threshold) -> BoolArray:
        """Which queries are answered under one of the method's thresholds."""
        return theta.answers(self.u_guaranteed if rule == GUARANTEED else self.u)


@dataclass(frozen=True, eq=False)
class Values:
    """Scores of calibration queries: those of the tuning part, and those thresholds come from."""

    tuning: FloatArray  # sorted
    held: FloatArray
    wrong: BoolArray  # of the held ones
    score_map: probability.ScoreMap | None  # u → P(wrong); None: u is a probability


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method after calibration.

    A score column has ``values``; a form of FUSE a ``fuse`` and, where that one reuses all queries
    for all, a second one ``apart`` for the guarantee; a readout of a form both ``fuse`` and
    ``values``, and its ``map`` where it has learnt one.
    """

    method: Method
    fuse: Fuse | None = None
    apart: Fuse | None = None
    values: Values | None = None
    map: LogisticScore | GlobalTuning | None = None

    def apply(self, queries: Queries) -> Applied:
        """u and P(wrong) of queries."""
        if self.fuse is None:
            assert self.values is not None
            return _mapped(queries.columns[self.method.name], self.values, {})
        given = _given(queries, self.method)
        scores = self.fuse.score(given)
        shown = {name: getattr(scores, name) for name in SHOWN}
        if self.values is not None:
            u = READOUTS[self.method.readout](self, scores, given)
            return _mapped(u, self.values, shown)
        apart = scores if self.apart is None else self.apart.score(given)
        return Applied(scores.u, self.fuse.predict_proba(scores), apart.u, shown)

    def thresholds(self, risk: float, delta: float) -> dict[str, Threshold]:
        """The threshold with the guarantee and the empirical one, as far as the method has them."""
        if self.values is not None:
            v = self.values
            if self.method.readout == "quantile":
                return {EMPIRICAL: thresholds.quantile(v.held, coverage=COVERAGE)}
            grid = thresholds.candidate_grid(v.tuning, len(v.held), risk, delta)
            found = {EMPIRICAL: thresholds.empirical(v.held, v.wrong, risk=risk)}
            if self.fuse is None or self.fuse.options.threshold_share > 0:
                found[GUARANTEED] = thresholds.learn_then_test(
                    v.held, v.wrong, risk=risk, delta=delta, grid=grid
                )
            return found
        assert self.fuse is not None
        found = {EMPIRICAL: self.fuse.threshold(risk=risk, delta=delta, rule="empirical")}
        guaranteed = self.fuse if self.apart is None else self.apart
        if guaranteed.options.threshold_share > 0:
            found[GUARANTEED] = guaranteed.threshold(risk=risk, delta=delta, rule="learn_then_test")
        return found

    def save(self, folder: Path) -> None:
        """Write the method to a folder."""
        saved = _Saved(self.method.name, self.values, self.map)
        store.save_object(folder / OWN, FILE, KIND, 1, saved)
        if self.fuse is not None:
            self.fuse.save(folder)
        if self.apart is not None:
            self.apart.save(folder / APART)


def _mapped(u: FloatArray, values: Values, shown: dict[str, FloatArray]) -> Applied:
    p = u if values.score_map is None else values.score_map(u)
    return Applied(u, np.clip(p, 0.0, 1.0), u, shown)


# the Fuse lies in the method's folder itself, where Fuse.load finds it
FILE, KIND, OWN, APART, FUSE_FILE = "method.json", "fusevlm.Method", "method", "apart", "fuse.json"


@dataclass(frozen=True)
class _Saved:
    name: str
    values: Values | None
    map: LogisticScore | GlobalTuning | None


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        _Saved, Values, LogisticScore, GlobalTuning, Prior, probability.Platt, probability.Isotonic,
    )
}  # fmt: skip


def load_method(folder: Path) -> Fitted:
    """What :meth:`Fitted.save` wrote."""
    saved: _Saved = store.load_object(folder / OWN, FILE, KIND, 1, _CLASSES, {})
    return Fitted(
        find_method(saved.name),
        Fuse.load(folder) if (folder / FUSE_FILE).is_file() else None,
        Fuse.load(folder / APART) if (folder / APART).is_dir() else None,
        saved.values,
        saved.map,
    )


def fit_method(name: str, queries: Queries, config: CalibrateConfig) -> Fitted:
    """Fit one method on calibration queries."""
    method = find_method(name)
    if queries.wrong is None:
        raise InputError("the calibration queries have no labels: give them references.")
    if not method.preset:
        column = queries.column(name, "calibrate.methods")
        return Fitted(method, values=_values(column, queries.wrong, config, config.probability))
    given = _given(queries, method)
    options = {**_ranked(method.options, given), "seed": config.seed}
    share = config.threshold_share
    fuse = Fuse(method.preset, **options)
    keeps_apart = fuse.options.threshold_share > 0
    if keeps_apart:
        fuse = Fuse(method.preset, **options, threshold_share=share)
    fuse.fit(given)
    if method.readout != "u":
        return _read_out(method, fuse, given, config)
    if keeps_apart or method.group not in (FUSE, SOURCES):
        return Fitted(method, fuse)
    return Fitted(method, fuse, Fuse(method.preset, **options, threshold_share=share).fit(given))


def _given(queries: Queries, method: Method) -> Queries:
    return replace(queries, prior={}) if method.uses == "evidence" else queries


def _ranked(options: Mapping[str, Any], queries: Queries) -> dict[str, Any]:
    """The row's options; a reduced whitening keeps at most half of the features."""
    if options.get("whitening") not in ("low_rank", "pca"):
        return dict(options)
    d = queries.samples[0].embeddings.shape[1]
    return {**options, "rank": min(Options().rank, d // 2)}


def _parts(size: int, config: CalibrateConfig) -> tuple[Any, Any]:
    """Rows to learn on and rows for thresholds: the split that Fuse makes with the same seed."""
    order = np.random.default_rng(config.seed).permutation(size)
    n_apart = round(config.threshold_share * size)
    return np.sort(order[n_apart:]), np.sort(order[:n_apart])


def _values(u: FloatArray, wrong: BoolArray, config: CalibrateConfig, kind: str) -> Values:
    """A column of calibration scores, divided; ``kind`` of map: platt, isotonic, or none."""
    tune, held = _parts(len(u), config)
    score_map = None
    if kind != "none":
        checks.both_classes(wrong[tune], "P(wrong)")
        fit = probability.fit_platt if kind == "platt" else probability.fit_isotonic
        score_map = fit(u[tune], wrong[tune])
    return Values(np.sort(u[tune]), u[held], wrong[held], score_map)


def _read_out(method: Method, fuse: Fuse, queries: Queries, config: CalibrateConfig) -> Fitted:
    """A readout of a fitted form: a column of its own, with what it learnt on the tuning part."""
    scores, wrong = score_model(fuse.model, queries, fuse.options, warn=False), queries.wrong
    tune, _ = _parts(len(queries), config)
    learn = LEARNERS.get(method.readout)
    map_ = None if learn is None else learn(fuse, scores, queries, tune)
    fitted = Fitted(method, fuse, map=map_)
    u = READOUTS[method.readout](fitted, scores, queries)
    kind = "none" if map_ is not None else config.probability
    return Fitted(method, fuse, values=_values(u, wrong, config, kind), map=map_)


def _learn_logistic(fuse: Fuse, scores: Scores, queries: Queries, tune: Any) -> LogisticScore:
    return fit_logistic_score(scores.m_post[tune], scores.sigma_post[tune], queries.wrong[tune])


def _learn_global(fuse: Fuse, scores: Scores, queries: Queries, tune: Any) -> GlobalTuning:
    scalar = fuse.model.scalar
    if scalar is None:
        raise InputError("global tuning is an ablation of the paper preset (scalar fusion).")
    return global_tuning(
        scalar.prior, queries.s[tune], scores.evidence[tune], scores.intercept[tune],
        scores.slope[tune], scores.tau2[tune], queries.wrong[tune],
    )  # fmt: skip


LEARNERS: dict[str, Callable[[Fuse, Scores, Queries, Any], LogisticScore | GlobalTuning]] = {
    "logistic": _learn_logistic,
    "global": _learn_global,
}


def _read_logistic(fitted: Fitted, scores: Scores, queries: Queries) -> FloatArray:
    assert isinstance(fitted.map, LogisticScore)
    return fitted.map(scores.m_post, scores.sigma_post)


def _read_global(fitted: Fitted, scores: Scores, queries: Queries) -> FloatArray:
    tuned = fitted.map
    assert isinstance(tuned, GlobalTuning)
    fused = posterior(
        tuned.prior.mean(queries.s, len(queries)), tuned.prior.sigma0, scores.evidence,
        scores.intercept, scores.slope, scores.tau2 * tuned.temperature,
    )  # fmt: skip
    return tuned.predict_proba(fused.m)


READOUTS: dict[str, Callable[[Fitted, Scores, Queries], FloatArray]] = {
    "prior": lambda fitted, scores, queries: scores.m0,
    "mean": lambda fitted, scores, queries: scores.m_post,
    "quantile": lambda fitted, scores, queries: scores.u,
    "logistic": _read_logistic,
    "global": _read_global,
}


def rows_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Rows of FUSE by name: ``ablations`` (all but the sensitivities), ``all``, or a list."""
    if isinstance(wanted, str):
        checks.choice(wanted, "bench.rows", ("ablations", "all"))
        left_out = {SENSITIVITY} if wanted == "ablations" else set()
        return tuple(n for n, method in METHODS.items() if method.group not in left_out)
    for name in wanted:
        checks.known(name, METHODS, "bench.rows:")
    return tuple(wanted)
