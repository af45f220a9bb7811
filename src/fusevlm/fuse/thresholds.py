"""When to answer: thresholds θ on the score, answer iff u ≤ θ, with and without a guarantee.

======================  ==========================================================================
rule                    what holds for the true risk R(θ) = P(wrong | u ≤ θ)
======================  ==========================================================================
``empirical``           nothing: R exceeds the wanted risk every second time (the paper's rule)
``quantile``            nothing about risk; coverage is about the wanted one
``learn_then_test``     P(R(θ) > risk) ≤ delta, exact binomial tests in a fixed sequence
``hoeffding_bentkus``   the same for graded losses in [0, 1]
``clopper_pearson``     the same, and the bound holds at every candidate at once (a union bound)
``paper_bound``         P(R(θ) > empirical risk + ε) ≤ delta, the paper's loose ε
======================  ==========================================================================

Guarantees assume that calibration and future queries are exchangeable. They are exact for any score
when the candidates are fixed beforehand: pass ``grid``, for example scores of queries that are not
in the calibration set. Without ``grid`` the observed scores are the candidates; that is exact too
as long as risk does not fall when θ grows past its first crossing of the wanted risk.
A rule with nothing to offer returns θ = −inf: always abstain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray, Shape
from fusevlm.displays import Displayed
from fusevlm.errors import InputError
from fusevlm.maths import bounds

START_COVERAGE = 0.2  # where a fixed sequence over observed scores begins, chosen by simulation
NEARLY = 0.2  # starts whose power is so little below the best are as good


@dataclass(frozen=True, repr=False)
class Threshold(Displayed):
    """Answer iff u ≤ ``threshold``; ``-inf`` means always abstain."""

    threshold: float  # θ
    rule: str  # that chose it
    coverage: float  # share of calibration queries answered
    empirical_risk: float | None  # share of those that were wrong; None when none was answered
    guaranteed_risk: float | None  # R(θ) is at most this with probability 1 − delta
    risk: float | None  # the wanted risk
    delta: float | None  # the chance that the guaranteed risk does not hold
    n_calibration: int  # labelled queries it was chosen on

    @property
    def feasible(self) -> bool:
        """Whether anything is answered at all."""
        return self.threshold > -np.inf

    def answers(self, u: Any) -> BoolArray:
        """Which of the scores ``u`` are answered."""
        return np.asarray(checks.vector(u, "u") <= self.threshold)

    def limits(self, groups: Sequence[Hashable] | None, size: int) -> FloatArray:
        """θ of each of ``size`` queries; one for all, whatever their groups."""
        return np.full(size, self.threshold)

    def without_guarantee(self) -> Threshold:
        """The same θ where the rule's assumptions do not hold."""
        return replace(self, guaranteed_risk=None)

    def facts(self) -> dict[str, str]:
        """What to show of it, in words."""
        wanted = {} if self.risk is None else {"wanted risk": f"{self.risk:g}"}
        promise = "none"
        if self.guaranteed_risk is not None:
            sure = "" if self.delta is None else f", with probability {1 - self.delta:g}"
            promise = f"at most {self.guaranteed_risk:.3g}{sure}"
        return {
            "threshold": f"u ≤ {self.threshold:.4g}" if self.feasible else "always abstain",
            "rule": f"{self.rule} on {self.n_calibration} labelled queries",
            **wanted,
            "guaranteed risk": promise,
        }

    def _title(self) -> str:
        return f"answers {self.coverage:.1%} of the calibration queries"

    def _facts(self) -> dict[str, str]:
        found = self.facts()
        if self.empirical_risk is not None:
            found["wrong among them"] = f"{self.empirical_risk:.3g}"
        return found


@dataclass(frozen=True)
class Dependence:
    """Queries of one unit (about one image) go wrong together: they tell less than others.

    units        [N] codes of the units
    correlation  of two errors in one unit, beyond what the scores explain
    """

    units: Annotated[IntArray, Shape("N")]
    correlation: float

    def among(self, rows: BoolArray) -> Dependence:
        """That of some of the queries."""
        return Dependence(self.units[rows], self.correlation)

    def effect(self, order: IntArray) -> FloatArray:
        """The design effect 1 + (k̄ − 1)·ρ of the first 0, 1, …, N queries in this order.

        k̄ = Σ k²/Σ k over the units of those queries (Kish). As many queries as their number over
        the effect would tell as much if they were independent.
        """
        seen: dict[int, int] = {}
        squares = [0.0]
        for unit in self.units[order].tolist():
            count = seen.get(unit, 0)
            squares.append(squares[-1] + 2 * count + 1)
            seen[unit] = count + 1
        mean = np.array(squares) / np.maximum(np.arange(len(squares)), 1)
        return np.asarray(1.0 + np.maximum(mean - 1.0, 0.0) * self.correlation)


