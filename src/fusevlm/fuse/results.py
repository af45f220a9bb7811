"""What Fuse returns: scores, and decisions with their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed
from fusevlm.fuse.presets import Options
from fusevlm.fuse.thresholds import GroupThresholds, Threshold

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class _Columns(Displayed):
    """One row per query: what :class:`Scores` and :class:`Decisions` share."""

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.columns()["u"])

    def to_pandas(self) -> pd.DataFrame:
        """One row per query as a pandas DataFrame (extra ``frames``)."""
        frames = checks.extra("pandas", "to_pandas()", "frames")
        table: pd.DataFrame = frames.DataFrame(self.columns())
        return table

    def to_arrow(self) -> pa.Table:
        """One row per query as an Arrow table (extra ``frames``)."""
        return checks.extra("pyarrow", "to_arrow()", "frames").table(self.columns())

    def _title(self) -> str:
        return f"{type(self).__name__} of {len(self)} queries"


@dataclass(frozen=True, eq=False, repr=False)
class Scores(_Columns):
    """Per-query results; every array has one entry per query.

    m0, sigma0            the prior of u, N(m0, sigma0²), from the input alone
    evidence              one number for all evidence, N(intercept + slope·u, tau2) given u
    intercept, slope      how the evidence depends on u
    tau2                  its variance
    m_post, sigma_post    the posterior of u: prior and evidence together
    u                     the score u* = m_post + z·sigma_post; higher is less sure
    prior_weight          the prior's share of the posterior's precision
    n_samples             sampled answers
    n_distinct            different ones among them
    novelty               p-value of being like the calibration queries; NaN: not judged
    strangest             the side of the input that comes from
    jitter                absolute, added before the weights; NaN where no log-det was taken
    parts                 raw evidence by name
    shares                of each, its share of the precision
    sources               what each source adds to m_post (:mod:`fusevlm.fuse.explain`)
    sides                 how strange the picture is, and the question
    fit                   which fit made them; another fit's are refused

    m_post and sigma_post follow from the other columns by one update (:mod:`fusevlm.maths.fusion`):
    the evidence is N(intercept + slope·u, tau2) and the prior N(m0, sigma0²). For the ``paper``
    preset evidence is Ṽ and slope is n; for ``practical`` it is the reduced vector, slope 1.
    """

    m0: FloatArray
    sigma0: FloatArray
    evidence: FloatArray
    intercept: FloatArray
    slope: FloatArray
    tau2: FloatArray
    m_post: FloatArray
    sigma_post: FloatArray
    u: FloatArray
    prior_weight: FloatArray
    n_samples: IntArray
    n_distinct: IntArray
    novelty: FloatArray
    strangest: tuple[str, ...]
    jitter: FloatArray
    parts: Mapping[str, FloatArray] = field(default_factory=dict)
    shares: Mapping[str, FloatArray] = field(default_factory=dict)
    sources: Mapping[str, FloatArray] = field(default_factory=dict)
    sides: Mapping[str, FloatArray] = field(default_factory=dict)
    fit: str = ""

    def take(self, rows: Sequence[int]) -> Scores:
        """The scores of some queries, by their row numbers."""
        index = list(rows)
        changes: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Mapping):
                changes[one.name] = {name: v[index] for name, v in value.items()}
            elif isinstance(value, tuple):
                changes[one.name] = tuple(value[i] for i in index)
            elif isinstance(value, np.ndarray):
                changes[one.name] = value[index]
        return replace(self, **changes)

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All columns by name, one entry per query each.

        Of evidence ``evidence_NAME`` and ``share_NAME``, of sources ``added_NAME``, of sides
        ``side_NAME``.
        """
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "fit"}
        flat["strangest"] = np.array(self.strangest, dtype=str)
        parts, shares, sources = flat.pop("parts"), flat.pop("shares"), flat.pop("sources")
        sides = flat.pop("sides")
        flat |= {f"evidence_{name}": values for name, values in parts.items()}
        flat |= {f"share_{name}": values for name, values in shares.items()}
        flat |= {f"added_{name}": values for name, values in sources.items()}
        flat |= {f"side_{name}": values for name, values in sides.items()}
        return flat

    def _novel(self) -> str:
        if np.isnan(self.novelty).any():
            return "not judged"
        return f"p ≤ .01 of {int(np.sum(self.novelty <= 0.01))} queries"

    def _facts(self) -> dict[str, str]:
        return {
            "u": f"{self.u.min():.3g} to {self.u.max():.3g}, mean {self.u.mean():.3g}",
            "evidence": ", ".join(self.parts) or "unnamed",
            "prior's weight": f"{np.median(self.prior_weight):.3g} (median)",
            "novelty": self._novel(),
        }


ANSWERED, UNCERTAIN, LIKELY_WRONG = "", "too uncertain", "too likely wrong"
NOTHING_CERTIFIED, UNLIKE = "nothing certified", "unlike the calibration"


@dataclass(frozen=True, eq=False, repr=False)
class Decisions(_Columns):
    """Answer or abstain, per query, why, and the rule that decided.

    answer     True: answer; False: abstain
    u          the score u*
    p_wrong    P(wrong) of each answer; NaN: the fit had no labels for it
    reason     why it is not answered; empty where it is
    threshold  the rule: a :class:`Threshold`, or :class:`GroupThresholds`

    The reasons are ``too uncertain`` (u* > θ), ``too likely wrong`` (P(wrong) above the cap),
    ``unlike the calibration (image)``, or question (novel), and ``nothing certified`` (no θ keeps
    the wanted risk).
    """

    answer: BoolArray
    u: FloatArray
    p_wrong: FloatArray
    reason: tuple[str, ...]
    threshold: Threshold | GroupThresholds

    @property
    def abstain(self) -> BoolArray:
        """Where the answer is not given."""
        return ~self.answer

    @property
    def coverage(self) -> float:
        """Share of these queries that is answered."""
        return float(np.mean(self.answer))

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """u, P(wrong), the decision and its reason, of each query."""
        return {
            "u": self.u,
            "p_wrong": self.p_wrong,
            "answer": self.answer,
            "reason": np.array(self.reason, dtype=str),
        }

    def _facts(self) -> dict[str, str]:
        answered = f"{int(self.answer.sum())} of {len(self)} ({self.coverage:.1%})"
        reasons = Counter(reason for reason in self.reason if reason)
        refused = {f"abstained, {reason}": str(n) for reason, n in reasons.most_common()}
        return {"answered": answered, **refused, **self.threshold.facts()}


def eligible(p_wrong: FloatArray, novelty: FloatArray, options: Options) -> BoolArray:
    """Queries that may be answered at all: P(wrong) at most the cap, and not novel."""
    return np.asarray(~(p_wrong > options.cap) & ~(novelty <= options.novelty_level))  # NaN: may


def decisions(
    scores: Scores,
    p_wrong: FloatArray,
    limits: FloatArray,
    threshold: Threshold | GroupThresholds,
    options: Options,
) -> Decisions:
    """Answer what is eligible with u* ≤ θ; of the rest, the first reason that holds."""
    novel = scores.novelty <= options.novelty_level
    unlike = [f"{UNLIKE} ({side})" for side in scores.strangest]
    reason = np.select(
        [novel, limits == -np.inf, p_wrong > options.cap, scores.u > limits],
        [np.array(unlike), NOTHING_CERTIFIED, LIKELY_WRONG, UNCERTAIN],
        ANSWERED,
    )
    answer = eligible(p_wrong, scores.novelty, options) & (scores.u <= limits)
    return Decisions(answer, scores.u, p_wrong, tuple(map(str, reason)), threshold)
