"""FUSE as two pure functions: calibration queries → model, model and queries → scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Annotated, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray, Shape
from fusevlm.errors import ArtefactError, InputError, library_quiet
from fusevlm.fuse import competence, probability
from fusevlm.fuse.competence import Projection
from fusevlm.fuse.evidence import (
    BALANCES,
    TEXT_EVIDENCE,
    EvidenceTable,
    Responses,
    balanced_alpha,
    bounded_alpha,
    evidence_table,
    fit_whitener,
    log_surprisal,
    need_weights,
    surprisal,
    weighed_if_possible,
    whiten,
)
from fusevlm.fuse.explain import (
    INPUT,
    PICTURE,
    QUESTION,
    SAMPLES,
    References,
    references_of,
    sides,
    sources,
)
from fusevlm.fuse.novelty import Novelty, fit_novelty, strangest
from fusevlm.fuse.presets import Options
from fusevlm.fuse.prior import Statistics, fit_statistics
from fusevlm.fuse.recalibration import Tilt
from fusevlm.fuse.results import Scores
from fusevlm.fuse.scalar import ScalarModel, fit_scalar
from fusevlm.fuse.thresholds import shared_errors
from fusevlm.fuse.tuning import choose_alpha
from fusevlm.fuse.vector import MIN_PER_CLASS, VectorModel, fit_vector
from fusevlm.maths import fusion
from fusevlm.maths.whitening import Whitener
from fusevlm.types import Queries

logger = logging.getLogger(__name__)

LEAST_PRIOR_WEIGHT = 0.01
WATCHED = 4  # components of each kind of input, in which drift is looked for
OWN_NAMES = ("surprisal", "log_surprisal", "logdet", *TEXT_EVIDENCE, "s", competence.NAME)
Parts = Mapping[str, FloatArray]  # evidence by name
Likelihood = ScalarModel | VectorModel


@dataclass(frozen=True)
class Model:
    """What a fit leaves behind: plain data."""

    whitener: Whitener | None  # None without embeddings
    alpha: float
    scalar: ScalarModel | None
    vector: VectorModel | None
    score_map: probability.ScoreMap | None
    asked: tuple[str, ...]  # evidence by name, also what was asked too rarely to be weighed
    u: Annotated[FloatArray, Shape("N")]  # calibration scores, sorted
    statistics: Statistics
    input_widths: Mapping[str, int]
    labelled: bool  # whether the fit saw labels
    n_calibration: int
    # hashes of the queries
    seen: Annotated[IntArray, Shape("M")] = field(default_factory=lambda: np.zeros(0, np.int64))
    competence: competence.Competence | None = None  # None: no inputs, or silent
    # sorted calibration scores and whether wrong; or no labels
    tuned: Annotated[FloatArray | None, Shape("N", "2")] = None
    novelty: Novelty | None = None  # what queries like the calibration's look like
    usual_variance: float = 0.0  # mean of the competence's variance on calibration queries
    components: Mapping[str, Projection] = field(default_factory=dict)  # of inputs
    tilt: Tilt | None = None  # of P(wrong), by labels of newer data
    references: References | None = None  # what sources add to the calibration queries' posterior
    shared_errors: float = 0.0  # correlation of errors in one unit, beyond what scores explain

    @property
    def uses_s(self) -> bool:
        """Whether there were prior statistics in the fit."""
        return bool(self.statistics.names)

    @property
    def likelihood(self) -> Likelihood:
        found = self.scalar or self.vector
        assert found is not None
        return found

    @property
    def evidence(self) -> tuple[str, ...]:
        """Names of the evidence that counts."""
        return ("logdet",) if self.vector is None else self.vector.names

    def digest(self, options: Options) -> str:
        """A short name of the fit: of its options and calibration scores."""
        chosen = json.dumps(asdict(options), sort_keys=True).encode()
        return blake2b(chosen + self.u.tobytes(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Known:
    """What is known of queries before any answer: all that the prior rests on."""

    s: FloatArray | None  # the one number of the scalar fusion
    prior: Parts  # the statistics of the vector fusion, competence among them
    variance: FloatArray | None  # of the competence, above its usual one
    competence: Parts = field(default_factory=dict)  # what each kind of input adds to it

    @property
    def empty(self) -> bool:
        return not self.prior and self.s is None


def check_model(model: Model, options: Options) -> None:
    """Refuse a stored model whose parts do not go together."""
    own, known = model.vector, set(model.statistics.names)
    widths = dict(model.input_widths)
    learnt = {} if model.competence is None else dict(model.competence.projections)
    good = (model.scalar is None) != (own is None) and (own is None) == (options.fusion == "scalar")
    good = good and (model.scalar is None or None not in (model.whitener, model.score_map))
    if own is not None:
        names = (*own.prior_names, *own.names)
        good = good and len(own.mean) == len(names) == len(set(names)) > 0
        good = good and set(own.names) <= set(model.asked) and bool(np.all(own.sd > 0.0))
        priors = known | ({competence.NAME} if learnt else set())
        good = good and set(own.prior_names) <= priors
        good = good and ("logdet" not in own.names or model.whitener is not None)
    if model.competence is not None:
        total = sum(one.axes.shape[1] for one in learnt.values())
        good = good and len(model.competence.weights) == total
    for name, one in (*learnt.items(), *model.components.items()):
        good = good and widths.get(name) == len(one.mean)
    if model.novelty is not None:
        good = good and model.novelty.whole
    if not good:
        raise ArtefactError("the parts of this fit do not go together.")


def fit_model(queries: Queries, options: Options) -> Model:
    """Fit every constant of FUSE on calibration queries, without labels as far as possible."""
    return fit_scored(queries, options)[0]


def fit_scored(queries: Queries, options: Options) -> tuple[Model, Scores]:
    """The fit, and the scores of the calibration queries themselves: competence out of fold."""
    _check_names(queries.evidence, options)
    statistics, widths = fit_statistics(queries.prior), _widths(queries)
    wrong = queries.wrong
    learnt = _fit_competence(queries, options)
    known = Known(statistics.reduce(queries.prior), queries.prior, None)
    if learnt is not None:
        unusual = learnt.variance - learnt.variance.mean()
        known = replace(
            known, prior={**known.prior, competence.NAME: learnt.mean}, variance=unusual
        )
    if known.empty:
        logger.warning("no prior statistic s: the scores rest on the evidence only.")
    whitener, alpha, table = None, 0.0, None
    if queries.has("embeddings"):
        options = weighed_if_possible(queries, options)
        whitener = fit_whitener(queries.samples, options)
        responses = whiten(queries.samples, whitener, options, weighted=need_weights(options))
        alpha = _choose_alpha(responses, queries, known, options)
        table = evidence_table(responses, alpha, options)
    parts = _parts(queries, table, options)
    _tell_of_missing(parts, queries, options)
    _check_texts(parts)
    _tell_of_sampled_answers(queries)
    unasked = [name for name, values in parts.items() if _rarely_asked(name, values, wrong)]
    parts = {name: values for name, values in parts.items() if name not in unasked}
    found = _fit_likelihood(parts, table, known, wrong, options)
    model = Model(
        whitener,
        alpha,
        found if isinstance(found, ScalarModel) else None,
        found if isinstance(found, VectorModel) else None,
        None,
        (*parts, *unasked),
        np.zeros(0),
        statistics,
        widths,
        labelled=wrong is not None,
        n_calibration=len(queries),
        seen=hashes(queries),
        competence=None if learnt is None else learnt.model,
        novelty=_fit_novelty(queries, options),
        usual_variance=0.0 if learnt is None else float(learnt.variance.mean()),
        components={k: competence.fit_projection(v, WATCHED) for k, v in queries.inputs.items()},
    )
    scores = _scores(model, queries, known, table, options)
    _warn_of_one_source(scores, known, options)
    own = options.fusion == "vector"
    score_map = probability.fit_score_map(options.probability, scores.u, wrong, own=own)
    model = replace(
        model,
        u=np.sort(scores.u),
        score_map=score_map,
        tuned=_tuned(scores.u, wrong),
        references=references_of(scores.sources, wrong),
    )
    if wrong is None:
        return model, scores
    shared = shared_errors(wrong - p_wrong(model, scores), queries.units or ())
    return replace(model, shared_errors=shared), scores


def _fit_competence(queries: Queries, options: Options) -> competence.Fitted | None:
    """The competence prior of labelled queries with inputs, where it is wanted and helps."""
    if options.fusion == "scalar" or not options.competence or not queries.inputs:
        return None
    if queries.wrong is None:
        return None
    found = competence.fit_competence(queries.inputs, queries.wrong, queries.units or ())
    if found is None:
        logger.info("the competence prior is silent: too few labels, or the inputs say too little.")
    return found


def _fit_novelty(queries: Queries, options: Options) -> Novelty | None:
    """References of the calibration queries' views; None where none is wanted or known."""
    views = _views(queries)
    if options.novelty_level == 0.0 or not views:
        return None
    found = fit_novelty(views, queries.units or (), options.novelty_level)
    if found.why:
        logger.warning("%s", found.why)
    return found