def shared_errors(residuals: FloatArray, units: Any) -> float:
    """ρ: the mean product of two residuals wrong − P(wrong) in one unit, over their mean square."""
    codes = np.unique(np.asarray(units), return_inverse=True)[1]
    size = np.bincount(codes)
    pairs, square = float(np.sum(size * (size - 1))), float(np.sum(residuals**2))
    if pairs == 0.0 or square == 0.0:
        return 0.0
    products = float(np.sum(np.bincount(codes, residuals) ** 2)) - square
    return float(np.clip(products / pairs / (square / len(residuals)), 0.0, 1.0))


@dataclass(frozen=True)
class _Candidates:
    """Candidate thresholds, ascending, with the answered count and the loss at each."""

    theta: FloatArray
    answered: IntArray
    loss: FloatArray
    n: int
    effect: FloatArray  # design effect of the answered; 1: independent queries

    @property
    def told(self) -> tuple[FloatArray, FloatArray]:
        """Loss and answered queries, as of independent ones that tell as much."""
        return self.loss / self.effect, self.answered / self.effect

    def chosen(
        self,
        index: int | None,
        rule: str,
        *,
        risk: float | None,
        delta: float | None,
        guaranteed: float | None,
    ) -> Threshold:
        if index is None:
            return nothing(rule, risk=risk, delta=delta, n=self.n)
        m = int(self.answered[index])
        return Threshold(
            float(self.theta[index]),
            rule,
            m / self.n,
            float(self.loss[index]) / m if m else None,
            guaranteed,
            risk,
            delta,
            self.n,
        )


def nothing(rule: str, *, risk: float | None, delta: float | None, n: int) -> Threshold:
    """Always abstain."""
    return Threshold(-np.inf, rule, 0.0, None, None, risk, delta, n)


def empirical(u: Any, wrong: Any, *, risk: float) -> Threshold:
    """The paper's θ* = sup{θ : R̂(θ) ≤ risk}, which is not monotone in θ. No guarantee."""
    risk = checks.fraction(risk, "risk")
    found = _candidates(u, checks.labels(wrong))
    feasible = np.flatnonzero(found.loss <= risk * found.answered)
    return found.chosen(_last(feasible), "empirical", risk=risk, delta=None, guaranteed=None)


def quantile(u: Any, *, coverage: float) -> Threshold:
    """θ* = inf{θ : share answered ≥ coverage} (the paper's ablation). Needs no labels."""
    coverage = checks.fraction(coverage, "coverage")
    scores = checks.vector(u, "u")
    index = int(np.ceil(coverage * len(scores) - 1e-9)) - 1
    theta = float(np.sort(scores)[index])
    share = float(np.mean(scores <= theta))
    return Threshold(theta, "quantile", share, None, None, None, None, len(scores))


def learn_then_test(
    u: Any,
    wrong: Any,
    *,
    risk: float,
    delta: float = 0.1,
    grid: Any = None,
    dependence: Dependence | None = None,
) -> Threshold:
    """The largest θ certified by exact binomial tests in a fixed sequence (Angelopoulos et al.).

    H_θ: R(θ) > risk has the p-value P(Bin(m, risk) ≤ errors). Candidates are tested from low to
    high θ, each at level delta, until the first that is not rejected. With ``grid`` the sequence is
    the grid; without, it is the observed scores from 20 % coverage on. With ``dependence`` the
    counts are divided by their design effect.
    Differs from the paper: its empirical rule has no guarantee.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    found = _candidates(u, checks.labels(wrong), grid, _start(risk, delta), dependence)
    p = bounds.binomial_p_value(*found.told, risk)
    return found.chosen(
        _fixed_sequence(p, delta), "learn_then_test", risk=risk, delta=delta, guaranteed=risk
    )


def hoeffding_bentkus(
    u: Any, loss: Any, *, risk: float, delta: float = 0.1, grid: Any = None
) -> Threshold:
    """:func:`learn_then_test` for a graded ``loss`` in [0, 1], such as 1 − soft VQA accuracy."""
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    values = checks.vector(loss, "loss")
    if float(values.min()) < 0 or float(values.max()) > 1:
        raise InputError(
            f"loss must lie in [0, 1]; got {values.min():g} to {values.max():g}. Rescale it."
        )
    found = _candidates(u, values, grid, start=_start(risk, delta))
    mean = found.loss / np.maximum(found.answered, 1)
    p = bounds.hoeffding_bentkus_p_value(mean, found.answered, risk)
    return found.chosen(
        _fixed_sequence(p, delta), "hoeffding_bentkus", risk=risk, delta=delta, guaranteed=risk
    )


def clopper_pearson(
    u: Any,
    wrong: Any,
    *,
    risk: float,
    delta: float = 0.1,
    grid: Any = None,
    dependence: Dependence | None = None,
) -> Threshold:
    """The largest θ whose exact upper limit at delta/|candidates| is at most ``risk``.

    More cautious than :func:`learn_then_test`: the limits hold for all candidates together.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    found = _candidates(u, checks.labels(wrong), grid, None, dependence)
    upper = bounds.clopper_pearson_upper(*found.told, delta / len(found.theta))
    index = _last(np.flatnonzero(upper <= risk))
    guaranteed = None if index is None else float(upper[index])
    return found.chosen(index, "clopper_pearson", risk=risk, delta=delta, guaranteed=guaranteed)


