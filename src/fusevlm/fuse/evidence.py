"""From the sampled responses of a query to its evidence: centre, whiten, normalise, weigh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse.presets import Options
from fusevlm.maths import whitening
from fusevlm.maths.covariance import CovarianceAccumulator
from fusevlm.maths.evidence import (
    Evidence,
    gram_evidence,
    intercept,
    log_weights,
    taylor_log_det,
)
from fusevlm.maths.noise import jackknife_tau2, split_half_tau2
from fusevlm.maths.wishart import scatter_moments
from fusevlm.meanings import best_sample, by_string
from fusevlm.types import Queries, Samples

logger = logging.getLogger(__name__)

WHITENERS: dict[str, Callable[..., whitening.Whitener]] = {
    "exact": lambda shape, rank: whitening.exact_whitening(shape),
    "low_rank": whitening.low_rank_whitening,
    "pca": whitening.pca_whitening,
}
LARGEST_ALPHA = 50.0
FLOOR = 1e-4  # of a surprisal before its logarithm
WITHIN = 0.95  # of calibration queries, whose Taylor remainder must be below the noise
REPLICATE_NOISE: dict[str, Callable[..., float]] = {
    "jackknife": jackknife_tau2,
    "split_half": split_half_tau2,
}


@dataclass(frozen=True, eq=False)
class Responses:
    """One query after whitening: all that evidence, weights and noise need."""

    G: FloatArray  # [n, n] Gram of whitened responses
    d: int
    p: FloatArray  # [n] confidence in each response

    def evidence(self, alpha: float, jitter: float) -> Evidence:
        """Ṽ at this α. With n ≤ d all α share one factorisation, logdet S_w = logdet S + Σ ln w."""
        log_w = log_weights(self.p, alpha)
        if len(self.G) > self.d:
            return gram_evidence(self.G, self.d, log_w, jitter)
        if jitter not in self._unweighted:
            self._unweighted[jitter] = gram_evidence(self.G, self.d, None, jitter)
        plain = self._unweighted[jitter]
        return replace(plain, value=plain.value + float(np.sum(log_w)))

    @cached_property
    def _unweighted(self) -> dict[float, Evidence]:
        return {}


def confidence(samples: Samples, kind: str) -> FloatArray:
    """p_i of each response [n] (Def. 4.6).

    ``token``     exp(mean token log-probability), in (0, 1]
    ``sequence``  exp(sum), UMPIRE's
    ``logprob``   the mean log-probability itself: the paper's words, but then 1 − p is unbounded
    """
    if samples.token_logprobs is None:
        raise InputError(
            "the weights need token_logprobs, and these samples have none. Pass them to Samples, "
            "or set alpha=0 for unweighted evidence."
        )
    if kind == "sequence":
        return np.array([np.exp(np.sum(row)) for row in samples.token_logprobs])
    means = np.array([np.mean(row) for row in samples.token_logprobs])
    return means if kind == "logprob" else np.exp(means)


def surprisal(samples: Samples) -> float:
    """√(2·Σ_t −log p(ŷ_t)) of the judged answer: its G-NLL on a scale closer to normal."""
    return float(np.sqrt(2.0 * -np.sum(samples.answer_logprobs)))


def log_surprisal(samples: Samples) -> float:
    """ln(ε + Σ_t −log p(ŷ_t)), ε = 1e-4: the shape that tells sure answers apart.

    Neither shape fits every model: √ alone made the fusion worse than G-NLL on one. With both the
    posterior is linear in two shapes, so that the labels choose between them.
    """
    return float(np.log(FLOOR - np.sum(samples.answer_logprobs)))


def text_entropy(samples: Samples) -> float:
    """−Σ_c (n_c/n) ln(n_c/n) over meanings by string: semantic entropy from texts alone."""
    counts = np.bincount(by_string(samples.texts))
    share = counts / counts.sum()
    return float(-(share @ np.log(share)))


def text_disagreement(samples: Samples) -> float:
    """The share of samples that say something else than the answer, by string.

    Without an answer it is the most frequent meaning that is judged.
    """
    texts = samples.texts
    said = texts[best_sample(texts)] if samples.answer is None else samples.answer
    *meanings, own = by_string([*texts, said])
    return float(np.mean(np.array(meanings) != own))


# Made where a caller gives texts and nothing else, strongest first. The names are none that callers
# would choose: a better semantic entropy, passed as extra, cannot be taken for this one.
TEXT_EVIDENCE: dict[str, Callable[[Samples], float]] = {
    "text_disagreement": text_disagreement,
    "text_entropy": text_entropy,
}


def response_rows(samples: Samples, options: Options) -> FloatArray:
    """Rows [n, d] ready for centring: of unit norm, minus the query's mean, where wanted."""
    rows = checks.as_floats(samples.embeddings, "embeddings")  # stored states may be half precision
    if options.normalize == "before":
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        _refuse_zero(norms, "is all zeros")
        rows = rows / norms
    return rows - rows.mean(axis=0) if options.center == "query" else rows


