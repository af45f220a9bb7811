"""What a few labels of new data say: P(wrong) brought up to date, and whether a promise stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.displays import Displayed
from fusevlm.errors import InputError
from fusevlm.maths import bounds
from fusevlm.maths.logistic import sigmoid

LEVEL_SCALE, SLOPE_SCALE = 1.0, 0.5  # of the prior of a tilt
LEAST_SLOPE = 0.01
EDGE = 1e-6  # probabilities nearer to 0 or 1 than this count as this


@dataclass(frozen=True)
class Tilt:
    """P_new = σ(a + b·logit P_old), b > 0: the order of the queries stays."""

    a: float = 0.0
    b: float = 1.0

    def __call__(self, p_old: Any) -> FloatArray:
        """P(wrong) of queries, brought up to date."""
        return sigmoid(self.a + self.b * _logits(p_old))


def update_map(p_old: Any, wrong: Any) -> Tilt:
    """The tilt of P(wrong) that a few labels of new data speak for; none: the identity.

    With x = logit P_old and x̄ its mean over the labelled queries,
    logit P_new = x̄ + c + b·(x − x̄), so a = c + (1 − b)·x̄. The most probable c and b under
    c ~ N(0, 1²) and b ~ N(1, 0.5²), b ≥ 0.01: error rates usually move by a factor of up to three
    in the odds, and scores lose or gain up to half of their sharpness. A label tells P(1−P) of c,
    so its prior weighs as much as 4 labels at P = ½ or 11 at P = 0.1: ten labels go about half the
    way, two hundred nearly all of it. Taking c at x̄ and not at 0 keeps a change of the error
    rate from being mistaken for one of sharpness.

    The cost is convex, so there is one optimum; one class, or perfect separation, is fine.
    """
    from scipy.optimize import minimize

    if np.size(wrong) == 0 and np.size(p_old) == 0:
        return Tilt()
    y = checks.labels(wrong).astype(np.float64)
    x = _logits(checks.vector(p_old, "p_old", length=len(y)))
    centre = float(x.mean())
    design = np.column_stack([np.ones(len(x)), x - centre])
    usual = np.array([0.0, 1.0])
    precision = 1 / np.array([LEVEL_SCALE, SLOPE_SCALE]) ** 2

    def cost(beta: FloatArray) -> tuple[float, FloatArray]:
        logits = centre + design @ beta
        loss = float(np.sum(np.logaddexp(0.0, logits) - y * logits))
        off = beta - usual
        gradient = design.T @ (sigmoid(logits) - y) + precision * off
        return loss + 0.5 * float(precision @ off**2), gradient

    found = minimize(
        cost,
        usual,
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None), (LEAST_SLOPE, None)],
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    level, slope = map(float, found.x)
    return Tilt(level + (1 - slope) * centre, slope)


def _logits(p: Any) -> FloatArray:
    values = checks.finite(checks.as_floats(p, "p_old"), "p_old")
    if values.size and (values.min() < 0 or values.max() > 1):
        raise InputError(
            f"p_old must lie in [0, 1]; got {values.min():g} to {values.max():g}. Pass what "
            f"predict_proba gave."
        )
    inside = np.clip(values, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


@dataclass(frozen=True, repr=False)
class Standing(Displayed):
    """How a promised risk stands after some answered queries were labelled.

    verdict   ``confirmed``, ``refuted`` or ``open``
    answered  labelled queries that had been answered
    errors    how many of them were wrong
    lower     the risk is at least this, with probability 1 − delta
    upper     and at most this, with probability 1 − delta
    further   where open: labels that could confirm it if all of them are right; elsewhere None
    risk      that was promised
    delta     the chance that a verdict is wrong
    """

    verdict: str
    answered: int
    errors: int
    lower: float
    upper: float
    further: int | None
    risk: float
    delta: float

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        sure = f"with probability {1 - self.delta:g}"
        seen = f"{self.errors} of {self.answered} labelled answers are wrong"
        if self.verdict == "confirmed":
            return f"{seen}: the risk is at most {self.upper:.3g}, {sure}. {self.risk:g} is kept."
        if self.verdict == "refuted":
            return (
                f"{seen}: the risk is at least {self.lower:.3g}, {sure}. {self.risk:g} is not "
                f"kept: choose the threshold anew, on labels of these queries."
            )
        return (
            f"{seen}: whether the risk is at most {self.risk:g} is open. "
            f"{self.further} more labels would confirm it if all of those answers are right."
        )

    def _title(self) -> str:
        return f"risk {self.risk:g}: {self.verdict}"

    def _facts(self) -> dict[str, str]:
        return {
            "risk on new data": f"{self.lower:.3g} to {self.upper:.3g}, each end with "
            f"probability {1 - self.delta:g}",
            "meaning": self.sentence,
        }


@dataclass(frozen=True, repr=False)
class Recalibration(Displayed):
    """What labels of new data changed: P(wrong) on average, and how the promised risk stands."""

    standing: Standing  # of the promised risk
    tilt: Tilt  # of P(wrong), from now on
    before: float  # mean P(wrong) of the labelled queries
    after: float  # the same, tilted

    def _title(self) -> str:
        return f"risk {self.standing.risk:g}: {self.standing.verdict}"

    def _facts(self) -> dict[str, str]:
        refuted = self.standing.verdict == "refuted"
        return {
            "mean P(wrong)": f"{self.before:.3g} → {self.after:.3g}",
            "thresholds": "from these labels, from now on" if refuted else "as they were",
            "meaning": self.standing.sentence,
        }


def standing(wrong_answered: Any, risk: float, delta: float = 0.1) -> Standing:
    """Whether a promised ``risk`` holds on new data, by the labels of answered queries.

    Exact binomial (Clopper–Pearson) limits, each at ``delta``: confirmed where the upper one is at
    most the risk, refuted where the lower one is above it; either is wrong with probability at most
    delta. For one look at labels drawn at random from the answered queries: who looks after every
    label will see a wrong verdict more often.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    labels = checks.as_floats(wrong_answered, "wrong_answered")
    wrong = checks.labels(labels, "wrong_answered") if labels.size else np.zeros(0, np.bool_)
    errors, m = int(wrong.sum()), len(wrong)
    upper = _upper(errors, m, delta)
    lower = 1 - _upper(m - errors, m, delta) if m else 0.0
    verdict = "confirmed" if upper <= risk else "refuted" if lower > risk else "open"
    further = _further(errors, m, risk, delta) if verdict == "open" else None
    return Standing(verdict, m, errors, lower, upper, further, risk, delta)


def _upper(errors: int, m: int, delta: float) -> float:
    return float(bounds.clopper_pearson_upper(errors, m, delta))


def _further(errors: int, m: int, risk: float, delta: float) -> int:
    """The fewest right answers more that bring the upper limit to ``risk``: it falls with each."""
    high = 1
    while _upper(errors, m + high, delta) > risk:
        high *= 2
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if _upper(errors, m + middle, delta) > risk:
            low = middle
        else:
            high = middle
    return high