def paper_bound(
    u: Any, wrong: Any, *, risk: float, delta: float = 0.1, min_answered: int = 50
) -> Threshold:
    """The paper's Thm H.1: the empirical rule with at least ``min_answered`` answers, R ≤ R̂ + ε.

    ε = √(log(2|Θ|/δ)/(2·min_answered)) with |Θ| = N + 1; at N=500, δ=0.1 and 50 answers ε = 0.303,
    so the guaranteed risk is far above the wanted one. Reported, not recommended.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    min_answered = checks.count(min_answered, "min_answered")
    found = _candidates(u, checks.labels(wrong))
    epsilon = bounds.finite_sample_epsilon(found.n + 1, delta, min_answered)
    allowed = (found.loss <= risk * found.answered) & (found.answered >= min_answered)
    index = _last(np.flatnonzero(allowed))
    guaranteed = None
    if index is not None:
        guaranteed = min(1.0, float(found.loss[index] / found.answered[index]) + epsilon)
    return found.chosen(index, "paper_bound", risk=risk, delta=delta, guaranteed=guaranteed)


def among(
    allowed: BoolArray, rule: Callable[..., Threshold], u: Any, loss: Any, **options: Any
) -> Threshold:
    """The ``rule`` over queries that are ``allowed`` an answer; the others are never answered."""
    wanted = {name: options.get(name) for name in ("risk", "delta")}
    grid = options.get("grid")
    if not allowed.any() or (grid is not None and len(grid) == 0):
        return nothing(rule.__name__, n=len(allowed), **wanted)
    if options.get("dependence") is not None:
        options["dependence"] = options["dependence"].among(allowed)
    found = rule(np.asarray(u)[allowed], np.asarray(loss)[allowed], **options)
    share = float(np.mean(allowed))
    return replace(found, coverage=found.coverage * share, n_calibration=len(allowed))


@dataclass(frozen=True, repr=False)
class RiskTable(Displayed):
    """Coverage and risk at a few thresholds; the guaranteed risks hold together, at 1 − delta.

    ``guaranteed_risk`` is None where weights and thresholds saw the same labels.
    """

    threshold: FloatArray  # θ of each row
    coverage: FloatArray  # share of calibration queries answered
    empirical_risk: FloatArray  # share of those that were wrong
    guaranteed_risk: FloatArray | None  # upper limits of the risk, which hold all at once
    delta: float  # the chance that they do not

    def rows(self) -> list[dict[str, float | None]]:
        """One dict per threshold, for printing or writing."""
        names = ("threshold", "coverage", "empirical_risk", "guaranteed_risk")
        columns = {name: getattr(self, name) for name in names}
        return [
            {name: None if v is None else float(v[i]) for name, v in columns.items()}
            for i in range(len(self.threshold))
        ]

    def _title(self) -> str:
        return f"what each threshold would cost; with probability {1 - self.delta:g} all at once"

    def _facts(self) -> dict[str, str]:
        return {f"u ≤ {row['threshold']:.6g}": _cost(row) for row in self.rows()}


def _cost(row: Mapping[str, float | None]) -> str:
    """A row of a risk table in words."""
    promised = row["guaranteed_risk"]
    sure = "no guarantee" if promised is None else f"at most {promised:.3f} guaranteed"
    return f"{row['coverage']:.0%} answered, {row['empirical_risk']:.3f} of them wrong, {sure}"


def risk_table(
    u: Any,
    wrong: Any,
    *,
    delta: float = 0.1,
    n_rows: int = 20,
    grid: Any = None,
    allowed: BoolArray | None = None,
    dependence: Dependence | None = None,
) -> RiskTable:
    """What each of about ``n_rows`` thresholds would cost: coverage, empirical and guaranteed risk.

    The guaranteed risk is the exact upper limit at delta/rows, so a reader may pick any row after
    seeing all of them. Without ``grid`` the thresholds are equally spaced quantiles of u. Queries
    that are not ``allowed`` are never answered.
    """
    delta, n_rows = checks.fraction(delta, "delta"), checks.count(n_rows, "n_rows")
    y = checks.labels(wrong)
    if grid is None:
        scores = np.sort(checks.vector(u, "u", length=len(y)))
        ranks = np.ceil(len(scores) * np.arange(1, n_rows + 1) / n_rows).astype(int) - 1
        grid = scores[ranks]
    total = len(y)
    if allowed is not None and not allowed.all():
        u, y = checks.vector(u, "u", length=total)[allowed], y[allowed]
        dependence = None if dependence is None else dependence.among(allowed)
    if len(y) == 0 or len(grid) == 0:
        none = np.zeros(0)
        return RiskTable(none, none, none, none, delta)
    found = _candidates(u, y, grid, None, dependence)
    keep = found.answered > 0
    theta, m, errors = found.theta[keep], found.answered[keep], found.loss[keep]
    told, of = found.told
    upper = bounds.clopper_pearson_upper(told[keep], of[keep], delta / max(1, len(theta)))
    return RiskTable(theta, m / total, errors / m, upper, delta)


@dataclass(frozen=True, repr=False)
class GroupThresholds(Displayed):
    """One threshold per group; all their guarantees hold together with probability 1 − delta."""

    by_group: Mapping[Hashable, Threshold]  # the threshold of each group, by its name

    def without_guarantee(self) -> GroupThresholds:
        """The same θ where the rule's assumptions do not hold."""
        return GroupThresholds({k: t.without_guarantee() for k, t in self.by_group.items()})

    def facts(self) -> dict[str, str]:
        """What to show of it, in words."""
        return {
            f"{kind} of {group}": text
            for group, theta in self.by_group.items()
            for kind, text in theta.facts().items()
            if kind in ("threshold", "guaranteed risk")
        }

    def _title(self) -> str:
        return f"thresholds of {len(self.by_group)} groups"

    def _facts(self) -> dict[str, str]:
        return self.facts()

    def answers(self, u: Any, groups: Sequence[Hashable]) -> BoolArray:
        """Which scores are answered, each by its own group's threshold."""
        scores = checks.vector(u, "u", length=len(groups))
        return np.asarray(scores <= self.limits(groups, len(scores)))

    def limits(self, groups: Sequence[Hashable] | None, size: int) -> FloatArray:
        """θ of each query's group."""
        if groups is None:
            raise InputError("these thresholds are by group; pass groups=... .")
        unknown = [group for group in groups if group not in self.by_group]
        if unknown:
            raise InputError(
                f"group {unknown[0]!r} was not in the calibration set."
                f"{checks.hint(unknown[0], self.by_group)} Calibrate it, or abstain for it."
            )
        return np.array([self.by_group[group].threshold for group in groups])


