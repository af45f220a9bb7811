"""Are new queries like those of the calibration? A test of a batch, and a monitor of a stream.

Both compare *columns* (evidence, prior statistics, components of inputs) of new queries with those
of calibration queries that were scored exactly like new ones. Neither needs a label, and both keep
their level exactly, whatever the distribution: under exchangeability :func:`check` calls drift in
at most ``level`` of all batches, and :class:`Monitor` gives an alarm in at most ``level`` of all
streams, however long one looks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.types import Displayed

LEAST_REFERENCE, LEAST_NEW = 20, 5
BLOCK = 4_000_000  # entries of the permutations that are held at once
KNOWN = "known values"  # the monitor's part that counts what was asked of a query

MEDIAN, SPREAD, CORRELATION, SHARE = (
    "median",
    "interquartile range",
    "rank correlation",
    "share known",
)


@dataclass(frozen=True, eq=False)
class Reference:
    """Columns of calibration queries that were scored exactly like new ones.

    names   of the columns
    values  [n, K], one row per unit; NaN: not asked of this query
    pairs   of columns whose dependence counts; None: every pair. The test's power falls slowly with
            their number (the highest of J standard values grows as √(2·log J)), the monitor's cost
            in proportion. Of many columns name only the pairs that fusion rests on: a prior
            statistic with an evidence
    """

    names: tuple[str, ...]
    values: FloatArray
    pairs: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        values = checks.as_floats(self.values, "values")
        if values.ndim != 2 or values.shape[1] != len(self.names) or not self.names:
            raise InputError(
                f"values has shape {values.shape} for {len(self.names)} name(s); expected "
                f"(queries, columns) with a name for each column."
            )
        if len(set(self.names)) < len(self.names):
            raise InputError("two columns of the reference have the same name.")
        if np.isinf(values).any():
            raise InputError("values holds infinite numbers; NaN says that a value is not known.")
        for name in {name for pair in self.pairs or () for name in pair}:
            checks.known(name, self.names, "column")
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def pair_indices(self) -> list[tuple[int, int]]:
        """The pairs as columns of ``values``."""
        if self.pairs is None:
            return list(combinations(range(len(self.names)), 2))
        return [(self.names.index(a), self.names.index(b)) for a, b in self.pairs]

    @property
    def pair_names(self) -> list[str]:
        """What the pairs are called."""
        return [f"{self.names[i]} × {self.names[j]}" for i, j in self.pair_indices]

    def rows(self, columns: Mapping[str, Any]) -> FloatArray:
        """The same columns of other queries [N, K], checked and in this order."""
        for name in columns:
            if name not in self.names:
                raise InputError(
                    f"columns holds {name!r}, which the reference does not have."
                    f"{checks.hint(name, self.names)}"
                )
        length: int | None = None
        found = []
        for name in self.names:
            if name not in columns:
                raise InputError(
                    f"columns lacks {name!r}, which the reference has.{checks.hint(name, columns)}"
                )
            values = np.atleast_1d(checks.as_floats(columns[name], f"column {name!r}"))
            found.append(checks.vector(values, f"column {name!r}", length=length, gaps=True))
            length = len(found[0])
        return np.column_stack(found)


@dataclass(frozen=True)
class Moved:
    """One part that is not as it was: a column, a pair of columns, or how often one is known.

    direction  ``higher`` or ``lower`` (the median, the rank correlation of a pair, the share of
               queries of which a column is known), ``wider`` or ``narrower`` (the interquartile
               range), ``otherwise`` (the shape; the medians are told)
    p_value    adjusted: the chance to name any part wrongly is at most the level
    """

    name: str
    p_value: float
    direction: str
    measure: str
    before: float
    now: float

    def __str__(self) -> str:
        return (
            f"{self.direction}: {self.measure} {self.before:.3g} → {self.now:.3g} "
            f"(p = {self.p_value:.2g})"
        )


@dataclass(frozen=True, repr=False)
class Drift(Displayed):
    """What :func:`check` found."""

    p_value: float
    drifted: bool
    level: float
    moved: tuple[Moved, ...]
    n_reference: int
    n_new: int

    def _title(self) -> str:
        found = "drift" if self.drifted else "no drift found"
        return f"{found} (p = {self.p_value:.2g}, level {self.level:g})"

    def _facts(self) -> dict[str, str]:
        sure = (
            "the new queries are not like those of the calibration: P(wrong) and guaranteed risks "
            "may not hold for them. Label some of them and recalibrate."
            if self.drifted
            else "nothing speaks against P(wrong) and guaranteed risks on these queries; a change "
            "too small for this many would not show."
        )
        return {
            "compared": f"{self.n_new} new queries with {self.n_reference} of the calibration",
            **{part.name: str(part) for part in self.moved},
            "meaning": sure,
        }


def check(
    reference: Reference,
    columns: Mapping[str, Any],
    *,
    level: float = 0.05,
    permutations: int = 999,
    seed: int = 0,
) -> Drift:
    """Whether these queries and the reference come from one distribution: a permutation test.

    Each column is ranked in the pooled sample, x = (2·rank − N − 1)/N in (−1, 1) with midranks for
    ties, and goes through the Legendre polynomials P₁ … P₄: location, spread, shape (P₁ gives
    Wilcoxon's statistic, P₂ Mood's). In simulations (``python -m benchmarks.drift --statistics``)
    they find shifts as often as Kolmogorov–Smirnov's and Cramér–von Mises' statistics, and a
    doubled spread or a second hump two or three times as often. A pair of columns has the product
    x·x′, so that a change of dependence under unchanged margins shows as well: an s that is
    shuffled, or has the wrong sign. (Products of normal scores have heavy tails, which raise the
    maximum of all: of a flipped s among 10 queries they find 29 %, these 39 %.) A column with gaps
    has whether it is known as a part of its own; elsewhere a gap counts as the mean.

    Of each feature f the statistic is |Σ_new f| over its standard deviation under permutation, of a
    part the largest of its features, of all the largest of the parts.

    p = (1 + #{permutations with at least the observed})/(B + 1) is exact: ranks of the *pooled*
    sample do not depend on which rows are new, so under exchangeability the observed labels are one
    more draw from the permutations. Ranks among the reference alone would not do: they would fit
    the reference's rows and not the new ones, and permuting afterwards would not undo that.
    Exchangeable are units, not queries: of several questions about one image pass one.
    Parts are adjusted by Westfall and Young's step-down maxT. Cost: B·N·(features).
    """
    level = checks.fraction(level, "level")
    permutations = checks.count(permutations, "permutations")
    if 1 / (permutations + 1) > level:
        raise InputError(
            f"{permutations} permutations cannot give a p-value of {level:g}; use at least "
            f"{int(np.ceil(1 / level)) - 1}."
        )
    new = reference.rows(columns)
    _enough(len(reference), len(new))
    n, m = len(reference), len(new)
    parts = _parts(np.vstack([reference.values, new]), reference)
    features = np.column_stack([part.features for part in parts])
    starts = np.cumsum([0, *(part.features.shape[1] for part in parts[:-1])])

    def highest(chosen: FloatArray) -> FloatArray:
        return np.maximum.reduceat(standardised(features, chosen), starts, axis=1)

    is_new = np.r_[np.zeros(n), np.ones(m)]
    rng = np.random.default_rng(seed)
    size = max(1, BLOCK // (n + m))
    drawn = [
        highest(rng.permuted(np.tile(is_new, (min(size, permutations - first), 1)), axis=1))
        for first in range(0, permutations, size)
    ]
    p = adjusted(highest(is_new[None])[0], np.vstack(drawn))
    return Drift(
        p_value=float(p.min()),
        drifted=bool(p.min() <= level),
        level=level,
        moved=_moved(parts, p, level, reference.values, new),
        n_reference=n,
        n_new=m,
    )


def standardised(features: FloatArray, chosen: FloatArray) -> FloatArray:
    """|Σ f over the chosen rows| in standard deviations under permutation: [B, F].

    features [N, F]; chosen [B, N] with the same number m of ones in each row. Var = m(N−m)/(N(N−1))
    · Σ(f − f̄)². A feature that does not vary is 0.
    """
    N, m = len(features), chosen[0].sum()
    centred = features - features.mean(axis=0)
    deviation = np.sqrt(m * (N - m) / (N * (N - 1)) * (centred**2).sum(axis=0))
    varies = deviation > 1e-9
    return np.asarray(
        np.abs(chosen @ np.where(varies, centred, 0.0)) / np.where(varies, deviation, 1.0)
    )


def adjusted(observed: FloatArray, drawn: FloatArray) -> FloatArray:
    """Step-down maxT p-values [J] of statistics [J] with their permutations [B, J].

    The highest is compared with the maximum of all, the next with that of the rest, and so on. What
    equals the observed up to rounding counts as at least it.
    """
    order = np.argsort(-observed, kind="stable")
    of_rest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    at_least = (of_rest >= observed[order] * (1 - 1e-9) - 1e-12).sum(axis=0)
    p = np.empty(len(observed))
    p[order] = np.maximum.accumulate((1 + at_least) / (len(drawn) + 1))
    return p


@dataclass(frozen=True, eq=False)
class _Part:
    """What may move: features [N, F] of the pooled rows, of one column or of two."""

    name: str
    kind: str  # column, pair or gaps
    columns: tuple[int, ...]
    features: FloatArray


def _parts(pooled: FloatArray, reference: Reference) -> list[_Part]:
    known = ~np.isnan(pooled)
    x = np.column_stack([ranks(column) for column in pooled.T])
    found = []
    for k, name in enumerate(reference.names):
        polynomials = legendre(np.nan_to_num(x[:, k]))
        found.append(_Part(name, "column", (k,), _centred(polynomials, known[:, k])))
        if not known[:, k].all():
            gaps = known[:, [k]].astype(np.float64)
            found.append(_Part(f"{name} (known)", "gaps", (k,), gaps))
    for name, (i, j) in zip(reference.pair_names, reference.pair_indices, strict=True):
        both = known[:, i] & known[:, j]
        product = np.where(both, x[:, i] * x[:, j], 0.0)[:, None]
        found.append(_Part(name, "pair", (i, j), _centred(product, both)))
    return found


def ranks(values: FloatArray) -> FloatArray:
    """(2·rank − N − 1)/N of the N known values, midranks for ties; NaN stays NaN."""
    known = ~np.isnan(values)
    _, place, size = np.unique(values[known], return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - (size - 1) / 2  # of 1 … N
    found = np.full(len(values), np.nan)
    found[known] = (2 * middle[place] - known.sum() - 1) / max(1, known.sum())
    return found


def legendre(x: FloatArray) -> FloatArray:
    """P₁ … P₄ of x [N]: [N, 4], each within ±1."""
    return np.asarray(np.polynomial.legendre.legvander(x, 4)[:, 1:], dtype=np.float64)


def _centred(features: FloatArray, known: BoolArray) -> FloatArray:
    """Less their mean over the known rows; 0 in the others."""
    mean = features[known].mean(axis=0) if known.any() else 0.0
    return np.where(known[:, None], features - mean, 0.0)


def _moved(
    parts: Sequence[_Part], p: FloatArray, level: float, before: FloatArray, now: FloatArray
) -> tuple[Moved, ...]:
    """The parts at or below the level, most certain first.

    A pair is named only where neither of its columns is: products move with their factors.
    """
    named = [int(k) for k in np.argsort(p, kind="stable") if p[k] <= level]
    columns = {parts[k].columns[0] for k in named if parts[k].kind == "column"}
    return tuple(
        _described(parts[k], float(p[k]), before, now)
        for k in named
        if parts[k].kind != "pair" or columns.isdisjoint(parts[k].columns)
    )


def _described(part: _Part, p: float, before: FloatArray, now: FloatArray) -> Moved:
    i, j = part.columns[0], part.columns[-1]
    if part.kind == "pair":
        measure, values = CORRELATION, [rank_correlation(v[:, i], v[:, j]) for v in (before, now)]
    elif part.kind == "gaps":
        measure, values = SHARE, [float((~np.isnan(v[:, i])).mean()) for v in (before, now)]
    else:
        measure, values = MEDIAN, [_quantiles(v[:, i])[1] for v in (before, now)]
    pull = part.features[len(before) :].mean(axis=0)  # of polynomials within ±1: comparable
    order = int(np.argmax(np.abs(pull)))
    words = (("lower", "higher"), ("narrower", "wider"), *2 * [2 * ("otherwise",)])[order]
    if order == 1:
        measure, values = SPREAD, [float(np.ptp(_quantiles(v[:, i]))) for v in (before, now)]
    return Moved(part.name, p, words[int(pull[order] > 0)], measure, values[0], values[1])


def _quantiles(values: FloatArray) -> FloatArray:
    """The three quartiles of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return np.quantile(known, [0.25, 0.5, 0.75]) if len(known) else np.full(3, np.nan)


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Spearman's, over the rows of which both are known; NaN where one does not vary."""
    both = ~(np.isnan(a) | np.isnan(b))
    if not both.any() or np.ptp(a[both]) == 0 or np.ptp(b[both]) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(a[both]), ranks(b[both]))[0, 1])


