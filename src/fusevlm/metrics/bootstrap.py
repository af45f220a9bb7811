"""Bootstrap intervals for one metric, and for the difference of two scores on the same queries.

The metrics of this package are evaluated on all resamples at once, from row counts; any other
``metric(u, wrong)`` is called once per resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed
from fusevlm.errors import InputError, UndefinedMetricError
from fusevlm.metrics import calibration as cal
from fusevlm.metrics import discrimination as dis
from fusevlm.metrics import selective as sel
from fusevlm.metrics._inputs import scored

Metric = Callable[..., float]
CountsForm = Callable[..., FloatArray]

# name -> (public function, the same metric on resample counts)
METRICS: dict[str, tuple[Metric, CountsForm]] = {
    "auroc": (dis.auroc, dis.auroc_counts),
    "tpr_at_fpr": (dis.tpr_at_fpr, dis.tpr_at_fpr_counts),
    "tpr_at_fpr_nearest": (dis.tpr_at_fpr_nearest, dis.tpr_at_fpr_nearest_counts),
    "tpr_at_fpr_right": (dis.tpr_at_fpr_right, dis.tpr_at_fpr_right_counts),
    "ece": (cal.ece, cal.ece_counts),
    "ece_folded": (cal.ece_folded, cal.ece_folded_counts),
    "brier": (cal.brier, cal.brier_counts),
    "pearson_calibration": (cal.pearson_calibration, cal.pearson_calibration_counts),
    "spearman_calibration": (cal.spearman_calibration, cal.spearman_calibration_counts),
    "base_accuracy": (sel.base_accuracy, sel.base_accuracy_counts),
    "aurac": (sel.aurac, sel.aurac_counts),
    "aurc": (sel.aurc, sel.aurc_counts),
    "e_aurc": (sel.e_aurc, sel.e_aurc_counts),
    "prr": (sel.prr, sel.prr_counts),
}

# Resamples are drawn in chunks of at most this many counts (16 MB), or one resample.
MAX_COUNTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Interval(Displayed):
    """A metric with its percentile interval, from the resamples on which it is defined."""

    estimate: float  # on the data itself
    low: float  # end of the interval
    high: float  # end of the interval
    level: float  # of the interval, such as 0.95
    n_boot: int  # resamples
    n_undefined: int  # resamples on which the metric has no value

    def _title(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def _facts(self) -> dict[str, str]:
        return {
            "estimate": f"{self.estimate:.3f}",
            f"{self.level:.0%} interval": f"{self.low:.3f} to {self.high:.3f}",
            "resamples": _resamples_used(self.n_boot, self.n_undefined),
        }


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """Metric of score a minus metric of score b, with its percentile interval and p-value."""

    estimate_a: float  # metric of score a
    estimate_b: float  # metric of score b
    difference: float  # a minus b
    low: float  # end of the interval of the difference
    high: float  # end of the interval of the difference
    p_value: float  # two-sided, of no difference
    level: float  # of the interval, such as 0.95
    n_boot: int  # resamples
    n_undefined: int  # resamples on which the metric has no value

    def _title(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    def _facts(self) -> dict[str, str]:
        return {
            "a, b": f"{self.estimate_a:.3f}, {self.estimate_b:.3f}",
            "a − b": f"{self.difference:+.3f}",
            f"{self.level:.0%} interval": f"{self.low:+.3f} to {self.high:+.3f}",
            "p-value of no difference": f"{self.p_value:.3g}",
            "resamples": _resamples_used(self.n_boot, self.n_undefined),
        }


def _resamples_used(n_boot: int, n_undefined: int) -> str:
    return f"{n_boot:,}" + f", undefined on {n_undefined:,} of them" * bool(n_undefined)


def bootstrap(
    metric: str | Metric,
    u: ArrayLike,
    wrong: ArrayLike,
    *,
    units: Iterable[Any] | None = None,
    n_boot: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **metric_options: Any,
) -> Interval:
    """``metric(u, wrong, **metric_options)`` with its percentile interval.

    The interval runs from the (1 - level)/2 to the (1 + level)/2 quantile of the metric over
    ``n_boot`` resamples. Rows are drawn with replacement; with ``units`` (one id per row, such as
    the image) whole units are, as many as there are. ``metric`` is a function of this package or
    its name (``u`` is then ``p`` for those that judge a probability), or your own
    function of (u, wrong) that raises UndefinedMetricError or returns NaN where it is undefined.
    """
    score, label = scored(u, wrong)
    level = checks.fraction(level, "level")
    (estimate,), (values,) = _resampled(metric, [score], label, units, n_boot, seed, metric_options)
    kept = _defined_resamples(values)
    low, high = _percentile_interval(kept, level)
    return Interval(estimate, low, high, level, values.size, values.size - kept.size)


def paired_bootstrap(
    metric: str | Metric,
    u_a: ArrayLike,
    u_b: ArrayLike,
    wrong: ArrayLike,
    *,
    units: Iterable[Any] | None = None,
    n_boot: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **metric_options: Any,
) -> Difference:
    """``metric(u_a, wrong) - metric(u_b, wrong)``, both on the same resamples.

    The two-sided p-value of "no difference" is 2 min(#{d <= 0} + 1, #{d >= 0} + 1) / (n + 1), at
    most 1, over the n resampled differences d. The arguments are those of ``bootstrap``.
    """
    score_a, label = scored(u_a, wrong, "u_a")
    score_b = checks.vector(u_b, "u_b", length=score_a.size)
    level = checks.fraction(level, "level")
    (a, b), (values_a, values_b) = _resampled(
        metric, [score_a, score_b], label, units, n_boot, seed, metric_options
    )
    kept = _defined_resamples(values_a - values_b)
    low, high = _percentile_interval(kept, level)
    n_boot = values_a.size
    p_value = _sign_p_value(kept)
    return Difference(a, b, a - b, low, high, p_value, level, n_boot, n_boot - kept.size)


def _resampled(
    metric: str | Metric,
    scores: Sequence[FloatArray],
    wrong: BoolArray,
    units: Iterable[Any] | None,
    n_boot: int,
    seed: int,
    options: dict[str, Any],
) -> tuple[list[float], list[FloatArray]]:
    """The metric of each score on the data itself, and (n_boot,) on the same resamples of it."""
    n_boot = checks.count(n_boot, "n_boot")
    public, counts_form = _resolve(metric)
    estimates = [_estimate(public, score, wrong, options) for score in scores]
    chunks = [
        [counts_form(score, wrong, counts, **options) for score in scores]
        for counts in _resamples(_unit_of_row(units, wrong.size), n_boot, seed)
    ]
    return estimates, [np.concatenate(values) for values in zip(*chunks, strict=True)]


def _resolve(metric: str | Metric) -> tuple[Metric, CountsForm]:
    """The public function and the counts form of a metric, of its name, or of a user's own."""
    if isinstance(metric, str):
        return METRICS[checks.choice(metric, "metric", list(METRICS))]
    for public, counts_form in METRICS.values():
        if metric is public:
            return public, counts_form
    if not callable(metric):
        raise InputError(
            f"metric is {metric!r}; expected a function of (u, wrong) or one of the names "
            f"{', '.join(METRICS)}."
        )
    return metric, _one_by_one(metric)


def _one_by_one(metric: Metric) -> CountsForm:
    """The counts form of any ``metric``: call it on the rows of each resample in turn."""

    def value(u: FloatArray, wrong: BoolArray, drawn: IntArray, options: dict[str, Any]) -> float:
        try:
            return float(metric(u[drawn], wrong[drawn].astype(np.int64), **options))
        except UndefinedMetricError:
            return math.nan

    def counts_form(
        u: FloatArray, wrong: BoolArray, counts: IntArray, **options: Any
    ) -> FloatArray:
        rows = np.arange(u.size)
        return np.array([value(u, wrong, np.repeat(rows, c), options) for c in counts])

    return counts_form


def _estimate(
    public: Metric, score: FloatArray, wrong: BoolArray, options: dict[str, Any]
) -> float:
    """The metric on the data itself."""
    estimate = float(public(score, wrong.astype(np.int64), **options))
    if math.isnan(estimate):
        raise UndefinedMetricError(
            f"the metric is NaN on the {wrong.size} answers themselves, {int(wrong.sum())} of them "
            f"wrong; an interval needs a value. Add labelled queries until it is defined."
        )
    return estimate


def _unit_of_row(units: Iterable[Any] | None, n_rows: int) -> IntArray:
    """The unit (N,) of each row as 0, 1, ... by first appearance; without ids, its own."""
    if units is None:
        codes = np.arange(n_rows)
    elif isinstance(units, np.ndarray) and units.dtype.kind in "iu" and len(units) == n_rows:
        codes = _by_appearance(units)
    else:
        ids = list(units)
        if len(ids) != n_rows:
            raise InputError(f"units has {len(ids)} id(s); expected {n_rows}, one per query.")
        seen: dict[Any, int] = {}
        try:
            codes = np.array([seen.setdefault(_checked_id(i), len(seen)) for i in ids])
        except TypeError as error:
            raise InputError(
                f"units holds an id that cannot be used ({error}). Pass one string, number or "
                f"tuple per query."
            ) from error
    if codes.max() == 0:
        raise InputError(
            "all rows are one unit; a bootstrap needs at least two to draw from. Pass more "
            "queries, or ids that tell their units apart."
        )
    return codes


def _by_appearance(numbers: IntArray) -> IntArray:
    """Numbers as 0, 1, ... in the order in which they first appear."""
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place]