def per_group(
    rule: Callable[..., Threshold],
    u: Any,
    wrong: Any,
    groups: Sequence[Hashable],
    *,
    risk: float,
    delta: float = 0.1,
    grid: Callable[[int, float, float], Any] | None = None,
    allowed: BoolArray | None = None,
    dependence: Dependence | None = None,
) -> GroupThresholds:
    """``rule`` (one with a guarantee) in each group at level delta/groups (Bonferroni).

    ``grid`` gives the candidates of a group from its size, risk and delta (:func:`candidate_grid`);
    queries that are not ``allowed`` are never answered (:func:`among`).
    """
    if rule not in (learn_then_test, hoeffding_bentkus, clopper_pearson, paper_bound):
        raise InputError(
            f"{getattr(rule, '__name__', rule)!r} has no guarantee to correct; use "
            f"learn_then_test, hoeffding_bentkus, clopper_pearson or paper_bound."
        )
    scores = checks.vector(u, "u", length=len(groups))
    losses = checks.vector(wrong, "wrong", length=len(groups))
    names = list(dict.fromkeys(groups))
    share = checks.fraction(delta, "delta") / len(names)
    found = {}
    for name in names:
        mine = np.array([other == name for other in groups])
        options = {} if grid is None else {"grid": grid(int(mine.sum()), risk, share)}
        if dependence is not None:
            options["dependence"] = dependence.among(mine)
        keep = np.ones(int(mine.sum()), dtype=np.bool_) if allowed is None else allowed[mine]
        found[name] = among(
            keep, rule, scores[mine], losses[mine], risk=risk, delta=share, **options
        )
    return GroupThresholds(found)


