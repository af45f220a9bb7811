"""Labelled queries from which thresholds are chosen, and the thresholds they give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray, Shape
from fusevlm.errors import NotFittedError
from fusevlm.fuse import thresholds
from fusevlm.fuse.model import Model
from fusevlm.fuse.presets import Options
from fusevlm.fuse.results import eligible
from fusevlm.fuse.thresholds import Dependence, GroupThresholds, RiskTable, Threshold

logger = logging.getLogger(__name__)

RULES: dict[str, Callable[..., Threshold]] = {
    "empirical": thresholds.empirical,
    "learn_then_test": thresholds.learn_then_test,
    "clopper_pearson": thresholds.clopper_pearson,
    "paper_bound": thresholds.paper_bound,
}
GRIDDED = ("learn_then_test", "clopper_pearson")  # rules that test candidates exactly


@dataclass(frozen=True)
class Kept:
    """Labelled scores from which thresholds are chosen."""

    u: Annotated[FloatArray, Shape("N")]
    wrong: Annotated[BoolArray, Shape("N")]
    p_wrong: Annotated[FloatArray, Shape("N")]  # before any tilt; NaN: not known
    novelty: Annotated[FloatArray, Shape("N")]  # p-values; NaN: not judged
    apart: bool  # from the fit's queries; the paper reuses them
    groups: Annotated[tuple[str, ...] | None, Shape("N")]
    units: Annotated[IntArray, Shape("N")]  # codes
    # hashes of the queries
    seen: Annotated[IntArray, Shape("M")] = field(default_factory=lambda: np.zeros(0, np.int64))

    def allowed(self, model: Model, options: Options) -> BoolArray:
        """Which of them may be answered, whatever θ."""
        p = self.p_wrong if model.tilt is None else model.tilt(self.p_wrong)
        return eligible(p, self.novelty, options)

    def dependence(self, model: Model) -> Dependence | None:
        """How much the queries of a unit tell together; None where each is its own."""
        if model.shared_errors == 0.0 or len(np.unique(self.units)) == len(self.units):
            return None
        return Dependence(self.units, model.shared_errors)


def threshold(
    kept: Kept, model: Model, options: Options, *, risk: float, delta: float, rule: str | None
) -> Threshold:
    """θ for a wanted risk; says where nothing is certified, or a group is not kept."""
    name = _rule(rule, options)
    given: dict[str, Any] = {"risk": risk} | ({} if name == "empirical" else {"delta": delta})
    if kept.apart and name in GRIDDED:
        given["grid"] = candidates(model, options, len(kept.u), risk, delta)
    if name in GRIDDED:
        given["dependence"] = kept.dependence(model)
    allowed = kept.allowed(model, options)
    found = thresholds.among(allowed, RULES[name], kept.u, kept.wrong, **given)
    if logger.isEnabledFor(logging.WARNING):  # what to say takes a simulation
        if name == "learn_then_test" and not found.feasible and kept.apart:
            logger.warning("%s", _why_nothing(kept, model, options, risk, delta))
        _warn_of_groups(kept, found, allowed)
    return found if _guaranteed(kept, name) else found.without_guarantee()


def group_thresholds(
    kept: Kept, model: Model, options: Options, *, risk: float, delta: float, rule: str | None
) -> GroupThresholds:
    """One θ for each group."""
    name = _rule(rule, options)
    if kept.groups is None:
        raise NotFittedError("the fit had no groups; pass groups=... to fit().")

    def grid(size: int, risk: float, delta: float) -> FloatArray:
        return candidates(model, options, size, risk, delta)

    found = thresholds.per_group(
        RULES[name],
        kept.u,
        kept.wrong,
        kept.groups,
        allowed=kept.allowed(model, options),
        risk=risk,
        delta=delta,
        grid=grid if kept.apart and name in GRIDDED else None,
        dependence=kept.dependence(model) if name in GRIDDED else None,
    )
    return found if _guaranteed(kept, name) else found.without_guarantee()


def risk_table(
    kept: Kept, model: Model, options: Options, *, delta: float, n_rows: int
) -> RiskTable:
    """Coverage, empirical and guaranteed risk at a few thresholds."""
    shares = np.arange(1, checks.count(n_rows, "n_rows") + 1) / n_rows
    grid = below_cap(model, options, np.quantile(model.u, shares)) if kept.apart else None
    found = thresholds.risk_table(
        kept.u,
        kept.wrong,
        delta=delta,
        n_rows=n_rows,
        grid=grid,
        allowed=kept.allowed(model, options),
        dependence=kept.dependence(model),
    )
    return found if _guaranteed(kept) else replace(found, guaranteed_risk=None)


def candidates(model: Model, options: Options, size: int, risk: float, delta: float) -> FloatArray:
    """Candidate thresholds from the tuning scores, ignorant of any other query's label.

    The cap is a limit of the sequence: P(wrong) rises with u, so the candidates below it come
    first, and a fixed sequence may stop anywhere. Where it begins must not depend on newer labels
    (a tilt), which may be those of the test.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    wrong = None if model.tuned is None else model.tuned[:, 1]
    own = replace(model, tilt=None)
    limit = float(np.max(below_cap(own, options, model.u), initial=-np.inf))
    grid = thresholds.candidate_grid(model.u, size, risk, delta, wrong=wrong, limit=limit)
    return below_cap(model, options, grid)


def below_cap(model: Model, options: Options, u: FloatArray) -> FloatArray:
    """The scores up to the cap of P(wrong)."""
    if model.score_map is None:
        return u
    p = model.score_map(u)
    return u[(p if model.tilt is None else model.tilt(p)) <= options.cap]


def _rule(rule: str | None, options: Options) -> str:
    return checks.choice(rule or options.rule, "rule", tuple(RULES))


def _guaranteed(kept: Kept, rule: str | None = None) -> bool:
    """Whether a promise of risk would hold; says so where it would not."""
    if not kept.apart and rule != "empirical":
        logger.warning(
            "weights and threshold saw the same labels: no risk is guaranteed. Keep queries "
            "apart (threshold_share=0.5), or call fit_threshold with other labelled queries."
        )
    return kept.apart


def _why_nothing(kept: Kept, model: Model, options: Options, risk: float, delta: float) -> str:
    from fusevlm.fuse.labels import why_nothing

    tuned: dict[str, Any] = (
        {} if model.tuned is None else {"tuning_u": model.u, "tuning_wrong": model.tuned[:, 1]}
    )
    share = options.threshold_share if model.labelled and options.threshold_share else 1.0
    return why_nothing(kept.u, kept.wrong, risk=risk, delta=delta, share=share, **tuned)


def _warn_of_groups(kept: Kept, theta: Threshold, allowed: BoolArray) -> None:
    """Where one θ for all is chosen though groups are known: those in which it is not kept."""
    answered = theta.answers(kept.u) & allowed
    over = []
    for group in dict.fromkeys(kept.groups or ()):
        wrong = kept.wrong[answered & (np.array(kept.groups) == group)]
        if len(wrong) and theta.risk is not None and wrong.mean() > theta.risk:
            over.append(f"{group!r} ({int(wrong.sum())} of {len(wrong)} answers wrong)")
    if over:
        logger.warning(
            "the risk %g is kept on average, not in every group: it was exceeded in %s. For a "
            "promise per group pass groups=... to decide().",
            theta.risk,
            ", ".join(over),
        )
