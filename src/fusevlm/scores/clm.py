"""CLM (Quach et al.): answer sets whose risk is certified, and scores adapted from them.

Samples are taken one after another. Sample k is kept if its quality Q_k ≥ λ2 and its largest
similarity to those kept is ≤ λ1; sampling stops once the confidence F of the kept set is ≥ λ3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.maths.bounds import binomial_p_value
from fusevlm.meanings import same_form
from fusevlm.scores.interface import Predict, given
from fusevlm.scores.likelihood import sequences, starts
from fusevlm.scores.spectral import symmetric
from fusevlm.types import Queries

Confidence = Literal["first_k", "max", "sum", "geo"]
GRID_SIZE = 8  # values tried of each λ
SCORE_RISK, SCORE_DELTA = 0.3, 0.05  # of the sets whose size is a score


@dataclass(frozen=True)
class Config:
    """λ1 (similarity allowed), λ2 (quality wanted) and λ3 (confidence at which to stop)."""

    similarity: float
    quality: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Draws:
    """Samples of N queries in the order drawn, padded to the longest with quality −inf.

    quality     [N, n] Q_k in [0, 1]
    similarity  [N, n, n]
    """

    quality: FloatArray
    similarity: FloatArray

    def __len__(self) -> int:
        return len(self.quality)

    def take(self, queries: Any) -> Draws:
        return Draws(self.quality[queries], self.similarity[queries])


@dataclass(frozen=True)
class Certified:
    """A configuration whose risk is ≤ ``risk`` with probability 1 − ``delta``."""

    config: Config
    confidence: Confidence
    risk: float
    delta: float

    def answer_sets(self, draws: Draws) -> BoolArray:
        """[N, n] which samples are in each query's set."""
        kept = kept_samples(draws, self.config.similarity, self.config.quality)
        return members(draws, kept, self.confidence, self.config.confidence)[0]


def pad_draws(quality: Sequence[Any], similarity: Sequence[Any]) -> Draws:
    """Pad the qualities [n] and similarities [n, n] of each query to one size."""
    N, n = len(quality), max(len(q) for q in quality)
    Q, S = np.full((N, n), -np.inf), np.zeros((N, n, n))
    for i, (q, W) in enumerate(zip(quality, symmetric(similarity), strict=True)):
        Q[i, : len(q)] = checks.vector(q, f"quality[{i}]", length=len(W))
        S[i, : len(q), : len(q)] = W
    return Draws(Q, S)


def kept_samples(draws: Draws, similarity: float, quality: float) -> BoolArray:
    """[N, n] which samples pass both rejections, were sampling never to stop."""
    good = draws.quality >= quality
    kept = np.zeros_like(good)
    for k in range(good.shape[1]):
        closest = np.max(np.where(kept, draws.similarity[:, k, :], 0.0), axis=1)
        kept[:, k] = good[:, k] & (closest <= similarity)
    return kept


def set_confidence(draws: Draws, kept: BoolArray, kind: Confidence) -> FloatArray:
    """F [N, n] of the kept set after each draw: its size, or max, sum or −Σ ln(1 − Q)."""
    return CONFIDENCES[kind](np.where(kept, draws.quality, 0.0), kept)


def _geometric(Q: FloatArray) -> FloatArray:
    return np.asarray(-np.log(np.maximum(1.0 - Q, 1e-8)))


CONFIDENCES: dict[Confidence, Callable[[FloatArray, BoolArray], FloatArray]] = {
    "first_k": lambda Q, kept: np.cumsum(kept, axis=1).astype(np.float64),
    "max": lambda Q, kept: np.maximum.accumulate(Q, axis=1),
    "sum": lambda Q, kept: np.cumsum(Q, axis=1),
    "geo": lambda Q, kept: np.cumsum(_geometric(Q), axis=1),
}


