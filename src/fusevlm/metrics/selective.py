"""What is gained by keeping the answers the model is most certain of and rejecting the rest.

Each metric exists once, as ``<name>_counts(u, wrong, counts)``: counts (..., N) in, values (...)
out, NaN where undefined. The public function is the case of all ones and raises instead of
returning NaN. Cost O(N log N) for the sort and O(N) per resample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed, html_curve
from fusevlm.metrics._inputs import every_row_once, on_data, scored
from fusevlm.metrics._tally import Tally, tally, total


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RiskCoverage(Displayed):
    """Keeping u <= ``threshold`` keeps a share ``coverage``, of which a share ``risk`` is wrong.

    One point per distinct u, coverage rising to 1.
    """

    coverage: FloatArray
    risk: FloatArray
    threshold: FloatArray

    def _title(self) -> str:
        return "error rate among the answered"

    def _facts(self) -> dict[str, str]:
        return _at_shares("answered", (0.25, 0.5, 0.75, 1.0), self.coverage, self.risk)

    def _chart(self) -> str:
        return html_curve(
            zip(self.coverage, self.risk, strict=True), across="share answered", up="error rate"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RejectionAccuracy(Displayed):
    """Rejecting u > ``threshold`` rejects a share ``rejection`` and leaves this ``accuracy``.

    One point per distinct u, rejection rising from 0.
    """

    rejection: FloatArray
    accuracy: FloatArray
    threshold: FloatArray

    def _title(self) -> str:
        return "accuracy of what is kept"

    def _facts(self) -> dict[str, str]:
        return _at_shares("rejected", (0.0, 0.25, 0.5, 0.75), self.rejection, self.accuracy)

    def _chart(self) -> str:
        return html_curve(
            zip(self.rejection, self.accuracy, strict=True), across="share rejected", up="accuracy"
        )


def _at_shares(
    word: str, wanted: tuple[float, ...], shares: FloatArray, values: FloatArray
) -> dict[str, str]:
    """The curve at the points nearest to the ``wanted`` shares."""
    nearest = (int(np.argmin(np.abs(shares - share))) for share in wanted)
    return {f"{shares[k]:.0%} {word}": f"{values[k]:.3f}" for k in nearest}


def base_accuracy(u: ArrayLike, wrong: ArrayLike) -> float:
    """Share of right answers when nothing is rejected: 1 - mean(wrong).

    The value of ``u`` plays no part; it is an argument so that all metrics are called alike.
    """
    return on_data(base_accuracy_counts, *scored(u, wrong))


def base_accuracy_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``base_accuracy`` of each resample."""
    return total(counts * ~wrong) / total(counts)


def aurac(u: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the rejection-accuracy curve: (1/N) sum_{k=1..N} accuracy of the k most certain.

    Equal u are taken in random order and the accuracy is its expectation over that order: within
    a tie group the number of errors grows linearly with k. So the order of the input is immaterial.
    """
    return on_data(aurac_counts, *scored(u, wrong))


def aurac_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``aurac`` of each resample."""
    return 1.0 - aurc_counts(u, wrong, counts)


def aurc(u: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the risk-coverage curve: (1/N) sum_{k=1..N} error rate of the k most certain.

    Equal to 1 - ``aurac``, with ties treated as there.
    """
    return on_data(aurc_counts, *scored(u, wrong))


def aurc_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``aurc`` of each resample."""
    at = tally(u, wrong, counts)
    return _mean_risk(at.right, at.wrong)


def e_aurc(u: ArrayLike, wrong: ArrayLike) -> float:
    """Excess AURC: AURC minus that of the oracle, which ranks all right answers before all wrong.

    0 for a perfect ranking. When all answers are right, or all wrong, every ranking is perfect.
    """
    return on_data(e_aurc_counts, *scored(u, wrong))


def e_aurc_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``e_aurc`` of each resample."""
    return aurc_counts(u, wrong, counts) - _oracle_aurc(wrong, counts)


def prr(u: ArrayLike, wrong: ArrayLike) -> float:
    """Prediction rejection ratio: (AURC_random - AURC) / (AURC_random - AURC_oracle).

    AURC_random is the base error rate, the expected risk of a random ranking at any coverage.
    1 for a perfect ranking, 0 for a random one, negative below that. Differs from LM-Polygraph:
    the whole curve counts, no part of high rejection rates is cut off.
    """
    return on_data(prr_counts, *scored(u, wrong))


def prr_counts(u: FloatArray, wrong: BoolArray, counts: IntArray) -> FloatArray:
    """``prr`` of each resample."""
    n_wrong = total(counts * wrong)
    n_rows = total(counts)
    random = n_wrong / n_rows
    both = (n_wrong > 0) & (n_wrong < n_rows)
    best_gain = np.where(both, random - _oracle_aurc(wrong, counts), np.nan)
    return (random - aurc_counts(u, wrong, counts)) / best_gain


def risk_coverage(u: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """Risk against coverage, as the threshold on u rises through its distinct values."""
    at, kept = _kept(u, wrong)
    return RiskCoverage(
        coverage=kept / kept[-1], risk=np.cumsum(at.wrong) / kept, threshold=at.value
    )


def rejection_accuracy(u: ArrayLike, wrong: ArrayLike) -> RejectionAccuracy:
    """Accuracy of what is kept against the share rejected, as the threshold on u falls."""
    at, kept = _kept(u, wrong)
    return RejectionAccuracy(
        rejection=((kept[-1] - kept) / kept[-1])[::-1],
        accuracy=(np.cumsum(at.right) / kept)[::-1],
        threshold=at.value[::-1],
    )


def _kept(u: ArrayLike, wrong: ArrayLike) -> tuple[Tally, IntArray]:
    """Right and wrong answers at each distinct u, and how many have no larger one."""
    score, label = scored(u, wrong)
    at = tally(score, label, every_row_once(label))
    return at, np.cumsum(at.right + at.wrong)


def _mean_risk(right: IntArray, wrong: IntArray) -> FloatArray:
    """Mean over k of the expected error rate among the first k; groups (..., G) come in order.

    A group of w answers, e of them wrong, after W answers with E errors adds, with rho = e / w,

        sum_{j=1..w} (E + j rho) / (W + j) = rho w + (E - rho W) (H[W + w] - H[W]),

    where H[n] = sum_{i=1..n} 1/i. A group that was not drawn adds 0.
    """
    w, e = right + wrong, wrong
    end = np.cumsum(w, axis=-1)
    W = end - w
    E = np.cumsum(e, axis=-1) - e
    rho = e / np.maximum(w, 1)
    H = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, end.max() + 1))))
    return total(e + (E - rho * W) * (H[end] - H[W])) / end[..., -1]


def _oracle_aurc(wrong: BoolArray, counts: IntArray) -> FloatArray:
    """AURC of the ranking by the label itself."""
    return aurc_counts(wrong.astype(np.float64), wrong, counts)