def _views(queries: Queries) -> Mapping[str, Any]:
    """What novelty is judged by: the views, or without them the inputs, or the statistics."""
    if queries.views or queries.inputs:
        return queries.views or queries.inputs
    return {"prior": np.column_stack(list(queries.prior.values()))} if queries.prior else {}


def _tuned(u: FloatArray, wrong: BoolArray | None) -> FloatArray | None:
    order = np.argsort(u, kind="stable")
    return None if wrong is None else np.column_stack([u[order], wrong[order].astype(np.float64)])


def score_model(model: Model, queries: Queries, options: Options, *, warn: bool = True) -> Scores:
    """Scores of new queries under a fitted model; warns of an inert prior."""
    known = _matching(model, queries)
    table = None
    if model.whitener is not None and "logdet" in model.evidence:
        kept = all(said.grams for said in queries.samples)
        if not kept and not queries.has("gram") and not queries.has("embeddings"):
            raise InputError("the fit used embeddings; these samples have neither them nor Grams.")
        responses = whiten(queries.samples, model.whitener, options, weighted=model.alpha != 0.0)
        table = evidence_table(responses, model.alpha, options, warn=warn)
    scores = replace(_scores(model, queries, known, table, options), fit=model.digest(options))
    if warn:
        _warn_of_one_source(scores, known, options)
    return scores