def members(
    draws: Draws, kept: BoolArray, kind: Confidence, stop_at: float
) -> tuple[BoolArray, IntArray]:
    """[N, n] samples in each set, and [N] how many draws it took."""
    F = set_confidence(draws, kept, kind)
    before = np.concatenate([np.full((len(F), 1), -np.inf), F[:, :-1]], axis=1)
    drawn = (before < stop_at) & np.isfinite(draws.quality)
    return kept & drawn, drawn.sum(axis=1)


def losses_and_costs(
    draws: Draws, right: BoolArray, configs: Sequence[Config], kind: Confidence
) -> tuple[BoolArray, FloatArray]:
    """[C, N] does the set of a query hold no right sample; [C] mean draws plus mean set size."""
    losses, costs = np.empty((len(configs), len(draws)), dtype=bool), np.empty(len(configs))
    kept: dict[tuple[float, float], BoolArray] = {}
    for c, config in enumerate(configs):
        rules = (config.similarity, config.quality)
        if rules not in kept:
            kept[rules] = kept_samples(draws, *rules)
        inside, drawn = members(draws, kept[rules], kind, config.confidence)
        losses[c] = ~(inside & right).any(axis=1)
        costs[c] = drawn.mean() + inside.sum(axis=1).mean()
    return losses, costs


def grid(draws: Draws, kind: Confidence) -> list[Config]:
    """Configurations from the quantiles of similarities, qualities and confidences seen."""
    real = np.isfinite(draws.quality)
    pairs = real[:, :, None] & real[:, None, :]
    pairs &= ~np.eye(real.shape[1], dtype=bool)
    F = set_confidence(draws, real, kind)
    levels = np.linspace(0.0, 1.0, GRID_SIZE)
    spread = [
        np.append(_quantiles(draws.similarity[pairs], levels), 1.0),
        np.insert(_quantiles(draws.quality[real], levels), 0, 0.0),
        np.append(_quantiles(F[real], levels), np.inf),
    ]
    axes = [np.unique(values).tolist() for values in spread]
    return [Config(*values) for values in itertools.product(*axes)]


def _quantiles(values: FloatArray, levels: FloatArray) -> FloatArray:
    return np.quantile(values, levels) if values.size else np.array([1.0])


def pareto_order(losses: BoolArray, costs: FloatArray) -> IntArray:
    """Configurations no other beats in both risk and cost, from the safest to the cheapest."""
    risk = losses.mean(axis=1)
    order, cheapest = [], np.inf
    for c in np.lexsort((costs, risk)):
        if costs[c] < cheapest:
            order.append(int(c))
            cheapest = float(costs[c])
    return np.array(order, dtype=np.int64)


def fixed_sequence(losses: BoolArray, risk: float, delta: float) -> int | None:
    """The last of the configurations [C, m] accepted before the first failure; None if none is.

    Each is tested by P(Binomial(m, ε) ≤ errors) ≤ δ. Stopping at the first failure keeps the chance
    of any false acceptance at δ, provided that the order was not chosen on these queries.
    """
    accepted = binomial_p_value(losses.sum(axis=1), losses.shape[1], risk) <= delta
    n_accepted = len(accepted) if accepted.all() else int(np.argmin(accepted))
    return n_accepted - 1 if n_accepted else None


def certify(
    draws: Draws,
    right: Any,
    *,
    order_on: Any,
    risk: float,
    delta: float = 0.05,
    confidence: Confidence = "sum",
) -> Certified | None:
    """Answer sets with P(no right sample) ≤ ``risk``, with probability 1 − ``delta``; or None.

    ``right`` [N, n] marks the right samples. The queries at ``order_on`` order the configurations,
    all others test them. None says that no configuration passes, not even the safest.
    """
    checks.fraction(risk, "risk")
    checks.fraction(delta, "delta")
    checks.choice(confidence, "confidence", tuple(CONFIDENCES))
    marks = np.asarray(right, dtype=bool)
    if marks.shape != draws.quality.shape:
        raise InputError(f"right has shape {marks.shape}; expected {draws.quality.shape}.")
    first = np.zeros(len(draws), dtype=bool)
    first[order_on] = True
    if first.all() or not first.any():
        raise InputError(
            f"order_on holds {int(first.sum())} of {len(draws)} queries; some must order the "
            f"configurations and the others test them."
        )
    learn, test = draws.take(first), draws.take(~first)
    configs = grid(learn, confidence)
    order = pareto_order(*losses_and_costs(learn, marks[first], configs, confidence))
    ordered = [configs[i] for i in order]
    losses, _ = losses_and_costs(test, marks[~first], ordered, confidence)
    found = fixed_sequence(losses, risk, delta)
    return None if found is None else Certified(ordered[found], confidence, risk, delta)


