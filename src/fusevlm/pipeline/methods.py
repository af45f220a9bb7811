"""The methods compared, in a run as in a bench: forms of FUSE, their ablations, and baselines.

A method is fitted on the calibration queries and applied to others. One discipline for all: what
has something to learn learns on one part of the calibration queries (tuning), thresholds come from
the rest, and their candidates from the tuning scores, so that the guarantee holds. The paper's
preset uses all queries for everything; its guaranteed threshold comes from a second fit that does
not.

P(wrong) is that of a readout that is one (Logistic u*, Global
Tuning), of the stacked baselines' regression, or else the map that ``calibrate.probability`` names,
on the tuning scores. Beside it stand, for all methods alike, Platt's map and the paper's min–max of
the same scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import BoolArray, FloatArray, Shape
from fusevlm.errors import InputError
from fusevlm.fuse import probability, thresholds
from fusevlm.fuse.estimator import Fuse, divide
from fusevlm.fuse.model import score_model
from fusevlm.fuse.presets import PRESETS, Options, resolve
from fusevlm.fuse.prior import Prior
from fusevlm.fuse.results import ANSWERED, NOTHING_CERTIFIED, UNCERTAIN, Scores, decisions
from fusevlm.fuse.thresholds import Threshold
from fusevlm.fuse.tuning import GlobalTuning, LogisticScore, fit_logistic_score, global_tuning
from fusevlm.maths.fusion import posterior
from fusevlm.maths.logistic import RIDGES, Linear, choose_ridge, fit_linear, unit_folds
from fusevlm.scores import SCORES
from fusevlm.settings import CalibrateConfig, RowConfig
from fusevlm.types import Queries

GUARANTEED, EMPIRICAL = "guaranteed", "empirical"
SHOWN = (
    "m0", "sigma0", "evidence", "intercept", "slope", "tau2", "m_post", "sigma_post",
    "prior_weight", "novelty",
)  # fmt: skip
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
FUSE, ABLATIONS, SOURCES, READINGS, SENSITIVITY, BASELINES, OWN_ROWS = (
    "FUSE", "Ablations", "Sources", "Readings", "Sensitivity", "Baselines", "Own rows",
)  # fmt: skip
STACKED, STACK_FOLDS = "stacked", 5
ONE_FIT = (READINGS, SENSITIVITY)  # about rankings: no second fit for a guarantee
RANK_ONLY = ("quantile", "box")  # readouts whose threshold promises nothing


@dataclass(frozen=True)
class Method:
    """A row of a comparison.

    preset, options  of the Fuse; no preset: a score column, or all of them stacked
    uses             both sources, or evidence alone (no prior statistic is given)
    readout          what is read off the fit: u, m0 (prior), mean, logistic, global, quantile, box;
                     stacked: off a regression on all score columns
    layer            whose hidden states; empty: score.layer
    quantile         of that readout; 0: calibrate.quantile
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
    layer: str = ""
    quantile: float = 0.0
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
        Method(STACKED, "Stacked baselines", BASELINES, readout=STACKED,
               note="logistic regression on all baselines that are there, with FUSE's labels"),
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
        _row(READINGS, "paper", "paper_box", "Algorithm box", readout="box", equals="paper",
             reason=CONSTANT + "; z·σ² for z·σ, and m_post is compared with the θ* of u*"),
        _row(READINGS, "paper", "paper_remainder", "α without labels", alpha="remainder"),
        _row(READINGS, "paper", "paper_intercept_a0", "Intercept a0", intercept="a0"),
        _row(READINGS, "paper", "paper_logprob", "Log-probabilities for p", confidence="logprob"),
        _row(READINGS, "paper", "paper_normalized_first", "Unit norm, then whitening",
             normalize="before"),
        _row(READINGS, "paper", "paper_first", "The first reading", normalize="before",
             alpha="median", probability="min_max",
             note="unit norm first, α by UMPIRE's ratio of medians, P(wrong) by min–max"),
        *_readouts("practical"),
        _row(ABLATIONS, "practical", "practical_unweighted", "Unweighted", alpha=0.0),
        _row(ABLATIONS, "practical", "practical_independent", "Sources independent",
             sources="independent"),
        *_sensitivity("paper"),
        *_sensitivity("practical"),
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