def p_wrong(model: Model, scores: Scores) -> FloatArray:
    """P(wrong) of scored queries."""
    if model.score_map is not None:
        found = model.score_map(scores.u)
    else:
        assert model.vector is not None  # the scalar fusion always has a map
        found = model.vector.p_wrong(scores.m_post, scores.sigma_post)
    return found if model.tilt is None else model.tilt(found)


def hashes(queries: Queries) -> IntArray:
    """Fingerprints of the queries that have one."""
    found = (one.fingerprint for one in queries.samples)
    return np.array([value for value in found if value is not None], dtype=np.int64)


def _check_names(evidence: Parts, options: Options) -> None:
    taken = sorted(set(OWN_NAMES) & set(evidence))
    if taken:
        raise InputError(f"extra holds {taken[0]!r}, which is a name of fusevlm's own. Rename it.")
    if evidence and options.fusion == "scalar":
        raise InputError(
            f"extra holds {next(iter(evidence))!r}, but the scalar fusion (the paper's) has one "
            f"piece of evidence, the log-det. Use preset='practical', or leave extra out."
        )


def _widths(queries: Queries) -> dict[str, int]:
    """Features of each kind of input embedding, which must be finite."""
    found = {k: checks.matrix(rows, f"inputs[{k!r}]") for k, rows in queries.inputs.items()}
    return {name: rows.shape[1] for name, rows in found.items()}