def clm_max(queries: Queries) -> FloatArray:
    """1 − max_k Q_k, Q = exp(mean_t log p_t)."""
    Q, first = _qualities(queries)
    return np.asarray(1.0 - np.maximum.reduceat(Q, first))


def clm_sum(queries: Queries) -> FloatArray:
    """−F_sum = −Σ_k Q_k over all samples."""
    Q, first = _qualities(queries)
    return np.asarray(-np.add.reduceat(Q, first))


def clm_geo(queries: Queries) -> FloatArray:
    """−F_geo = Σ_k ln max(1 − Q_k, 1e-8) over all samples."""
    Q, first = _qualities(queries)
    return np.asarray(-np.add.reduceat(_geometric(Q), first))


def clm_size(queries: Queries) -> FloatArray:
    """The size of the answer set certified on the calibration queries at risk 0.3.

    Samples are taken in order of falling quality, so that the order drawn does not matter. Every
    third calibration query orders the configurations, the others test them.
    """
    taken, orders = _taken(queries)
    return _sizes(_certified(queries, taken, orders), taken)


def learn_clm_size(known: Queries) -> Predict:
    """The sets certified on the calibration queries, for others."""
    sets = _certified(known, *_taken(known))
    return lambda new: _sizes(sets, _taken(new)[0])


def _taken(queries: Queries) -> tuple[Draws, list[IntArray]]:
    """The samples in order of falling quality, and that order."""
    similarity = given(queries, "similarity")
    Q, first = _qualities(queries)
    per_query = np.split(Q, first[1:])
    orders = [_by_quality(q, s.texts) for q, s in zip(per_query, queries.samples, strict=True)]
    taken = pad_draws(
        [q[o] for q, o in zip(per_query, orders, strict=True)],
        [np.asarray(W)[np.ix_(o, o)] for W, o in zip(similarity, orders, strict=True)],
    )
    return taken, orders


def _certified(queries: Queries, taken: Draws, orders: Sequence[IntArray]) -> Certified:
    fit, wrong = given(queries, "fit"), given(queries, "sample_wrong")
    right = np.zeros((len(fit), taken.quality.shape[1]), dtype=bool)
    for row, i in enumerate(fit):
        right[row, : len(orders[i])] = ~np.asarray(wrong[i], dtype=bool)[orders[i]]
    sets = certify(
        taken.take(fit),
        right,
        order_on=slice(None, None, 3),
        risk=SCORE_RISK,
        delta=SCORE_DELTA,
    )
    if sets is None:
        raise InputError(
            f"no answer sets of risk {SCORE_RISK} can be certified: too few of the {len(fit)} "
            f"calibration queries have a right sample, or they are too few."
        )
    return sets


def _sizes(sets: Certified, taken: Draws) -> FloatArray:
    return np.asarray(sets.answer_sets(taken).sum(axis=1), dtype=np.float64)


def _qualities(queries: Queries) -> tuple[FloatArray, IntArray]:
    """Q [M] of all samples, and where each query's begin."""
    table = sequences(queries)
    return np.exp(table.mean_log_likelihood), starts(table.sizes)


def _by_quality(quality: FloatArray, texts: Sequence[str]) -> IntArray:
    """Samples from the best to the worst; equals by their text."""
    forms = [same_form(text) for text in texts]
    return np.array(sorted(range(len(forms)), key=lambda k: (-quality[k], forms[k])))