def _enough(n: int, m: int = LEAST_NEW) -> None:
    if n < LEAST_REFERENCE or m < LEAST_NEW:
        raise InputError(
            f"{m} new queries cannot be compared with {n} of the reference: at least {LEAST_NEW} "
            f"and {LEAST_REFERENCE} are needed. Wait for more queries, or keep more apart."
        )


# ------------------------------------------------------------------------------------- monitor

DIRECTIONS = ("higher", "lower", "wider", "narrower")
LOOKS = 1000  # queries whose bets are held at once
POWERS = np.array([0.3, 0.7])  # of the bets: bold, for a few extreme values; cautious


@dataclass(frozen=True, repr=False)
class MonitorState(Displayed):
    """Where a :class:`Monitor` stands.

    n          queries seen
    capital    of the best part, over the number of parts: an alarm at 1/level
    alarm      whether it ever got there
    since      the query at which it did
    worst      the part with the most capital: a column, or a pair of them
    direction  what its capital was won with
    """

    n: int
    capital: float
    alarm: bool
    since: int | None
    worst: str
    direction: str
    level: float

    def _title(self) -> str:
        return f"drift since query {self.since} or before" if self.alarm else "no drift found"

    def _facts(self) -> dict[str, str]:
        most = {"most unusual": f"{self.worst}, {self.direction}"} if self.n else {}
        return {
            "queries seen": str(self.n),
            "capital": f"{self.capital:.3g}; alarm at {1 / self.level:g}",
            **most,
        }


