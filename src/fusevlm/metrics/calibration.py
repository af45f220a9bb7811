"""Whether the size of a score means what it says: predicted P(wrong) against observed errors.

``ece``, ``ece_folded``, ``brier`` and ``reliability`` judge a probability ``p`` of being wrong;
``pearson_calibration`` and ``spearman_calibration`` any uncertainty ``u``. Each metric exists once,
as ``<name>_counts(score, wrong, counts)``: counts (..., N) in, values (...) out, NaN where
undefined. The public function is the case of all ones and raises instead of returning NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed, html_curve
from fusevlm.metrics._inputs import every_row_once, on_data, predicted, scored
from fusevlm.metrics._tally import group, sum_by_group, tally, total

TWO_BINS = "two non-empty bins of u (so two distinct values) with different error rates"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReliabilityCurve(Displayed):
    """Non-empty bins ``low`` <= p < ``high`` (the last includes 1), all arrays of one length."""

    low: FloatArray  # where each bin begins
    high: FloatArray  # where it ends
    mean_p: FloatArray  # mean predicted P(wrong) in it
    error_rate: FloatArray  # share of wrong answers in it
    count: IntArray  # answers in it

    def _title(self) -> str:
        return "observed error rate against P(wrong)"

    def _facts(self) -> dict[str, str]:
        rows = zip(self.low, self.high, self.mean_p, self.error_rate, self.count, strict=True)
        return {
            f"{low:.2f} to {high:.2f}": f"P(wrong) {p:.3f}, wrong {rate:.3f}, of {count:,}"
            for low, high, p, rate, count in rows
        }

    def _chart(self) -> str:
        return html_curve(
            zip(self.mean_p, self.error_rate, strict=True), across="P(wrong)", up="error rate",
            diagonal=True, dots=True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _WidthBins:
    """Bins of equal width that hold any row: ``index`` (G,), the other sums (..., G)."""

    index: FloatArray
    size: IntArray
    sum_p: FloatArray
    wrong: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _MassBins:
    """Bins of equal mass, arrays (..., B); an empty bin has size 0 and means of 0."""

    size: IntArray
    mean_u: FloatArray
    error_rate: FloatArray


def ece(p: ArrayLike, wrong: ArrayLike, n_bins: int = 15) -> float:
    """Expected calibration error: sum_b (N_b / N) |mean p in bin b - error rate in bin b|.

    Bin b of B is [b/B, (b+1)/B), the last one closed. Differs from Guo et al. (2017): their bins
    are open on the left, so a p exactly on an edge falls one bin lower there.
    """
    return on_data(ece_counts, *predicted(p, wrong), n_bins=n_bins)


def ece_counts(
    p: FloatArray, wrong: BoolArray, counts: IntArray, *, n_bins: int = 15
) -> FloatArray:
    """``ece`` of each resample."""
    bins = _equal_width_bins(p, wrong, counts, n_bins)
    # N_b |mean p - error rate| = |sum p - number wrong|, so an empty bin adds 0.
    return total(np.abs(bins.sum_p - bins.wrong)) / total(counts)


def ece_folded(p: ArrayLike, wrong: ArrayLike, n_bins: int = 15) -> float:
    """ECE of the decision "wrong or right": confidence max(p, 1-p), hit (p >= 1/2) == wrong.

    A variant of ``ece``, with the same bins on [0, 1] (those below 1/2 stay empty). Folding lets
    errors at p and at 1-p cancel, so it may be smaller than ``ece``.
    """
    return on_data(ece_folded_counts, *predicted(p, wrong), n_bins=n_bins)


def ece_folded_counts(
    p: FloatArray, wrong: BoolArray, counts: IntArray, *, n_bins: int = 15
) -> FloatArray:
    """``ece_folded`` of each resample."""
    return ece_counts(np.maximum(p, 1.0 - p), (p >= 0.5) == wrong, counts, n_bins=n_bins)


def brier(p: ArrayLike, wrong: ArrayLike) -> float:
    """Brier score: (1/N) sum_i (p_i - wrong_i)^2."""
    return on_data(brier_counts, *predicted(p, wrong))


def brier_counts(p: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``brier`` of each resample."""
    return total(counts * (p - wrong) ** 2) / total(counts)


def reliability(p: ArrayLike, wrong: ArrayLike, n_bins: int = 15) -> ReliabilityCurve:
    """The reliability curve behind ``ece``: mean p and error rate of each non-empty bin."""
    score, label = predicted(p, wrong)
    bins = _equal_width_bins(score, label, every_row_once(label), n_bins)
    return ReliabilityCurve(
        low=bins.index / n_bins,
        high=(bins.index + 1.0) / n_bins,
        mean_p=bins.sum_p / bins.size,
        error_rate=bins.wrong / bins.size,
        count=bins.size,
    )


def pearson_calibration(u: ArrayLike, wrong: ArrayLike, n_bins: int = 15) -> float:
    """Pearson correlation of the mean u and the error rate over bins of u with equal mass.

    Sorted by u, the i-th of N answers (from 0) goes to bin floor((i + 1/2) B / N), so sizes
    differ by at most one. Equal values are never split: the whole tie group goes to the bin that
    its middle, W + w/2 for w answers after W smaller ones, falls in. With heavy ties some bins are
    then larger and others empty; empty bins are left out and the others weigh the same.
    """
    return on_data(pearson_calibration_counts, *scored(u, wrong), needs=TWO_BINS, n_bins=n_bins)