def candidate_grid(
    scores: FloatArray,
    size: int,
    risk: float,
    delta: float,
    n_points: int = 161,
    wrong: FloatArray | BoolArray | None = None,
    limit: float = np.inf,
) -> FloatArray:
    """Candidates for a calibration set of ``size``, from scores of queries that are not in it.

    Quantiles of ``scores`` from the coverage at which the fixed sequence should begin
    (:func:`first_coverage`, by the labels ``wrong`` of those queries; without them 20 %): below the
    ``limit``, above which nothing is expected to be answered.
    """
    top = float(np.mean(scores <= limit)) or 1.0
    if wrong is None:
        start = min(max(START_COVERAGE, _least_coverage(size, risk, delta)), top)
    else:
        order = np.argsort(scores, kind="stable")
        start = first_coverage(wrong[order], size, risk, delta, top)
    return np.unique(np.quantile(scores, np.linspace(start, 1.0, n_points)))


def first_coverage(
    wrong: FloatArray | BoolArray, size: int, risk: float, delta: float, top: float = 1.0
) -> float:
    """The coverage at which the fixed sequence over ``size`` other queries should begin.

    wrong  labels of queries in the order of their scores, the surest first
    top    the largest coverage that is allowed

    Where the first test has most power, by the errors that are expected below each candidate: those
    seen, smoothed to a rate that rises with the score, for a few errors more or less are luck. A
    sequence ends with its first failure, so that a start beside a steep fall of power is a risk: of
    all starts nearly as powerful as the best (:data:`NEARLY`) it is the middle one.
    """
    from scipy.optimize import isotonic_regression

    coverage = np.linspace(min(_least_coverage(size, risk, delta), top), top, 41)
    known = np.maximum(1, np.round(coverage * len(wrong)).astype(int))
    answered = np.maximum(1, np.round(coverage * size).astype(int))
    expected = np.cumsum(isotonic_regression(np.asarray(wrong, dtype=np.float64)).x)
    power = bounds.power_of_test(answered, expected[known - 1] / known, risk, delta)
    near = np.flatnonzero(power >= power.max() - NEARLY)
    return float(coverage[near[len(near) // 2]])


def _least_coverage(size: int, risk: float, delta: float) -> float:
    """At which a test of ``size`` queries could well succeed, were all answers right."""
    return min(1.5 * least_answers(risk, delta) / size, 1.0)


def least_answers(risk: float, delta: float) -> int:
    """Fewest answers that can be certified: (1 − risk)^m ≤ delta with all of them right."""
    return int(np.ceil(np.log(delta) / np.log1p(-risk)))


def _start(risk: float, delta: float) -> Callable[[int], int]:
    """How many answers the first test needs: fixed by N, risk and delta alone."""
    return lambda n: max(least_answers(risk, delta), int(np.ceil(START_COVERAGE * n)))


def _candidates(
    u: Any,
    loss: BoolArray | FloatArray,
    grid: Any = None,
    start: Callable[[int], int] | None = None,
    dependence: Dependence | None = None,
) -> _Candidates:
    scores = checks.vector(u, "u")
    if len(loss) != len(scores):
        raise InputError(
            f"u has {len(scores)} value(s) and the labels {len(loss)}; expected one per query."
        )
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    cumulative = np.concatenate([[0.0], np.cumsum(loss[order].astype(np.float64))])
    theta = np.unique(ordered) if grid is None else np.unique(checks.vector(grid, "grid"))
    answered = np.searchsorted(ordered, theta, side="right")
    if grid is None and start is not None:
        late = answered >= start(len(scores))
        theta, answered = theta[late], answered[late]
    effect = np.ones(len(scores) + 1) if dependence is None else dependence.effect(order)
    return _Candidates(theta, answered, cumulative[answered], len(scores), effect[answered])


def _fixed_sequence(p: FloatArray, delta: float) -> int | None:
    """Index of the last rejection before the first non-rejection, or None."""
    kept = np.flatnonzero(p > delta)
    stop = int(kept[0]) if len(kept) else len(p)
    return stop - 1 if stop else None


def _last(indices: IntArray) -> int | None:
    return int(indices[-1]) if len(indices) else None
