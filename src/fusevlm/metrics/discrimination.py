"""How well the uncertainty ``u`` separates wrong answers (the positive class) from right ones.

Each metric exists once, as ``<name>_counts(u, wrong, counts)``: counts (..., N) in, values (...)
out, NaN for a resample with only one class. The public function is the case of all ones and
raises instead of returning NaN. Cost O(N log N) for the sort and O(N) per resample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed, html_curve
from fusevlm.metrics._inputs import defined, every_row_once, on_data, rate, scored
from fusevlm.metrics._tally import tally, total

# Two ROC points count as equally far from the wanted FPR when they differ by rounding only.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RocCurve(Displayed):
    """The ROC from (0, 0) to (1, 1): an answer is flagged when its u >= threshold.

    ``fpr`` and ``tpr`` have shape (..., G + 1) and ``thresholds`` (G + 1,), for G distinct values
    of u; the first threshold is infinite (nothing is flagged).
    """

    fpr: FloatArray
    tpr: FloatArray
    thresholds: FloatArray

    def _title(self) -> str:
        return "wrong answers flagged against right ones"

    def _facts(self) -> dict[str, str]:
        area = np.mean(np.sum(np.diff(self.fpr) * (self.tpr[..., 1:] + self.tpr[..., :-1]), -1)) / 2
        return {"points": f"{len(self.thresholds):,}", "area": f"{area:.3f}"}

    def _chart(self) -> str:
        if self.tpr.ndim > 1:
            return ""  # of many resamples
        return html_curve(
            zip(self.fpr, self.tpr, strict=True),
            across="right ones flagged",
            up="wrong ones flagged",
            diagonal=True,
        )


def auroc(u: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the ROC: P(u of a wrong answer > u of a right one) + P(equal) / 2.

    With n1 wrong and n0 right answers, sum_{i wrong, j right} (1[u_i > u_j] + 1[u_i = u_j] / 2)
    / (n1 n0), counted by tie groups in exact integers.
    """
    return on_data(auroc_counts, *scored(u, wrong))


