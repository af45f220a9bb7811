"""FUSE as two pure functions: calibration queries → model, model and queries → scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse import probability
from fusevlm.fuse.evidence import (
    BALANCES,
    EvidenceTable,
    Responses,
    balanced_alpha,
    evidence_table,
    fit_whitener,
    need_weights,
    surprisal,
    whiten,
)
from fusevlm.fuse.presets import Options
from fusevlm.fuse.scalar import ScalarModel, fit_scalar
from fusevlm.fuse.vector import VectorModel, fit_vector
from fusevlm.fuse.weights import alpha_by_grid
from fusevlm.maths import fusion
from fusevlm.maths.whitening import Whitener
from fusevlm.types import Samples, Scores

logger = logging.getLogger(__name__)

LEAST_PRIOR_WEIGHT = 0.01
Extra = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Batch:
    """Validated queries: samples, the prior statistic and further evidence by name."""

    samples: Sequence[Samples]
    s: FloatArray | None
    extra: Extra

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: Any) -> Batch:
        return Batch(
            [self.samples[int(i)] for i in index],
            None if self.s is None else self.s[index],
            {name: values[index] for name, values in self.extra.items()},
        )

    def has(self, attribute: str) -> bool:
        """Whether all queries carry ``attribute``; a mixture is an error."""
        present = [getattr(q, attribute) is not None for q in self.samples]
        if any(present) and not all(present):
            raise InputError(
                f"query {present.index(False)} has no {attribute} but others do; "
                f"give it for all queries or for none."
            )
        return all(present)


@dataclass(frozen=True)
class Model:
    """What a fit leaves behind: plain data."""

    whitener: Whitener | None  # None without embeddings
    alpha: float
    scalar: ScalarModel | None
    vector: VectorModel | None
    score_map: probability.ScoreMap | None
    ranges: dict[str, list[float]]  # calibration range of s and of each evidence
    u: FloatArray  # calibration scores, sorted
    uses_s: bool
    n_calibration: int


def fit_model(batch: Batch, wrong: BoolArray | None, options: Options) -> Model:
    """Fit every constant of FUSE on calibration queries, without labels as far as possible."""
    taken = sorted({"surprisal", "logdet", "s"} & set(batch.extra))
    if taken:
        raise InputError(f"extra holds {taken[0]!r}, which is a name of fusevlm's own. Rename it.")
    if batch.s is None:
        logger.warning("no prior statistic s: the scores rest on the evidence only.")
    whitener, alpha, table = None, 0.0, None
    if batch.has("embeddings"):
        whitener = fit_whitener(batch.samples, options)
        if need_weights(options) and not batch.has("token_logprobs"):
            if not isinstance(options.alpha, str):
                raise InputError(
                    f"alpha is {options.alpha:g}, but these samples have no token_logprobs to "
                    f"weigh them by. Pass them to Samples, or set alpha=0."
                )
            logger.warning("no token_logprobs: the log-det evidence goes unweighted (alpha = 0).")
            options = replace(options, alpha=0.0)
        responses = whiten(batch.samples, whitener, options, weighted=need_weights(options))
        alpha = _choose_alpha(responses, wrong, options)
        table = evidence_table(responses, alpha, options)
    scalar = vector = None
    if options.fusion == "scalar":
        if table is None:
            raise InputError("the scalar fusion needs embeddings; pass them to Samples.")
        scalar = fit_scalar(
            table.V,
            table.intercept,
            table.slope,
            table.tau2,
            batch.s,
            wrong,
            intercept=options.intercept,
            noise=options.noise,
            z=options.z,
        )
        parts = {"logdet": table.u_hat}
    else:
        parts = _parts(batch, table)
        for name, source in (("surprisal", "answer_logprobs"), ("logdet", "embeddings")):
            if name not in parts:
                logger.warning("no %s: going without the evidence %r.", source, name)
        vector = fit_vector(
            tuple(parts),
            np.column_stack(list(parts.values())),
            batch.s,
            wrong,
            sources=options.sources,
            kappa=options.kappa,
            base_rate=options.base_rate,
        )
    ranges = {name: [float(v.min()), float(v.max())] for name, v in parts.items()}
    if batch.s is not None:
        ranges["s"] = [float(batch.s.min()), float(batch.s.max())]
    model = Model(
        whitener,
        alpha,
        scalar,
        vector,
        None,
        ranges,
        np.zeros(0),
        uses_s=batch.s is not None,
        n_calibration=len(batch),
    )
    scores = _scores(model, batch, table, options)
    _warn_of_one_source(scores, batch.s, options)
    return replace(model, u=np.sort(scores.u), score_map=_fit_score_map(scores.u, wrong, options))


def score_model(model: Model, batch: Batch, options: Options, *, warn: bool = True) -> Scores:
    """Scores of new queries under a fitted model; warns of drift and of an inert prior."""
    if batch.s is None and model.uses_s:
        logger.warning("no prior statistic s: these scores rest on the evidence only.")
    unknown = sorted(set(batch.extra) - set(model.ranges))
    if unknown:
        raise InputError(f"extra holds {unknown[0]!r}, which the fit did not have. Fit with it.")
    if batch.s is not None and not model.uses_s:
        raise InputError(
            "s was given, but the fit had none: the prior was never calibrated. Fit with s, or "
            "score with s=None."
        )
    table = None
    if model.whitener is not None and _needs_table(model):
        if not batch.has("gram") and not batch.has("embeddings"):
            raise InputError("the fit used embeddings; these samples have neither them nor Grams.")
        responses = whiten(batch.samples, model.whitener, options, weighted=model.alpha != 0.0)
        table = evidence_table(responses, model.alpha, options, warn=warn)
    scores = _scores(model, batch, table, options)
    if warn:
        _warn_of_drift(scores, batch.s, model)
        _warn_of_one_source(scores, batch.s, options)
    return scores


def p_wrong(model: Model, scores: Scores) -> FloatArray:
    """P(wrong) of scored queries."""
    if model.score_map is not None:
        return model.score_map(scores.u)
    assert model.vector is not None  # the scalar fusion always has a map
    return model.vector.p_wrong(scores.m_post, scores.sigma_post)


def _needs_table(model: Model) -> bool:
    return model.scalar is not None or (model.vector is not None and "logdet" in model.vector.names)


def _parts(batch: Batch, table: EvidenceTable | None) -> dict[str, FloatArray]:
    """All evidence there is, by name, strongest first: surprisal, logdet, then the caller's."""
    parts: dict[str, FloatArray] = {}
    if batch.has("answer_logprobs"):
        parts["surprisal"] = np.array([surprisal(q) for q in batch.samples])
    if table is not None:
        parts["logdet"] = table.u_hat
    parts |= batch.extra
    if not parts:
        raise InputError(
            "these samples carry no evidence: pass embeddings, answer_logprobs or extra={name: "
            "values} (semantic entropy is a good one for black-box models)."
        )
    return parts


