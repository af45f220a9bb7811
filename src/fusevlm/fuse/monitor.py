"""Is a stream of queries like the calibration's? A monitor that may be looked at at any time.

It keeps its level exactly, whatever the distribution: under exchangeability :class:`Monitor` gives
an alarm in at most ``level`` of all streams, however long one looks, and needs no label.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.displays import Displayed
from fusevlm.fuse.drift import Reference, enough

KNOWN = "known values"  # the part that counts what was asked of a query
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
    level      at most this share of all streams without drift ever gives an alarm
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
        enough(len(reference))
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
