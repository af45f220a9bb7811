"""Is a batch of queries like those of the calibration? A test of columns, in exact level.

*Columns* (evidence, prior statistics, components of inputs) of new queries are compared with those
of calibration queries that were scored exactly like new ones. No label is needed, and the level is
kept exactly, whatever the distribution: under exchangeability :func:`check` calls drift in at most
``level`` of all batches. For a stream see :mod:`fusevlm.fuse.monitor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.displays import Displayed
from fusevlm.errors import InputError

LEAST_REFERENCE, LEAST_NEW = 20, 5
BLOCK = 4_000_000  # entries of the permutations that are held at once

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

    name       of the part
    direction  ``higher`` or ``lower`` (the median, the rank correlation of a pair, the share of
               queries of which a column is known), ``wider`` or ``narrower`` (the interquartile
               range), ``otherwise`` (the shape; the medians are told)
    p_value    adjusted: the chance to name any part wrongly is at most the level
    measure    what ``before`` and ``now`` are of
    before     among the calibration queries
    now        among the new ones
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
    """Whether new queries are like those of the calibration, and what moved.

    p_value      of the whole: how often queries like those of the calibration look so different
    drifted      whether it is at most the level
    level        the chance to find drift where there is none
    moved        the parts that moved, the most certain first
    n_reference  calibration queries compared with
    n_new        queries compared
    """

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
    enough(len(reference), len(new))
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


def enough(n: int, m: int = LEAST_NEW) -> None:
    """Refuse to compare too few queries."""
    if n < LEAST_REFERENCE or m < LEAST_NEW:
        raise InputError(
            f"{m} new queries cannot be compared with {n} of the reference: at least {LEAST_NEW} "
            f"and {LEAST_REFERENCE} are needed. Wait for more queries, or keep more apart."
        )