def find_method(name: str, config: CalibrateConfig | None = None) -> Method:
    """A row of FUSE, a baseline, or a row of the config's own, by name."""
    own = {} if config is None else {row.name: row for row in config.own_rows()}
    if name in own:
        return own_method(own[name])
    if name in METHODS:
        return METHODS[name]
    score = SCORES[checks.known(name, [*METHODS, *SCORES, *own], "method")]
    return Method(name, score.title, BASELINES, note=score.note)


def own_method(row: RowConfig) -> Method:
    """The method that a row of a config describes; what FUSE does not know is refused."""
    if row.name in METHODS or row.name in SCORES:
        raise InputError(f"row {row.name!r} has the name of another method; choose one of its own.")
    try:
        checks.known(row.preset, PRESETS, "preset")
        options = resolve(row.preset, dict(row.options))
    except InputError as error:
        raise InputError(f"row {row.name!r}: {error}") from error
    if row.readout == "global" and options.fusion != "scalar":
        raise InputError(
            f"row {row.name!r}: readout = 'global' needs scalar fusion, as of 'paper'."
        )
    return Method(
        row.name, row.title or row.name, OWN_ROWS, row.preset, row.options, row.uses, row.readout,
        row.layer, row.quantile, note=_described(row),
    )  # fmt: skip


def _described(row: RowConfig) -> str:
    facts = {**row.options, "uses": row.uses, "readout": row.readout, "layer": row.layer}
    facts |= {"quantile": row.quantile}
    usual = {"uses": "both", "readout": "u", "layer": "", "quantile": 0.0}
    told = [f"{k} = {v}" for k, v in facts.items() if usual.get(k) != v]
    return f"{row.preset} with {', '.join(told) or 'nothing changed'}"


def group_of(name: str) -> str:
    """The group of a method, also of a row of some config's own."""
    if name in METHODS:
        return METHODS[name].group
    return BASELINES if name in SCORES else OWN_ROWS


def title_of(name: str) -> str:
    """What a method is called; a row of some config's own by its name."""
    return name if group_of(name) == OWN_ROWS else find_method(name).title


def check_methods(config: CalibrateConfig) -> None:
    """Refuse a name that is no method, and a row with a name, preset or option that cannot be."""
    for name in config.names():
        find_method(name, config)


def scores_of_methods(methods: Iterable[Method], columns: Sequence[str]) -> tuple[str, ...]:
    """The scores that the methods read; those stacked are the ones among ``columns``."""
    found: list[str] = []
    for method in methods:
        if method.readout == STACKED:
            found += columns
        elif not method.preset:
            found.append(method.name)
    return tuple(dict.fromkeys(found))


def needs_of_methods(methods: Iterable[Method]) -> set[str]:
    """What of the samples the methods read when fitted or applied: states, for forms of FUSE."""
    return {"embeddings"} if any(method.preset for method in methods) else set()


@dataclass(frozen=True, eq=False)
class Applied:
    """What a method says of each query."""

    u: FloatArray
    p_wrong: FloatArray
    p_platt: FloatArray | None  # None: all tuning answers were right, or all wrong
    p_min_max: FloatArray | None  # None: all tuning scores were one number
    guaranteed: Compared  # with the guaranteed threshold
    empirical: Compared  # with the empirical one: u, but m_post in the paper's algorithm box
    shown: dict[str, FloatArray]  # more to show, such as m0 and evidence

    def decide(self, rule: str, theta: Threshold) -> tuple[BoolArray, tuple[str, ...]]:
        """Which queries are answered under one of the method's thresholds, and why others not."""
        return (self.guaranteed if rule == GUARANTEED else self.empirical).decide(theta)


@dataclass(frozen=True, eq=False)
class Compared:
    """What a threshold is compared with; for a form of FUSE with all that its rule reads."""

    u: FloatArray
    scores: Scores | None = None
    p_wrong: FloatArray | None = None
    options: Options = field(default_factory=Options)

    def decide(self, theta: Threshold) -> tuple[BoolArray, tuple[str, ...]]:
        """Which queries are answered, and why others are not."""
        if self.scores is not None and self.p_wrong is not None:
            limits = theta.limits(None, len(self.u))
            found = decisions(self.scores, self.p_wrong, limits, theta, self.options)
            return found.answer, found.reason
        answer = theta.answers(self.u)
        reason = UNCERTAIN if theta.feasible else NOTHING_CERTIFIED
        return answer, tuple(ANSWERED if yes else reason for yes in answer)


@dataclass(frozen=True, eq=False)
class Scales:
    """The scores of the held queries as P(wrong), in the two ways that all methods share."""

    platt: probability.Platt | None = None  # None where all are right, or all wrong
    min_max: probability.MinMax | None = None  # None where all scores are one number