class Monitor:
    """Watches a stream of queries for drift; may be looked at after every one of them.

    >>> monitor = Monitor(reference)                             # doctest: +SKIP
    >>> monitor.update({"s": 0.3, "surprisal": 1.2}).alarm       # doctest: +SKIP

    Every *part* (a column; a pair of columns; how many values are known) is watched alone. A new
    value gets the smoothed conformal p-value of its rank among the reference and all seen before,
    p = (#{higher} + U·#{equal})/(n + 1), itself among the equal. Under exchangeability a part's
    p-values are independent and uniform, whatever the distribution. On them it bets: eight bets
    κ·v^(κ−1), κ = 0.3 and 0.7, one each on v = p, 1 − p, 1 − |2p−1| and |2p−1| being small: higher,
    lower, wider, narrower. ∫κ·v^(κ−1) = 1, so no bet has an expected gain. Half the capital is laid
    at once, the rest little by little, S(t) = 1/(2 + log(1 + t/50)) being kept after t queries: so
    the capital of a part is never below S(t), and a late change is found nearly as fast as an early
    one. A mixture of bets laid down beforehand is a martingale with mean 1.

    Alarm: the capital of one of the J parts reaches J/level. By Ville's inequality that has
    probability at most level/J for each part, however long one looks, and level for all together.
    The *average* over parts would be no martingale: each part's p-values are uniform given its own
    past, but not given the past of the others. (In the rows (1,1), (2,3), (3,2) the second p-values
    disagree only where the third row is the lowest.)

    A pair is watched through the product of its normal scores. Their scale is frozen from every
    third row of the reference, and the others are what new products are ranked among: a scale from
    the same rows would fit them better than the new ones, and p would not be uniform.

    A gap moves nothing in its column. Cost per query: J searches and insertions, 8·J bets.
    """

    def __init__(self, reference: Reference, *, level: float = 0.05, seed: int = 0) -> None:
        _enough(len(reference))
        self.reference = reference
        self.level = checks.fraction(level, "level")
        self.seed = seed
        self.parts = (*reference.names, *reference.pair_names, KNOWN)
        self._scale = [np.sort(v[~np.isnan(v)]) for v in reference.values[::3].T]
        self.reset()

    def reset(self) -> None:
        """Forget all but the reference, an alarm included."""
        n_columns, n_pairs = len(self.reference.names), len(self.reference.pair_indices)
        watched = self._watched(self.reference.values)
        watched[::3, n_columns : n_columns + n_pairs] = np.nan
        self._bags = [sorted(column[~np.isnan(column)].tolist()) for column in watched.T]
        self._log_laid = np.full((len(self.parts), 2 * len(DIRECTIONS)), _log_laid(0))
        self._rng = np.random.default_rng(self.seed)
        self._seen: list[FloatArray] = []
        self._n = 0
        self._since: int | None = None

    def update(self, columns: Mapping[str, Any]) -> MonitorState:
        """See one query (numbers) or several (arrays), in their order."""
        rows = self.reference.rows(columns)
        self._seen.append(rows)
        for first in range(0, len(rows), LOOKS):
            self._look(self._watched(rows[first : first + LOOKS]))
        return self.state

    def _look(self, watched: FloatArray) -> None:
        chance = 1.0 - self._rng.random(watched.shape)
        p = np.column_stack([
            [conformal_p(bag, value, u) for value, u in zip(values, chances, strict=True)]
            for bag, values, chances in zip(
                self._bags, watched.T.tolist(), chance.T.tolist(), strict=True
            )
        ])  # fmt: skip
        laid = capitals(self._log_laid, log_bets(p), self._n)
        left = np.log([kept(self._n + 1 + k) for k in range(len(p))])
        best = _log_capital(laid, left).max(axis=1)
        above = np.flatnonzero(best >= -np.log(self.level))
        if self._since is None and len(above):
            self._since = self._n + 1 + int(above[0])
        self._log_laid, self._n = laid[-1], self._n + len(p)

    @property
    def state(self) -> MonitorState:
        """Where it stands."""
        capital = _log_capital(self._log_laid, np.log(kept(self._n)))
        worst = int(np.argmax(capital))
        won = np.logaddexp.reduce(self._log_laid[worst].reshape(len(DIRECTIONS), -1), axis=1)
        return MonitorState(
            n=self._n,
            capital=float(np.exp(min(capital[worst], 700.0))),
            alarm=self._since is not None,
            since=self._since,
            worst=self.parts[worst],
            direction=DIRECTIONS[int(np.argmax(won))],
            level=self.level,
        )

    @property
    def seen(self) -> dict[str, FloatArray]:
        """All it has seen: a new monitor that is given this is where this one is."""
        none = np.empty((0, len(self.reference.names)))
        rows = np.vstack([none, *self._seen])
        return dict(zip(self.reference.names, rows.T, strict=True))

    def _watched(self, rows: FloatArray) -> FloatArray:
        """What is watched of each row: its values, products of normal scores, and how many."""
        z = np.column_stack([
            normal_scores(column, scale)
            for column, scale in zip(rows.T, self._scale, strict=True)
        ])  # fmt: skip
        products = [z[:, i] * z[:, j] for i, j in self.reference.pair_indices]
        n_known = (~np.isnan(rows)).sum(axis=1).astype(np.float64)
        return np.column_stack([rows, *products, n_known])