def pearson_calibration_counts(
    u: FloatArray, wrong: BoolArray, counts: IntArray, *, n_bins: int = 15
) -> FloatArray:
    """``pearson_calibration`` of each resample; bins are formed anew in each."""
    bins = _equal_mass_bins(u, wrong, counts, n_bins)
    return _correlation(bins.mean_u, bins.error_rate, bins.size > 0)


def spearman_calibration(u: ArrayLike, wrong: ArrayLike, n_bins: int = 15) -> float:
    """Spearman correlation of u and the error rate over the bins of ``pearson_calibration``.

    That is the Pearson correlation of the ranks, tied error rates sharing their mean rank.
    """
    return on_data(spearman_calibration_counts, *scored(u, wrong), needs=TWO_BINS, n_bins=n_bins)


def spearman_calibration_counts(
    u: FloatArray, wrong: BoolArray, counts: IntArray, *, n_bins: int = 15
) -> FloatArray:
    """``spearman_calibration`` of each resample; bins are formed anew in each."""
    from scipy.stats import rankdata

    bins = _equal_mass_bins(u, wrong, counts, n_bins)
    present = bins.size > 0
    u_rank = np.cumsum(present, axis=-1)  # bins are in the order of u
    # An infinite rate ranks the empty bins last, where they disturb no other rank.
    error_rank = rankdata(np.where(present, bins.error_rate, np.inf), axis=-1)
    return _correlation(u_rank.astype(np.float64), error_rank, present)


def _equal_width_bins(p: FloatArray, wrong: BoolArray, counts: IntArray, n_bins: int) -> _WidthBins:
    """Row counts, sums of p and errors per bin of [0, 1], for each resample."""
    n_bins = checks.count(n_bins, "n_bins")
    # Edges are b / B, not p * B rounded down: 0.58 is the edge 29/50, but 0.58 * 50 < 29.
    inner_edges = np.arange(1, n_bins) / n_bins
    groups = group(np.searchsorted(inner_edges, p, side="right").astype(np.float64))
    return _WidthBins(
        groups.key,
        size=sum_by_group(groups, counts),
        sum_p=sum_by_group(groups, counts * p),
        wrong=sum_by_group(groups, counts * wrong),
    )


def _equal_mass_bins(u: FloatArray, wrong: BoolArray, counts: IntArray, n_bins: int) -> _MassBins:
    """Bins along the sorted u of each resample; see ``pearson_calibration`` for the rule.

    The means are of u / max|u|, which changes no correlation and cannot overflow.
    """
    n_bins = checks.count(n_bins, "n_bins")
    at = tally(u, wrong, counts)
    size = at.right + at.wrong
    end = np.cumsum(size, axis=-1)
    twice_middle = 2 * end - size
    bin_of_group = twice_middle * n_bins // (2 * end[..., -1:])
    # Only a group that was not drawn (size 0) can lie at the very end, in bin B.
    bin_of_group = np.minimum(bin_of_group, n_bins - 1)

    scale = max(float(np.abs(u).max()), np.finfo(np.float64).tiny)
    bin_size = _sum_by_bin(bin_of_group, size, n_bins)
    divisor = np.maximum(bin_size, 1.0)
    return _MassBins(
        size=bin_size.astype(np.int64),
        mean_u=_sum_by_bin(bin_of_group, size * (at.value / scale), n_bins) / divisor,
        error_rate=_sum_by_bin(bin_of_group, at.wrong, n_bins) / divisor,
    )


def _sum_by_bin(bin_of_group: IntArray, values: FloatArray | IntArray, n_bins: int) -> FloatArray:
    """Sums (..., B) of ``values`` (..., G), whose bins may differ between resamples."""
    *batch, n_groups = bin_of_group.shape
    by_row = bin_of_group.reshape(-1, n_groups)
    cell = by_row + n_bins * np.arange(len(by_row))[:, None]
    sums = np.bincount(cell.ravel(), weights=values.ravel(), minlength=len(by_row) * n_bins)
    return np.asarray(sums, dtype=np.float64).reshape(*batch, n_bins)


def _correlation(x: FloatArray, y: FloatArray, present: BoolArray) -> FloatArray:
    """Pearson correlation (...) of the ``present`` entries of x and y (..., B); NaN if constant."""
    x, y = _centred(_unit_range(x, present), present), _centred(_unit_range(y, present), present)
    cosine = total(x * y) / np.sqrt(total(x * x) * total(y * y))
    return np.asarray(np.clip(cosine, -1.0, 1.0))  # beyond by rounding only


def _unit_range(x: FloatArray, present: BoolArray) -> FloatArray:
    """``present`` entries mapped linearly onto [0, 1]; NaN if all are equal, exactly then."""
    low: FloatArray = np.min(x, axis=-1, keepdims=True, where=present, initial=np.inf)
    high: FloatArray = np.max(x, axis=-1, keepdims=True, where=present, initial=-np.inf)
    return (x - low) / np.where(high > low, high - low, np.nan)


def _centred(x: FloatArray, present: BoolArray) -> FloatArray:
    """``x`` minus the mean of its ``present`` entries; absent entries are 0."""
    mean = np.mean(x, axis=-1, keepdims=True, where=present)
    return np.where(present, x - mean, 0.0)