def _matching(model: Model, queries: Queries) -> Known:
    """What the prior rests on, of queries with the fit's statistics and inputs, or an error."""
    if not queries.prior and model.uses_s:
        logger.warning("no prior statistic s: these scores rest on the evidence only.")
    elif queries.prior and not model.uses_s:
        raise InputError(
            "s was given, but the fit had none: the prior was never calibrated. Fit with s, or "
            "score with s=None."
        )
    elif queries.prior:
        checks.same_names(queries.prior, model.statistics.names, "s")
    known = [name for name in model.asked if name not in OWN_NAMES]
    for name in queries.evidence:
        if name not in known:
            raise InputError(
                f"extra holds {name!r}, which the fit did not have.{checks.hint(name, known)}"
            )
    widths = _widths(queries)
    if widths:
        checks.same_names(widths, model.input_widths, "inputs")
    for name, width in widths.items():
        if width != model.input_widths[name]:
            raise InputError(
                f"inputs[{name!r}] has {width} features; the fit had {model.input_widths[name]}. "
                f"Use the encoder of the calibration queries."
            )
    s, prior = model.statistics.reduce(queries.prior), queries.prior
    if model.competence is None:
        return Known(s, prior, None)
    if not widths:
        logger.warning("no inputs: these scores go without the competence prior.")
        return Known(s, prior, None)
    mean, variance = model.competence.predict(queries.inputs)
    parts = model.competence.parts(queries.inputs)
    return Known(s, {**prior, competence.NAME: mean}, variance - model.usual_variance, parts)


def _parts(
    queries: Queries,
    table: EvidenceTable | None,
    options: Options,
    asked: Sequence[str] = (),
) -> dict[str, FloatArray]:
    """All evidence there is, by name, strongest first: surprisal, logdet, then the caller's.

    Where there is none, or the fit ``asked`` for it, that of the texts.
    """
    if options.fusion == "scalar":
        if table is None:
            raise InputError("the scalar fusion needs embeddings; pass them to Samples.")
        return {"logdet": table.u_hat}
    parts: dict[str, FloatArray] = {}
    if queries.has("answer_logprobs"):
        parts["surprisal"] = np.array([surprisal(q) for q in queries.samples])
        if options.shapes == "both":
            parts["log_surprisal"] = np.array([log_surprisal(q) for q in queries.samples])
    if table is not None:
        parts["logdet"] = table.u_hat
    parts |= queries.evidence
    for name, of_texts in TEXT_EVIDENCE.items() if queries.has("texts") else ():
        if name in asked or parts.keys() <= TEXT_EVIDENCE.keys():
            parts[name] = np.array([of_texts(q) for q in queries.samples])
    return parts


def _rarely_asked(name: str, values: FloatArray, wrong: BoolArray | None) -> bool:
    """Whether evidence with gaps is known of too few calibration queries to be weighed."""
    known = ~np.isnan(values)
    if known.all():
        return False
    few = int(known.sum()) < MIN_PER_CLASS
    if wrong is not None:
        few = min(int(wrong[known].sum()), int((~wrong[known]).sum())) < MIN_PER_CLASS
    if few:
        logger.warning(
            "%r was asked of %d of %d calibration queries, too few to weigh it (%d right and %d "
            "wrong are needed): going without.",
            name,
            int(known.sum()),
            len(known),
            MIN_PER_CLASS,
            MIN_PER_CLASS,
        )
    return few


def _tell_of_missing(parts: Parts, queries: Queries, options: Options) -> None:
    sampled = (("logdet", "embeddings"),) if queries.has("texts") else ()
    for name, source in (("surprisal", "answer_logprobs"), *sampled):
        if options.fusion == "vector" and name not in parts:
            logger.warning("no %s: going without the evidence %r.", source, name)