def _scores(model: Model, batch: Batch, table: EvidenceTable | None, options: Options) -> Scores:
    size = len(batch)
    if model.scalar is not None and table is not None:
        raw = {"logdet": table.u_hat}
        m0, sigma0, fused = model.scalar.posterior(
            batch.s, table.V, table.intercept, table.slope, table.tau2
        )
        evidence, slope = table.V, table.slope
        a = model.scalar.intercept(table.intercept, table.slope)
        tau2, z = model.scalar.noise(table.tau2), model.scalar.z
        shares = {"logdet": 1.0 - fused.prior_weight}
    else:
        assert model.vector is not None
        available = _parts(batch, table)
        missing = [name for name in model.vector.names if name not in available]
        if missing:
            raise InputError(
                f"the fit used the evidence {missing[0]!r}, which these queries lack. "
                f"Give it in Samples or in extra=..., or fit without it."
            )
        raw = {name: available[name] for name in model.vector.names}
        vector = model.vector if batch.s is not None else model.vector.without_s()
        e = vector.residual(np.column_stack(list(raw.values())), batch.s)
        reduced = fusion.reduce_evidence(e, vector.c, vector.T)
        m0, sigma0 = vector.prior(batch.s, size)
        evidence, a, slope = reduced.u_hat, np.zeros(size), np.ones(size)
        tau2, z = np.full(size, reduced.tau2), _number(options.z)
        fused = fusion.posterior(m0, sigma0, evidence, a, slope, tau2)
        shares = {
            name: share * (1.0 - fused.prior_weight)
            for name, share in zip(raw, reduced.share, strict=True)
        }
    return Scores(
        m0=m0, sigma0=sigma0, evidence=evidence, intercept=a, slope=slope, tau2=tau2,
        m_post=fused.m, sigma_post=fused.sigma, u=fusion.score(fused.m, fused.sigma, z),
        prior_weight=fused.prior_weight,
        n_samples=np.array([len(q) for q in batch.samples]),
        n_distinct=np.array([q.n_distinct for q in batch.samples]),
        out_of_range=_outside(model.ranges, batch.s, raw, size),
        jitter=np.full(size, np.nan) if table is None else table.jitter,
        parts=raw, shares=shares,
    )  # fmt: skip