@dataclass(frozen=True, eq=False)
class Values:
    """Scores of calibration queries: those of the tuning part, and those thresholds come from."""

    tuning: Annotated[FloatArray, Shape("T")]  # sorted
    held: Annotated[FloatArray, Shape("H")]
    wrong: Annotated[BoolArray, Shape("H")]  # of the held ones
    apart: bool  # whether the held ones are no tuning queries
    score_map: probability.ScoreMap | None  # u → P(wrong); None: u is a probability
    coverage: float = 0.0  # of the quantile rule
    tuning_wrong: Annotated[BoolArray | None, Shape("T")] = None
    dependence: thresholds.Dependence | None = None  # of the held ones in one unit


@dataclass(frozen=True, eq=False)
class Stack:
    """P(wrong) from the score columns ``names`` by one logistic regression."""

    names: tuple[str, ...]
    model: Linear

    def __call__(self, queries: Queries) -> FloatArray:
        return self.model(_matrix(queries, self.names))


def stackable(queries: Queries) -> tuple[str, ...]:
    """The baselines that the queries have a column of: all from responses, none from the prior."""
    return tuple(name for name in SCORES if name in queries.columns)


def fit_stack(queries: Queries, seed: int) -> Stack:
    """Logistic regression on every baseline there is, its ridge by cross-validation over units."""
    names = stackable(queries)
    if not names:
        raise InputError("the queries have no baseline to stack: name some in score.baselines.")
    X, y = _matrix(queries, names), checks.both_classes(queries.wrong, "P(wrong)").astype(float)
    folds = unit_folds(queries.units or queries.ids, STACK_FOLDS, seed)
    ridge = choose_ridge(X, y, folds) if len(np.unique(folds)) > 1 else max(RIDGES)
    return Stack(names, fit_linear(X, y, ridge))


def _matrix(queries: Queries, names: Sequence[str]) -> FloatArray:
    return np.column_stack([queries.column(name, STACKED) for name in names]).astype(np.float64)