def unit_norm(G: FloatArray) -> FloatArray:
    """The Gram of the same rows, each of unit norm: G_ij/√(G_ii·G_jj)."""
    norms = np.sqrt(np.maximum(np.diag(G), 0.0))
    _refuse_zero(norms, "is the calibration mean itself, zero after centring,")
    return np.asarray(G / np.outer(norms, norms))


def _refuse_zero(norms: FloatArray, what: str) -> None:
    if float(norms.min()) == 0.0:
        raise InputError(
            f"embedding {int(norms.argmin())} of a query {what} and cannot be normalised. Repair "
            f"the hidden states, or use normalize='none'."
        )


def fit_whitener(samples: Sequence[Samples], options: Options) -> whitening.Whitener:
    """Centre and shape of response space from calibration queries, in one pass over them."""
    d = samples[0].embeddings.shape[1]
    if options.whitening == "none" and options.center != "global":
        return whitening.no_whitening(np.zeros(d))
    accumulator = CovarianceAccumulator(d)
    for query in samples:
        accumulator.update(response_rows(query, options))
    if options.whitening == "none":
        return whitening.no_whitening(accumulator.mean)
    shape = accumulator.estimate(options.shrinkage, options.counted_in)  # type: ignore[arg-type]
    whitener = WHITENERS[options.whitening](shape, rank=options.rank)
    return whitener if options.center == "global" else whitening.uncentred(whitener)


def whiten(
    samples: Sequence[Samples], whitener: whitening.Whitener, options: Options, *, weighted: bool
) -> list[Responses]:
    """Whitened Gram and confidences of each query; a stored Gram is taken as it is."""
    found = []
    for index, query in enumerate(samples):
        p = confidence(query, options.confidence) if weighted else np.ones(len(query))
        if query.embeddings is None and (query.grams or query.gram is not None):
            found.append(_responses(*_kept_gram(query, whitener, options), p, options))
            continue
        rows = response_rows(query, options)
        if rows.shape[1] != len(whitener.mean):
            raise InputError(
                f"query {index} has embeddings of {rows.shape[1]} features; the fit had "
                f"{len(whitener.mean)}. Use the model and layer of the calibration run."
            )
        found.append(_responses(whitener.gram(rows), whitener.d, p, options))
    return found


def kept_name(whitener: whitening.Whitener, options: Options) -> str:
    """What a Gram is called that is kept instead of the states: by its whitening.

    One that leaves all states as they are is the same of any; then also by what is done before it.
    """
    if options.whitening != "none" or options.center == "global":
        return whitener.fingerprint
    before = (" unit" * (options.normalize == "before"), " query" * (options.center == "query"))
    return whitener.fingerprint + "".join(before)


def _kept_gram(
    query: Samples, whitener: whitening.Whitener, options: Options
) -> tuple[FloatArray, int]:
    """The Gram that was kept of this whitening; one that does not say of which is believed."""
    name = kept_name(whitener, options)
    if name in query.grams:
        return query.grams[name]
    if query.gram is None:
        raise InputError(
            "of these samples only Gram matrices were kept, and none under the whitening of this "
            "fit: a calibration query was left out since, or the settings of the fit were changed. "
            "Keep all hidden states (sample.states = 'full'), or sample again: --redo sample."
        )
    return query.gram, int(query.gram_dim or 0)


def _responses(G: FloatArray, d: int, p: FloatArray, options: Options) -> Responses:
    return Responses(unit_norm(G) if options.normalize == "after" else G, d, p)


def balance_by_median(log_volume: FloatArray, incoherence: FloatArray) -> float:
    """UMPIRE's label-free α = |median(½·logdet/n) / median(mean(1−p))|.

    ``log_volume`` [N] is ½·logdet/n of the unweighted scatter, ``incoherence`` [N] is mean(1−p).
    Without incoherence (all p = 1) every weight is 1 and α is 0.
    """
    below = float(np.median(incoherence))
    return abs(float(np.median(log_volume)) / below) if below > 0 else 0.0


def balance_by_spread(log_volume: FloatArray, incoherence: FloatArray) -> float:
    """α that gives both terms the same standard deviation over calibration queries (label-free).

    Differs from the paper and UMPIRE: medians depend on where zero lies on the log-det scale,
    spreads do not.
    """
    below = float(np.std(incoherence))
    return float(np.std(log_volume)) / below if below > 0 else 0.0


BALANCES: dict[str, Callable[[FloatArray, FloatArray], float]] = {
    "median": balance_by_median,
    "spread": balance_by_spread,
}