def auroc_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``auroc`` of each resample."""
    at = tally(u, wrong, counts)
    # A wrong answer beats every right one in lower groups and half of those in its own.
    twice_beaten = 2 * np.cumsum(at.right, axis=-1) - at.right
    twice_wins = total(at.wrong * twice_beaten)
    twice_pairs = 2.0 * total(at.right) * total(at.wrong)
    return twice_wins / np.where(twice_pairs > 0, twice_pairs, np.nan)


def roc_curve(u: ArrayLike, wrong: ArrayLike) -> RocCurve:
    """The ROC with one point per distinct u, after the point where nothing is flagged."""
    score, label = scored(u, wrong)
    curve = roc_counts(score, label, every_row_once(label))
    defined(curve.tpr[-1], "roc_curve", label)
    return curve


def roc_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> RocCurve:
    """``roc_curve`` of each resample; values of u that were not drawn repeat a point."""
    at = tally(u, wrong, counts)
    false_flags = _flagged(at.right)
    true_flags = _flagged(at.wrong)
    n_right, n_wrong = false_flags[..., -1:], true_flags[..., -1:]
    undefined = (n_right == 0) | (n_wrong == 0)
    return RocCurve(
        fpr=false_flags / np.where(undefined, np.nan, n_right),
        tpr=true_flags / np.where(undefined, np.nan, n_wrong),
        thresholds=np.concatenate(([np.inf], at.value[::-1])),
    )


def tpr_at_fpr(u: ArrayLike, wrong: ArrayLike, fpr: float) -> float:
    """Share of the wrong answers flagged when a share ``fpr`` of the right ones is.

    Linear between neighbouring ROC points, (f_k, t_k) being the last one with f_k <= fpr:
    t_k + (t_{k+1} - t_k) (fpr - f_k) / (f_{k+1} - f_k). On a vertical segment that is its top.
    """
    return on_data(tpr_at_fpr_counts, *scored(u, wrong), fpr=fpr)


def tpr_at_fpr_counts(
    u: FloatArray, wrong: BoolArray, counts: IntArray, *, fpr: float
) -> FloatArray:
    """``tpr_at_fpr`` of each resample."""
    wanted = rate(fpr, "fpr")
    curve = roc_counts(u, wrong, counts)
    left, right = _points_around(curve, wanted)
    run = _pick(curve.fpr, right) - _pick(curve.fpr, left)
    rise = _pick(curve.tpr, right) - _pick(curve.tpr, left)
    slope = np.divide(rise, run, out=np.zeros_like(run), where=run > 0)
    return _pick(curve.tpr, left) + slope * (wanted - _pick(curve.fpr, left))


def tpr_at_fpr_nearest(u: ArrayLike, wrong: ArrayLike, fpr: float) -> float:
    """TPR of the ROC point whose FPR is nearest to ``fpr``; a variant of ``tpr_at_fpr``.

    Of two equally near FPRs the lower one is taken, of several points at that FPR the highest.
    Differs from ``argmin(abs(fpr - wanted))`` on a list of points, which takes the lowest.
    """
    return on_data(tpr_at_fpr_nearest_counts, *scored(u, wrong), fpr=fpr)


def tpr_at_fpr_nearest_counts(
    u: FloatArray, wrong: BoolArray, counts: IntArray, *, fpr: float
) -> FloatArray:
    """``tpr_at_fpr_nearest`` of each resample."""
    wanted = rate(fpr, "fpr")
    curve = roc_counts(u, wrong, counts)
    lower, upper = (_pick(curve.fpr, at) for at in _points_around(curve, wanted))
    nearest = np.where(upper - wanted < wanted - lower - ROUNDING, upper, lower)
    return _pick(curve.tpr, _last_point_up_to(curve, nearest[..., None]))


def tpr_at_fpr_right(u: ArrayLike, wrong: ArrayLike, fpr: float) -> float:
    """``tpr_at_fpr`` with right answers as the positive class.

    Share of the right answers accepted (u low) when a share ``fpr`` of the wrong ones is. The paper
    says "correctness" is predicted, and does not say which class is positive.
    """
    return on_data(tpr_at_fpr_right_counts, *scored(u, wrong), fpr=fpr)


def tpr_at_fpr_right_counts(
    u: FloatArray, wrong: BoolArray, counts: IntArray, *, fpr: float
) -> FloatArray:
    """``tpr_at_fpr_right`` of each resample."""
    return tpr_at_fpr_counts(-u, ~wrong, counts, fpr=fpr)


def _flagged(at: IntArray) -> IntArray:
    """How many are flagged (..., G + 1) as the threshold falls past each group of ``at``."""
    nothing = np.zeros((*at.shape[:-1], 1), dtype=np.int64)
    return np.concatenate((nothing, np.cumsum(at[..., ::-1], axis=-1)), axis=-1)


def _points_around(curve: RocCurve, fpr: float) -> tuple[IntArray, IntArray]:
    """The last ROC point with FPR <= ``fpr`` and the one after it, if there is one."""
    left = _last_point_up_to(curve, fpr)
    return left, np.minimum(left + 1, curve.thresholds.size - 1)


def _last_point_up_to(curve: RocCurve, fpr: float | FloatArray) -> IntArray:
    """Index (..., 1) of the last ROC point with FPR <= ``fpr``, the highest TPR among equals.

    Rates are compared, not counts against ``fpr * n``: 29 / 100 is the float 0.29 exactly, but
    0.29 * 100 is below 29.
    """
    n_up_to: IntArray = np.sum(curve.fpr <= fpr, axis=-1, keepdims=True)
    return np.maximum(n_up_to - 1, 0)


def _pick(points: FloatArray, index: IntArray) -> FloatArray:
    """The entry of each resample's ``points`` (..., G + 1) at ``index`` (..., 1)."""
    return np.take_along_axis(points, index, axis=-1)[..., 0]