def _check_texts(parts: Parts) -> None:
    """Where texts are all there is: say so, and what would be better; refuse them if all alike."""
    if not TEXT_EVIDENCE.keys() <= parts.keys():
        return
    better = (
        "token_logprobs, embeddings, or for long answers meanings by a sentence encoder: "
        "extra={'semantic_entropy': fusevlm.semantic_entropy(samples, meanings='sentences')}"
    )
    if all(float(np.ptp(parts[name])) == 0.0 for name in TEXT_EVIDENCE):
        raise InputError(
            f"these samples carry no evidence: string by string, the texts of every query agree "
            f"equally often. Pass {better}."
        )
    logger.warning(
        "texts are all there is: the evidence is how often they agree, string by string (%s). "
        "Better are %s.",
        ", ".join(TEXT_EVIDENCE),
        better,
    )


def _tell_of_sampled_answers(queries: Queries) -> None:
    count = sum(q.answer_is_sample for q in queries.samples)
    if count:
        logger.warning(
            "%d of %d queries have no answer of their own: judged is the likeliest sample of the "
            "most frequent meaning (Samples.answer); labels must be of that one.",
            count,
            len(queries),
        )


def _fit_likelihood(
    parts: Parts,
    table: EvidenceTable | None,
    known: Known,
    wrong: BoolArray | None,
    options: Options,
) -> Likelihood:
    if options.fusion == "scalar":
        assert table is not None  # _parts refuses
        return fit_scalar(
            table.V,
            table.intercept,
            table.slope,
            table.tau2,
            known.s,
            wrong,
            intercept=options.intercept,
            noise=options.noise,
            z=options.z,
        )
    return fit_vector(
        known.prior,
        parts,
        wrong,
        sources=options.sources,
        kappa=options.kappa,
        base_rate=options.base_rate,
    )


@dataclass(frozen=True)
class _Fused:
    """Prior, likelihood and posterior of each query, and the evidence they rest on."""

    m0: FloatArray
    sigma0: FloatArray
    evidence: FloatArray
    intercept: FloatArray
    slope: FloatArray
    tau2: FloatArray
    posterior: fusion.Posterior
    z: float
    parts: Parts
    shares: Parts
    sources: Parts
    sides: Parts = field(default_factory=dict)

    @property
    def u(self) -> FloatArray:
        """u* = m_post + z·σ_post."""
        return fusion.score(self.posterior.m, self.posterior.sigma, self.z)


def _fuse(
    found: Likelihood, parts: Parts, table: EvidenceTable | None, known: Known, options: Options
) -> _Fused:
    if isinstance(found, VectorModel):
        return _fuse_vector(found, parts, known, options)
    assert table is not None
    columns = (table.V, table.intercept, table.slope, table.tau2)
    m0, sigma0, fused = found.posterior(known.s, *columns)
    a, tau2 = found.intercept(table.intercept, table.slope), found.noise(table.tau2)
    shares = {"logdet": 1.0 - fused.prior_weight}
    from_input = fused.prior_weight * m0
    added = {INPUT: from_input, SAMPLES: fused.m - from_input}
    return _Fused(m0, sigma0, table.V, a, table.slope, tau2, fused, found.z, parts, shares, added)


def _fuse_vector(found: VectorModel, parts: Parts, known: Known, options: Options) -> _Fused:
    if not found.names and not known.prior:
        raise InputError("the fit rests on s and inputs alone, and these queries have neither.")
    missing = [name for name in found.names if name not in parts]
    if missing:
        raise InputError(
            f"the fit used the evidence {missing[0]!r}, which these queries lack. "
            f"Give it in Samples or in extra=..., or fit without it."
        )
    spread = None
    if known.variance is not None and found.labelled:
        spread = found.weight_of(competence.NAME) ** 2 * known.variance
    used = {name: parts[name] for name in found.names}
    x = found.condition(known.prior, used, spread)
    a, slope = np.zeros(len(x.m0)), np.ones(len(x.m0))
    # a grid of z would tie where σ_post is one constant
    z = 2.0 if isinstance(options.z, str) else float(options.z)
    added = sources(found.contributions(known.prior, used), found.prior_names)
    strange = sides(found.standardised_prior(known.prior))
    named = {"image": PICTURE, "text": QUESTION}
    strange |= {
        f"{competence.NAME}_{named[k]}": v for k, v in known.competence.items() if k in named
    }
    return _Fused(
        x.m0, x.sigma0, x.u_hat, a, slope, x.tau2, x.posterior, z, used, x.shares, added, strange
    )


