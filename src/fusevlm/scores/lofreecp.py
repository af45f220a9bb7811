"""LoFreeCP (Su et al.): conformal answer sets from sampled texts alone, and the score behind them.

N(x, y) = −share(y) + λ1·NE(x) − λ2·sim(y, top answer of x), NE the entropy of the shares / ln n.
Tune λ on one set of queries and calibrate the threshold on another: the coverage needs that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.scores.agreement import Answers, answers
from fusevlm.scores.interface import Predict, given
from fusevlm.scores.spectral import symmetric
from fusevlm.types import Queries, Samples

GRID = tuple(round(0.2 * k, 1) for k in range(11))
TUNING_RATE = 0.3  # error rate at which λ is chosen


@dataclass(frozen=True)
class Weights:
    """λ1 of the normalised entropy and λ2 of the similarity."""

    entropy: float
    similarity: float


@dataclass(frozen=True, eq=False)
class Terms:
    """The three terms of N, one entry per answer: share, NE of its query, similarity to the top."""

    share: FloatArray
    entropy: FloatArray
    to_top: FloatArray

    def nonconformity(self, weights: Weights) -> FloatArray:
        """N of each answer."""
        return np.asarray(
            -self.share + weights.entropy * self.entropy - weights.similarity * self.to_top
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """The different answers to one query, and the terms of N of each."""

    answers: Answers
    terms: Terms


@dataclass(frozen=True)
class AnswerSets:
    """A calibrated threshold: the set of a query holds every answer with N ≤ ``threshold``."""

    weights: Weights
    threshold: float
    alpha: float

    def answer_set(self, candidates: Candidates) -> tuple[str, ...]:
        """The sampled answers in the set of this query.

        With an infinite threshold the set is every possible answer; the sampled ones are listed.
        """
        inside = candidates.terms.nonconformity(self.weights) <= self.threshold
        return tuple(np.asarray(candidates.answers.texts, dtype=object)[inside])


def find_candidates(samples: Samples, similarity: Any) -> Candidates:
    """The different answers of one query; ``similarity`` [n, n] in [0, 1] between its samples.

    The similarity of two answers is the mean over their samples, and 1 of an answer to itself.
    """
    sampled, n = answers(samples), len(samples)
    if np.shape(similarity) != (n, n):
        raise InputError(f"similarity has shape {np.shape(similarity)}; expected {(n, n)}.")
    W = symmetric([similarity])[0]
    member = sampled.group == sampled.top
    to_top = np.bincount(sampled.group, weights=W[:, member].mean(axis=1)) / (sampled.share * n)
    to_top[sampled.top] = 1.0
    entropy = -float(sampled.share @ np.log(sampled.share)) / np.log(n) if n > 1 else 0.0
    return Candidates(sampled, Terms(sampled.share, np.full(len(to_top), entropy), to_top))


def right_nonconformity(candidates: Candidates, right: Any, weights: Weights) -> float:
    """The smallest N of a right answer; +inf if none was sampled.

    ``right`` [n] says of each sample whether it is right.
    """
    group, marks = candidates.answers.group, np.asarray(right, dtype=bool)
    if marks.shape != group.shape:
        raise InputError(f"right has shape {marks.shape}; expected {group.shape}, one per sample.")
    of_sample = candidates.terms.nonconformity(weights)[group]
    return float(np.min(of_sample[marks], initial=np.inf))


def conformal_quantile(scores: Any, alpha: float) -> float:
    """The ⌈(m+1)(1−α)⌉-th smallest of m calibration scores; +inf when m is too small for α."""
    values = checks.as_floats(scores, "scores")
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise InputError("scores must be one number per calibration query, +inf allowed, not NaN.")
    # a hair of slack, so that (9+1)(1−0.1) counts as 9
    rank = int(np.ceil((values.size + 1) * (1.0 - checks.fraction(alpha, "alpha")) - 1e-9))
    return float(np.sort(values)[rank - 1]) if rank <= values.size else float(np.inf)


def calibrate(
    queries: Sequence[Candidates], right: Sequence[Any], weights: Weights, alpha: float
) -> AnswerSets:
    """Answer sets that hold a right answer in at least 1 − α of new queries, on average.

    ``right`` [n] per query marks the right samples. The guarantee is marginal, over exchangeable
    calibration and new queries, with ``weights`` chosen on other queries. Where more than a share α
    of the queries have no right sample the threshold is +inf: no set of sampled answers will do.
    """
    if len(queries) != len(right):
        raise InputError(f"{len(queries)} queries and {len(right)} rows of right; expected equal.")
    scores = [right_nonconformity(q, r, weights) for q, r in zip(queries, right, strict=True)]
    return AnswerSets(weights, conformal_quantile(scores, alpha), alpha)


def tune_weights(
    queries: Sequence[Candidates],
    right_scores: Callable[[Weights], Any],
    rate: float = TUNING_RATE,
) -> Weights:
    """λ of the grid with the smallest mean set size at error rate ``rate``; ties to the smallest.

    ``right_scores`` gives N of the right answer of each query under some weights.
    """
    terms = [query.terms for query in queries]
    pool = Terms(
        np.concatenate([t.share for t in terms]),
        np.concatenate([t.entropy for t in terms]),
        np.concatenate([t.to_top for t in terms]),
    )
    grid = [Weights(*pair) for pair in itertools.product(GRID, GRID)]
    sizes = []
    for weights in grid:
        threshold = conformal_quantile(right_scores(weights), rate)
        sizes.append(int((pool.nonconformity(weights) <= threshold).sum()))
    return grid[int(np.argmin(sizes))]


def lofreecp(queries: Queries) -> FloatArray:
    """N of the judged answer, λ tuned on the calibration queries.

    Differs from the paper: only the judged answer is labelled, so λ is tuned on the calibration
    queries where it is right; their answer sets have to hold it. An answer that was never sampled
    has share 0, and the similarity of the judged answer to the top answer's samples.
    """
    candidates, judged = _candidates(queries)
    return judged.nonconformity(_weights(queries, candidates, judged))


def learn_lofreecp(known: Queries) -> Predict:
    """λ of the calibration queries, for others."""
    weights = _weights(known, *_candidates(known))
    return lambda new: _candidates(new)[1].nonconformity(weights)


def _candidates(queries: Queries) -> tuple[list[Candidates], Terms]:
    """Of each query, and the terms of N of its judged answer."""
    pairs = zip(queries.samples, given(queries, "similarity"), strict=True)
    candidates = [find_candidates(samples, W) for samples, W in pairs]
    return candidates, _judged(queries, candidates)


def _weights(queries: Queries, candidates: Sequence[Candidates], judged: Terms) -> Weights:
    fit, wrong = given(queries, "fit"), given(queries, "wrong")
    known = fit[~wrong[fit]]
    if known.size == 0:
        raise InputError(
            "every calibration query is wrong; LoFreeCP tunes its weights on right ones. "
            "Add calibration queries until some are right."
        )
    return tune_weights(
        [candidates[i] for i in fit], lambda weights: judged.nonconformity(weights)[known]
    )


def _judged(queries: Queries, candidates: Sequence[Candidates]) -> Terms:
    """Terms of N of the judged answer of each query."""
    share, to_top = np.zeros(len(queries)), np.zeros(len(queries))
    answer, near = given(queries, "answer"), given(queries, "answer_similarity")
    for i, one in enumerate(candidates):
        sampled = one.answers
        place = sampled.find(answer[i])
        if place is not None:
            share[i], to_top[i] = sampled.share[place], one.terms.to_top[place]
        else:
            to_answer = checks.vector(near[i], f"answer_similarity[{i}]")
            to_top[i] = to_answer[sampled.group == sampled.top].mean()
    return Terms(share, np.array([one.terms.entropy[0] for one in candidates]), to_top)