def conformal_p(bag: list[float], value: float, chance: float) -> float:
    """The smoothed p-value of ``value``, which then joins the sorted ``bag``; NaN of a gap."""
    if value != value:
        return float("nan")
    low = bisect_left(bag, value)
    high = bisect_right(bag, value, lo=low)
    p = (len(bag) - high + chance * (high - low + 1)) / (len(bag) + 1)
    bag.insert(high, value)
    return p


def log_bets(p: FloatArray) -> FloatArray:
    """log κ·v^(κ−1) of p [...]: [..., 8], both κ for each of the directions; 0 where p is NaN."""
    extreme = np.abs(2 * p - 1)
    v = np.stack([p, 1 - p, 1 - extreme, extreme], axis=-1)
    log_v = np.log(np.maximum(v, 1e-12))  # the bets fall in v: what is cut off is only lost
    bets = np.log(POWERS) + (POWERS - 1) * log_v[..., None]
    return np.where(np.isnan(p)[..., None], 0.0, bets.reshape(*p.shape, -1))


def capitals(log_laid: FloatArray, gains: FloatArray, n: int) -> FloatArray:
    """log of the capital on each bet [J, 8] after each of the queries n + 1, n + 2, …: [N, J, 8].

    L_t = log(exp(L_{t−1}) + laid_t) + gain_t, with the gains [N, J, 8] summed first: C_t = Σ gain,
    L_t = C_t + log(exp(L_0) + Σ_{r≤t} laid_r·exp(−C_{r−1})).
    """
    total = np.cumsum(gains, axis=0)
    before = np.concatenate([np.zeros((1, *log_laid.shape)), total[:-1]])
    added = np.array([_log_laid(n + 1 + k) for k in range(len(gains))])[:, None, None] - before
    added[0] = np.logaddexp(added[0], log_laid)
    return np.asarray(total + np.logaddexp.accumulate(added, axis=0))