def _scores(
    model: Model,
    queries: Queries,
    known: Known,
    table: EvidenceTable | None,
    options: Options,
) -> Scores:
    size = len(queries)
    novelty, side = _novelty(model, queries)
    parts = _parts(queries, table, options, model.asked)
    x = _fuse(model.likelihood, parts, table, known, options)
    return Scores(
        m0=x.m0, sigma0=x.sigma0, evidence=x.evidence, intercept=x.intercept, slope=x.slope,
        tau2=x.tau2, m_post=x.posterior.m, sigma_post=x.posterior.sigma, u=x.u,
        prior_weight=x.posterior.prior_weight,
        n_samples=np.array([len(q) for q in queries.samples]),
        n_distinct=np.array([q.n_distinct for q in queries.samples]),
        novelty=novelty, strangest=tuple(side),
        jitter=np.full(size, np.nan) if table is None else table.jitter,
        parts=x.parts, shares=x.shares, sources=x.sources,
        sides=x.sides,
    )  # fmt: skip


def _choose_alpha(
    responses: Sequence[Responses], queries: Queries, known: Known, options: Options
) -> float:
    """α as given, by a label-free rule, or by the AUROC of u* with everything else fitted anew."""
    if not isinstance(options.alpha, str):
        return checks.scalar(options.alpha, "alpha")
    if options.alpha in BALANCES:
        return balanced_alpha(responses, options.alpha, options.jitter)
    wrong = queries.wrong
    if options.alpha == "remainder" or wrong is None or wrong.all() or not wrong.any():
        return bounded_alpha(responses)

    def u_star(alpha: float) -> FloatArray:
        table = evidence_table(responses, alpha, options, warn=False)
        parts = _parts(queries, table, options)
        found = _fit_likelihood(parts, table, known, wrong, options)
        return _fuse(found, parts, table, known, options).u

    with library_quiet():
        return choose_alpha(u_star, wrong)


def _novelty(model: Model, queries: Queries) -> tuple[FloatArray, list[str]]:
    """The p-value of being like the calibration queries, NaN where unknown, and of which side."""
    unknown = np.full(len(queries), np.nan), [""] * len(queries)
    found = model.novelty
    if found is None or not found.sides:
        return unknown
    known = {**_views(replace(queries, inputs={}, views={})), **queries.inputs}
    views = queries.views or {name: known[name] for name in found.views if name in known}
    if not views:
        logger.warning("no views: whether these queries are like the calibration's is not judged.")
        return unknown
    return strangest(found.p_values(views))


def _warn_of_one_source(scores: Scores, known: Known, options: Options) -> None:
    """Warn when fusion is a no-op because one of the two sources has all the weight."""
    if known.empty:
        return
    typical = float(np.median(scores.prior_weight))
    cure = (
        "preset='practical' or noise='jackknife'" if options.fusion == "scalar" else "more labels"
    )
    if typical < LEAST_PRIOR_WEIGHT:
        logger.warning(
            "the prior's weight is %.2g (below 1 %%): fusion is a no-op and u is the evidence "
            "alone. Use %s.",
            typical,
            cure,
        )
    elif typical > 1 - LEAST_PRIOR_WEIGHT:
        logger.warning(
            "the prior's weight is %.2g (above 99 %%): fusion is a no-op and u is the prior alone. "
            "Use %s.",
            typical,
            cure,
        )