def _checked_id(unit: Any) -> Any:
    """A unit's id, unless it is missing: None and NaN would make units of their own."""
    if unit is None or unit != unit:
        raise InputError(
            "units has a missing id (None or NaN); expected one per query. Give each query "
            "without a unit an id of its own."
        )
    return unit


def _resamples(unit_of_row: IntArray, n_boot: int, seed: int) -> Iterator[IntArray]:
    """Row counts of ``n_boot`` resamples, in chunks (n, N); the draws do not depend on the chunks.

    A resample draws K of the K units with replacement, so the counts are multinomial.
    """
    rng = np.random.default_rng(checks.count(seed, "seed", least=0))
    n_units = int(unit_of_row.max()) + 1
    chunk = max(1, MAX_COUNTS // unit_of_row.size)
    for done in range(0, n_boot, chunk):
        n = min(chunk, n_boot - done)
        drawn = rng.integers(n_units, size=(n, n_units))
        cell = drawn + n_units * np.arange(n)[:, None]
        counts = np.bincount(cell.ravel(), minlength=n * n_units).reshape(n, n_units)
        yield counts[:, unit_of_row]


def _defined_resamples(values: FloatArray) -> FloatArray:
    """The values that are not NaN, of which there must be some."""
    kept = values[~np.isnan(values)]
    if kept.size == 0:
        raise UndefinedMetricError(
            f"the metric is undefined on all {values.size} resamples, so it has no interval. Add "
            f"labelled queries (or units) of the rarer kind, right or wrong."
        )
    return kept


def _percentile_interval(values: FloatArray, level: float) -> tuple[float, float]:
    """The (1 - level)/2 and (1 + level)/2 quantiles."""
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def _sign_p_value(differences: FloatArray) -> float:
    """2 min(#{d <= 0} + 1, #{d >= 0} + 1) / (n + 1), at most 1."""
    rarer = min(int(np.sum(differences <= 0.0)), int(np.sum(differences >= 0.0)))
    return min(1.0, 2.0 * (rarer + 1) / (differences.size + 1))