def _log_capital(log_laid: FloatArray, log_kept: Any) -> FloatArray:
    """log of the capital of each part, over the number of parts; of bets [..., J, 8]."""
    top = log_laid.max(axis=-1)
    laid = top + np.log(np.exp(log_laid - top[..., None]).sum(axis=-1))
    return np.asarray(np.logaddexp(laid, np.asarray(log_kept)[..., None]) - np.log(laid.shape[-1]))


def kept(n: int) -> float:
    """The share of the capital that is not laid on any bet after n queries."""
    return 1 / (2 + math.log1p(n / 50))


def _log_laid(n: int) -> float:
    """log of what is laid on each bet before query n, or at first (n = 0)."""
    laid = kept(n - 1) - kept(n) if n else 1 - kept(0)
    return math.log(laid / (2 * len(DIRECTIONS)))


def normal_scores(values: FloatArray, scale: FloatArray) -> FloatArray:
    """Φ⁻¹ of the rank of each value among the sorted ``scale``, midranks for ties."""
    from scipy.special import ndtri

    below, upto = (np.searchsorted(scale, values, side=side) for side in ("left", "right"))
    scores = ndtri((0.5 * (below + upto) + 0.5) / (len(scale) + 1))
    return np.asarray(np.where(np.isnan(values), np.nan, scores))