def balanced_alpha(responses: Sequence[Responses], how: str, jitter: float) -> float:
    """Label-free α on calibration queries, from ½·logdet/n and mean(1 − p)."""
    unweighted = [r.evidence(0.0, jitter) for r in responses]
    log_volume = np.array([0.5 * e.value / e.slope for e in unweighted])
    incoherence = np.array([float(np.mean(1.0 - r.p)) for r in responses])
    return BALANCES[how](log_volume, incoherence)


def bounded_alpha(responses: Sequence[Responses]) -> float:
    """The largest α whose Taylor remainder |R_w| is at most √v in 95 % of the queries, no labels.

    Thm 4.8 bounds the weights and drops R_w beside a noise of variance v(d, n): up to this α that
    is true of nearly every query. The share of queries within falls as α grows, but for ripples:
    the first α of a fine grid that breaks the rule is found, and the crossing before it bisected.
    No α up to :data:`LARGEST_ALPHA` may break it, as when all p are equal: that one is returned.
    """
    noise_sd = np.array([np.sqrt(scatter_moments(len(r.G), r.d)[1]) for r in responses])

    def within(alpha: float) -> bool:
        left = np.array([taylor_log_det(log_weights(r.p, alpha))[1] for r in responses])
        return float(np.mean(np.abs(left) <= noise_sd)) >= WITHIN

    low = 0.0
    for high in np.geomspace(1e-3, LARGEST_ALPHA, 48):
        if not within(float(high)):
            break
        low = float(high)
    else:
        return low
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if within(middle) else (low, middle)
    return float(low)


def need_weights(options: Options) -> bool:
    """Whether any weight can differ from 1 under these options."""
    return isinstance(options.alpha, str) or checks.scalar(options.alpha, "alpha") != 0.0


def weighed_if_possible(queries: Queries, options: Options) -> Options:
    """The options, with alpha = 0 where there is nothing to weigh by."""
    if not need_weights(options) or queries.has("token_logprobs"):
        return options
    if not isinstance(options.alpha, str):
        raise InputError(
            f"alpha is {options.alpha:g}, but these samples have no token_logprobs to "
            f"weigh them by. Pass them to Samples, or set alpha=0."
        )
    logger.warning("no token_logprobs: the log-det evidence goes unweighted (alpha = 0).")
    return replace(options, alpha=0.0)


@dataclass(frozen=True)
class EvidenceTable:
    """Ṽ and the constants of its likelihood, one entry per query."""

    V: FloatArray
    intercept: FloatArray
    slope: FloatArray
    tau2: FloatArray
    jitter: FloatArray

    @property
    def u_hat(self) -> FloatArray:
        """(Ṽ − a)/slope: what the evidence alone says of u."""
        return np.asarray((self.V - self.intercept) / self.slope)


def evidence_table(
    responses: Sequence[Responses], alpha: float, options: Options, *, warn: bool = True
) -> EvidenceTable:
    """Evidence, intercept and noise of each query under the options.

    Noise kinds that need more than one query (``ols``, ``tempered``) start from the analytic one;
    ``fitted`` starts from a0. :mod:`fusevlm.fuse.scalar` completes them.
    """
    kind = "a0" if options.intercept == "fitted" else options.intercept
    rows = [_table_row(r, alpha, kind, options) for r in responses]
    if warn and kind == "taylor":
        _warn_of_remainder(responses, alpha)
    return EvidenceTable(*np.array(rows).T)


def _table_row(
    r: Responses, alpha: float, kind: str, options: Options
) -> tuple[float, float, float, float, float]:
    n, log_w = len(r.G), log_weights(r.p, alpha)
    if n > r.d and options.more_samples_than_features == "error":
        raise InputError(
            f"n={n} samples in d={r.d} dimensions: the paper's formulas need n ≤ d. Sample fewer "
            f"answers, or use more_samples_than_features='d_scatter' with intercept='a0'."
        )
    found = r.evidence(alpha, options.jitter)
    estimator = REPLICATE_NOISE.get(options.noise)
    tau2 = (
        scatter_moments(n, r.d)[1]
        if estimator is None
        else estimator(r.G, r.d, log_w, intercept_kind=kind, jitter=options.jitter)
    )
    a = intercept(kind, n, r.d, log_w)
    return found.value, a, float(found.slope), tau2, found.jitter


def _warn_of_remainder(responses: Sequence[Responses], alpha: float) -> None:
    remainders = np.array([taylor_log_det(log_weights(r.p, alpha))[1] for r in responses])
    noise_sd = np.array([np.sqrt(scatter_moments(len(r.G), r.d)[1]) for r in responses])
    large = np.abs(remainders) > noise_sd
    if large.any():
        logger.warning(
            "the Taylor intercept's remainder |R_w| exceeds the noise of the evidence in %d of %d "
            "queries (largest %.3g): the weights act only through this error. "
            "Use intercept='a0' to let them act, or 'exact' to remove them.",
            int(large.sum()),
            len(large),
            float(np.abs(remainders).max()),
        )