def _number(z: str | float) -> float:
    """z of the vector fusion: σ_post is one constant there, so a grid would tie at 2."""
    return 2.0 if isinstance(z, str) else float(z)


def _choose_alpha(
    responses: Sequence[Responses], wrong: BoolArray | None, options: Options
) -> float:
    if not isinstance(options.alpha, str):
        return checks.scalar(options.alpha, "alpha")
    if options.alpha in BALANCES:
        return balanced_alpha(responses, options.alpha, options.jitter)
    if wrong is None:
        raise InputError("alpha='grid' needs labels: pass wrong=..., or use alpha='spread'.")
    checks.both_classes(wrong, "alpha='grid'")
    return alpha_by_grid(lambda a: evidence_table(responses, a, options, warn=False).u_hat, wrong)


def _fit_score_map(
    u: FloatArray, wrong: BoolArray | None, options: Options
) -> probability.ScoreMap | None:
    if options.probability == "model":
        return None
    if options.probability == "min_max":
        return probability.fit_min_max(u)
    if wrong is None:
        raise InputError(
            f"probability={options.probability!r} needs labels: pass wrong=... to fit()."
        )
    if options.probability == "platt":
        return probability.fit_platt(u, wrong)
    return probability.fit_isotonic(u, wrong)


def _outside(
    ranges: dict[str, list[float]], s: FloatArray | None, raw: Extra, size: int
) -> BoolArray:
    outside = np.zeros(size, dtype=np.bool_)
    for name, values in {**raw, **({} if s is None else {"s": s})}.items():
        low, high = ranges[name]
        outside |= (values < low) | (values > high)
    return outside


def _warn_of_drift(scores: Scores, s: FloatArray | None, model: Model) -> None:
    """Warn when more queries leave the calibration range than would by chance: 2/(N+1) of them."""
    by_chance = 2 * len(scores) / (model.n_calibration + 1)
    for name, values in {**scores.parts, **({} if s is None else {"s": s})}.items():
        low, high = model.ranges[name]
        n_out = int(np.sum((values < low) | (values > high)))
        if n_out > by_chance:
            logger.warning(
                "drift: %s of %d of %d queries lies outside the calibration range [%.4g, %.4g] "
                "(about %.1f would by chance); probabilities and guarantees may not hold for them.",
                "s" if name == "s" else f"evidence {name!r}",
                n_out,
                len(values),
                low,
                high,
                by_chance,
            )


def _warn_of_one_source(scores: Scores, s: FloatArray | None, options: Options) -> None:
    """Warn when fusion is a no-op because one of the two sources has all the weight."""
    if s is None:
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