Learnt = LogisticScore | GlobalTuning | Stack


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method after calibration.

    A score column has ``values``; a form of FUSE a ``fuse``; a readout of a form both, and its
    ``map`` where it has learnt one, as the stacked baselines have. Where all queries were used for
    all, ``apart`` is the same method fitted again with some kept apart: the guarantee comes from
    there.
    """

    method: Method
    scales: Scales
    fuse: Fuse | None = None
    values: Values | None = None
    map: Learnt | None = None
    apart: Fitted | None = None

    def apply(self, queries: Queries) -> Applied:
        """u and P(wrong) of queries."""
        own, p, shown = self._scored(queries)
        apart = own if self.apart is None else self.apart._scored(queries)[0]
        maps = (self.scales.platt, self.scales.min_max)
        platt, min_max = (None if one is None else one(own.u) for one in maps)
        compared = Compared(shown["m_post"]) if self.method.readout == "box" else own
        return Applied(own.u, np.clip(p, 0.0, 1.0), platt, min_max, apart, compared, shown)

    def _scored(self, queries: Queries) -> tuple[Compared, FloatArray, dict[str, FloatArray]]:
        if self.fuse is None:
            assert self.values is not None
            stack, shown = self.map if isinstance(self.map, Stack) else None, {}
            u = queries.column(self.method.name, "a method") if stack is None else stack(queries)
        else:
            given = _given(queries, self.method)
            scores = self.fuse.score(given)
            shown = {name: getattr(scores, name) for name in SHOWN}
            if self.values is None:
                p = self.fuse.predict_proba(scores)
                return Compared(scores.u, scores, p, self.fuse.options), p, shown
            u = READOUTS[self.method.readout](self, scores, given)
        score_map = self.values.score_map
        return Compared(u), u if score_map is None else score_map(u), shown

    def thresholds(self, risk: float, delta: float) -> dict[str, Threshold]:
        """The threshold with the guarantee and the empirical one, as far as the method has them."""
        found = self._thresholds(risk, delta)
        if self.apart is not None:
            found |= {
                k: v for k, v in self.apart._thresholds(risk, delta).items() if k != EMPIRICAL
            }
        return found

    def _thresholds(self, risk: float, delta: float) -> dict[str, Threshold]:
        if self.values is not None:
            v = self.values
            if self.method.readout == "quantile":
                return {EMPIRICAL: thresholds.quantile(v.held, coverage=v.coverage)}
            found = {EMPIRICAL: thresholds.empirical(v.held, v.wrong, risk=risk)}
            if v.apart and self.method.readout != "box":
                grid = thresholds.candidate_grid(
                    v.tuning, len(v.held), risk, delta, wrong=v.tuning_wrong
                )
                found[GUARANTEED] = thresholds.learn_then_test(
                    v.held, v.wrong, risk=risk, delta=delta, grid=grid, dependence=v.dependence
                )
            return found
        assert self.fuse is not None
        found = {EMPIRICAL: self.fuse.threshold(risk=risk, delta=delta, rule="empirical")}
        if self.fuse.options.threshold_share > 0:
            found[GUARANTEED] = self.fuse.threshold(risk=risk, delta=delta, rule="learn_then_test")
        return found

    def save(self, folder: Path) -> None:
        """Write the method to a folder."""
        saved = _Saved(self.method, self.scales, self.values, self.map)
        store.save_object(folder / OWN, FILE, KIND, VERSION, saved)
        if self.fuse is not None:
            self.fuse.save(folder)
        if self.apart is not None:
            self.apart.save(folder / APART)


# the Fuse lies in the method's folder itself, where Fuse.load finds it
FILE, KIND, OWN, APART, FUSE_FILE = "method.json", "fusevlm.Method", "method", "apart", "fuse.json"
VERSION = 3


@dataclass(frozen=True)
class _Saved:
    method: Method
    scales: Scales
    values: Values | None
    map: Learnt | None


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        _Saved, Method, Scales, Values, LogisticScore, GlobalTuning, Stack, Linear, Prior,
        thresholds.Dependence,
        probability.Platt, probability.Beta, probability.Isotonic, probability.MinMax,
    )
}  # fmt: skip


def load_method(folder: Path) -> Fitted:
    """What :meth:`Fitted.save` wrote."""
    saved: _Saved = store.load_object(folder / OWN, FILE, KIND, VERSION, _CLASSES, {}, of=_Saved)
    return Fitted(
        saved.method,
        saved.scales,
        Fuse.load(folder) if (folder / FUSE_FILE).is_file() else None,
        saved.values,
        saved.map,
        load_method(folder / APART) if (folder / APART).is_dir() else None,
    )


def fit_method(name: str, queries: Queries, config: CalibrateConfig) -> Fitted:
    """Fit one method on calibration queries."""
    method = find_method(name, config)
    if queries.wrong is None:
        raise InputError("the calibration queries have no labels: give them references.")
    if not method.preset:
        parts = _parts(queries, config.threshold_share, config.seed)
        stack = None
        if method.readout == STACKED:
            stack = fit_stack(queries.take(parts[0]), config.seed)
        column = queries.column(name, "calibrate.methods") if stack is None else stack(queries)
        values = _values(column, queries, parts, config.probability, stack)
        return Fitted(method, _scales(column, queries.wrong, parts[1]), values=values, map=stack)
    given = _given(queries, method)
    first, *second = forms_of(method, config, _width(given))
    fitted = _fit_form(method, first.fit(given), given, config)
    for apart in second:
        fitted = replace(fitted, apart=_fit_form(method, apart.fit(given), given, config))
    return fitted


def forms_of(method: Method, config: CalibrateConfig, d: int | None) -> list[Fuse]:
    """The form of FUSE that a method fits; and, where it reuses all queries, one that does not.

    ``d`` are the features of hidden states; None where there are none.
    """
    options = {**_calibrated(method, config), **_ranked(method.options, d)}
    first = Fuse(method.preset, **options)
    if "threshold_share" in options or method.group in ONE_FIT or method.readout in RANK_ONLY:
        return [first]
    return [first, Fuse(method.preset, **options, threshold_share=config.threshold_share)]


def _width(queries: Queries) -> int | None:
    states = queries.samples[0].embeddings
    return None if states is None else int(states.shape[1])


def _calibrated(method: Method, config: CalibrateConfig) -> dict[str, Any]:
    """What [calibrate] says of a form of FUSE; the options of the row itself win over it.

    A preset that reuses all queries keeps doing so.
    """
    usual = resolve(method.preset, dict(method.options))
    found: dict[str, Any] = {"seed": config.seed}
    if usual.threshold_share > 0 and "threshold_share" not in method.options:
        found["threshold_share"] = config.threshold_share
    if usual.probability != "model" and "probability" not in method.options:
        found["probability"] = config.probability
    return found


def _fit_form(method: Method, fuse: Fuse, queries: Queries, config: CalibrateConfig) -> Fitted:
    """A fitted form of FUSE, read out as the method says."""
    parts = _parts(queries, fuse.options.threshold_share, fuse.options.seed)
    if method.readout == "u":
        held = queries.take(parts[1])
        u = score_model(fuse.model, held, fuse.options, warn=False).u
        return Fitted(method, _scales(u, held.wrong), fuse)
    scores = score_model(fuse.model, queries, fuse.options, warn=False)
    learn = LEARNERS.get(method.readout)
    map_ = None if learn is None else learn(fuse, scores, queries, parts[0])
    fitted = Fitted(method, Scales(), fuse, map=map_)
    u = READOUTS[method.readout](fitted, scores, queries)
    own = fuse.options.probability
    kind = config.probability if own == "model" else own  # which is not of this readout
    values = _values(u, queries, parts, kind, map_)
    values = replace(values, coverage=method.quantile or config.quantile)
    return replace(fitted, scales=_scales(u, queries.wrong, parts[1]), values=values)


def _given(queries: Queries, method: Method) -> Queries:
    """The queries as a method is given them: evidence alone, or for scalar fusion with s alone."""
    if resolve(method.preset, dict(method.options)).fusion == "scalar":
        prior = {"s": queries.s} if queries.prior else {}
        queries = replace(queries, prior=prior, inputs={}, evidence={}, views={})
    return replace(queries, prior={}, inputs={}, views={}) if method.uses == "evidence" else queries


def _ranked(options: Mapping[str, Any], d: int | None) -> dict[str, Any]:
    """The row's options; a reduced whitening keeps at most half of the features."""
    if options.get("whitening") not in ("low_rank", "pca") or d is None:
        return dict(options)  # without states the fit says what is missing
    return {**options, "rank": min(Options().rank, d // 2)}


Parts = tuple[Any, Any]  # rows to learn on and rows for thresholds; all and all at share 0


def _parts(queries: Queries, share: float, seed: int) -> Parts:
    """The division that Fuse makes with the same share and seed."""
    tune, held = divide(queries.units or queries.ids, share, seed)
    return tune, held if len(held) else tune


def _scales(u: FloatArray, wrong: BoolArray, held: Any = slice(None)) -> Scales:
    u, wrong = u[held], wrong[held]
    both = bool(wrong.any()) and not bool(wrong.all())
    varies = float(np.ptp(u)) > 0.0
    return Scales(
        probability.fit_platt(u, wrong) if both else None,
        probability.fit_min_max(u) if varies else None,
    )


def _values(
    u: FloatArray,
    queries: Queries,
    parts: Parts,
    kind: str,
    learnt: Learnt | None = None,
) -> Values:
    """A column of calibration scores, divided, with its map: of this ``kind``, or the learnt one's.

    What "Logistic u*" and the stacked baselines learnt is a probability already.
    """
    tune, held = parts
    wrong, units = queries.wrong, np.asarray(queries.units)
    checks.both_classes(wrong[tune], "P(wrong)")
    score_map: probability.ScoreMap | None = None
    if isinstance(learnt, GlobalTuning):
        score_map = learnt.link
    elif learnt is None:
        score_map = probability.fit_score_map(kind, u[held], wrong[held])
    order = np.argsort(u[tune], kind="stable")
    p = np.clip(u[tune] if score_map is None else score_map(u[tune]), 0.0, 1.0)
    shared = thresholds.shared_errors(wrong[tune] - p, units[tune])
    codes = np.unique(units[held], return_inverse=True)[1].astype(np.int64)
    return Values(
        u[tune][order], u[held], wrong[held], held is not tune, score_map,
        tuning_wrong=wrong[tune][order],
        dependence=thresholds.Dependence(codes, shared) if shared else None,
    )  # fmt: skip


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
    return fused.m


READOUTS: dict[str, Callable[[Fitted, Scores, Queries], FloatArray]] = {
    "prior": lambda fitted, scores, queries: scores.m0,
    "mean": lambda fitted, scores, queries: scores.m_post,
    "quantile": lambda fitted, scores, queries: scores.u,
    "logistic": _read_logistic,
    "global": _read_global,
    # the algorithm box, z·σ² in place of z·σ: u − m_post is z·σ
    "box": lambda fitted, scores, queries: (
        scores.m_post + (scores.u - scores.m_post) * scores.sigma_post
    ),
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
