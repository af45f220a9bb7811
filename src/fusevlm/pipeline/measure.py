"""Figures of methods on test queries: metrics with intervals, slices, paired differences.

One unit of resampling for all of them: ``queries.units``, as the dataset decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

import numpy as np

from fusevlm import checks, metrics
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError, UndefinedMetricError, library_quiet
from fusevlm.fuse.thresholds import Threshold
from fusevlm.metrics.summary import OF_P, OF_U
from fusevlm.pipeline.methods import (
    BASELINES,
    EMPIRICAL,
    GUARANTEED,
    METHODS,
    SOURCES,
    Applied,
    Fitted,
    group_of,
)
from fusevlm.settings import EvaluateConfig
from fusevlm.types import Queries

WHOLE = "all"  # the slice of all queries
# the paper's Table 1 with TPR for either class as positive and ECE by every protocol, for all
# queries; slices have a few of them
EVERY = (
    "auroc", "tpr_at_fpr_0.1", "tpr_at_fpr_0.05", "tpr_at_fpr_0.01", "tpr_right_at_fpr_0.1",
    "tpr_right_at_fpr_0.05", "tpr_right_at_fpr_0.01", "pearson_calibration",
    "spearman_calibration", "ece", "ece_platt", "ece_min_max", "brier", "aurac",
)  # fmt: skip
IN_SLICES = ("auroc", "aurac", "ece")
RISKS = (
    0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5,
)  # fmt: skip
FINER = 10  # times as many resamples for a difference: Holm multiplies its smallest p by the rows
Progress = Callable[[int, int], None]


class Row(TypedDict):
    """An estimate with its limits; they are None where only one unit is there to draw from."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Outcome:
    """A method on the test queries: scores, thresholds, and who is answered under each rule."""

    applied: Applied
    thresholds: dict[str, Threshold]
    answered: dict[str, BoolArray]
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by rule, empty if answered
    certified: dict[float, BoolArray] = field(default_factory=dict)  # by risk, with the guarantee


@dataclass(frozen=True, eq=False)
class Judged:
    """What figures are made of beside the methods' columns: labels, units, and other columns.

    wrong    [N]
    units    [N] numbers, equal where queries are resampled together
    columns  by name, one entry per query: those that the settings name
    s        [N] the prior statistic; None where nothing asks for it
    """

    wrong: BoolArray
    units: IntArray
    columns: Mapping[str, Any] = field(default_factory=dict)
    s: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.wrong)

    def column(self, name: str, named_by: str) -> Any:
        """A column, or an error that says who named it, and the nearest."""
        if name not in self.columns:
            raise InputError(
                f"{named_by} names the column {name!r}, which the queries do not have."
                f"{checks.hint(name, self.columns)}"
            )
        return self.columns[name]


Table = Queries | Judged  # what figures are of


@dataclass(frozen=True, eq=False)
class Rules:
    """The thresholds of a fitted method: by rule, and with the guarantee by risk."""

    thresholds: dict[str, Threshold]
    certified: dict[float, Threshold]


def rules_of(method: Fitted, config: EvaluateConfig) -> Rules:
    """The thresholds at the settings' risks; no query is looked at that is decided by them."""
    thetas = method.thresholds(config.risk, config.delta)
    risks = config.risks if GUARANTEED in thetas else ()
    certified = {risk: method.thresholds(risk, config.delta)[GUARANTEED] for risk in risks}
    return Rules(thetas, certified)


def decided(applied: Applied, rules: Rules) -> Outcome:
    """What was applied to queries, decided by the rules."""
    made = {rule: applied.decide(rule, theta) for rule, theta in rules.thresholds.items()}
    certified = {
        risk: applied.decide(GUARANTEED, theta)[0] for risk, theta in rules.certified.items()
    }
    answered = {rule: answer for rule, (answer, _) in made.items()}
    reasons = {rule: why for rule, (_, why) in made.items()}
    return Outcome(applied, rules.thresholds, answered, reasons, certified)


def outcome_of(method: Fitted, queries: Queries, config: EvaluateConfig) -> Outcome:
    """Apply a fitted method to queries and decide."""
    rules = rules_of(method, config)
    applied = method.apply(queries)
    return decided(applied, rules)


class RiskTable:
    """What each wanted risk would bring: the threshold with the guarantee, and what it answers.

    ``certified`` is the coverage among the calibration queries that are kept for thresholds,
    ``coverage`` and ``risk`` are those of the test queries, which may come some at a time.
    """

    def __init__(self, method: Fitted, rules: Rules, config: EvaluateConfig) -> None:
        self.thetas: dict[float, Threshold] = {}
        self.n_queries = 0
        self.answered = dict.fromkeys(RISKS, 0)
        self.wrong = dict.fromkeys(RISKS, 0)
        if GUARANTEED in rules.thresholds:
            with library_quiet():  # the table itself shows where nothing is certified
                for wanted in RISKS:
                    found = method.thresholds(wanted, config.delta)
                    self.thetas[wanted] = found[GUARANTEED]

    def add(self, applied: Applied, wrong: BoolArray) -> None:
        """Count some test queries."""
        self.n_queries += len(wrong)
        with library_quiet():
            for wanted, theta in self.thetas.items():
                answered = applied.decide(GUARANTEED, theta)[0]
                self.answered[wanted] += int(answered.sum())
                self.wrong[wanted] += int(wrong[answered].sum())

    def rows(self) -> list[dict[str, Any]]:
        """A row for each risk; none of a method that promises nothing."""
        return [
            {
                "wanted": wanted,
                "threshold": float(theta.threshold) if theta.feasible else None,
                "certified": float(theta.coverage) if theta.feasible else 0.0,
                "answered": self.answered[wanted],
                "coverage": self.answered[wanted] / self.n_queries,
                "risk": self.wrong[wanted] / self.answered[wanted]
                if self.answered[wanted]
                else None,
            }
            for wanted, theta in self.thetas.items()
        ]


def risk_rows(
    method: Fitted, outcome: Outcome, wrong: BoolArray, config: EvaluateConfig
) -> list[dict[str, Any]]:
    """The rows of :class:`RiskTable` of queries that are all at hand."""
    table = RiskTable(method, Rules(outcome.thresholds, {}), config)
    table.add(outcome.applied, wrong)
    return table.rows()


def interval(
    metric: Any,
    u: Any,
    label: Any,
    units: Sequence[str] | IntArray,
    config: EvaluateConfig,
    **options: float,
) -> Row | None:
    """``metric(u, label)`` with its percentile interval over resampled units; None if undefined."""
    try:
        if not several(units):
            compute = getattr(metrics, metric) if isinstance(metric, str) else metric
            return {"estimate": float(compute(u, label, **options)), "low": None, "high": None}
        found = metrics.bootstrap(
            metric, u, label, units=units, n_boot=config.bootstrap, level=config.level,
            seed=config.seed, **options,
        )  # fmt: skip
    except UndefinedMetricError:
        return None
    return {"estimate": found.estimate, "low": found.low, "high": found.high}


def several(units: Sequence[str] | IntArray | None) -> bool:
    """Whether there are two units or more."""
    if isinstance(units, np.ndarray):
        return bool(len(units)) and not bool((units == units[0]).all())
    return len(set(units or ())) > 1


def some_units(queries: Table, mask: BoolArray) -> Sequence[str] | IntArray:
    """The units of some queries."""
    if isinstance(queries.units, np.ndarray):
        return np.asarray(queries.units[mask])
    return [unit for unit, inside in zip(queries.units or (), mask, strict=True) if inside]


def measure(
    outcomes: Mapping[str, Outcome],
    queries: Table,
    config: EvaluateConfig,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Figures of every method, over all queries and in each slice."""
    slices = {WHOLE: np.full(len(queries), True), **cut(queries, config)}
    rows = []
    for number, (name, mask) in enumerate(slices.items()):
        progress(number, len(slices))
        rows.append(_in_slice(name, mask, outcomes, queries, config))
    progress(len(slices), len(slices))
    return rows


def _in_slice(
    name: str,
    mask: BoolArray,
    outcomes: Mapping[str, Outcome],
    queries: Table,
    config: EvaluateConfig,
) -> dict[str, Any]:
    units = some_units(queries, mask)
    label = queries.wrong[mask]

    def value(metric: Any, scores: Any, labels: Any = label, **options: float) -> Row | None:
        return interval(metric, scores, labels, units, config, **options)

    table = {}
    for method, outcome in outcomes.items():
        row: dict[str, Row | None] = {}
        for entry in EVERY if name == WHOLE else IN_SLICES:
            metric, options, scores = figured(entry, outcome.applied)
            row[entry] = None if scores is None else value(metric, scores[mask], **options)
        for rule in (GUARANTEED, EMPIRICAL):
            answered = outcome.answered.get(rule)
            row[f"coverage_{rule}"] = row[f"risk_{rule}"] = None
            if answered is not None:
                chosen = answered[mask].astype(np.float64)
                # base_accuracy is 1 − mean(label): with "not answered" as label, the coverage
                row[f"coverage_{rule}"] = value("base_accuracy", chosen, ~answered[mask])
                row[f"risk_{rule}"] = value(risk_of_answered, chosen)
        for risk in config.risks if name == WHOLE else ():
            sure = outcome.certified.get(risk)
            row[certified_at(risk)] = (
                None if sure is None else value("base_accuracy", sure.astype(np.float64), ~sure)
            )
        table[method] = row
    return {
        "slice": name,
        "queries": int(mask.sum()),
        "wrong": int(label.sum()),
        "base_accuracy": value("base_accuracy", np.zeros(len(label))),
        "methods": table,
    }


def certified_at(risk: float) -> str:
    """The entry of the coverage that is certified at a risk."""
    return f"certified_{risk:g}"


def figured(entry: str, applied: Applied) -> tuple[str, dict[str, float], FloatArray | None]:
    """The metric of an entry with its options, and the scores it is of; None: there are none.

    ``ece`` is of the method's own P(wrong); ``ece_platt`` and ``ece_min_max`` are of u, mapped in
    the same way for all methods.
    """
    if entry in ("ece_platt", "ece_min_max"):
        return "ece", {}, applied.p_platt if entry == "ece_platt" else applied.p_min_max
    metric, options = {**OF_U, **OF_P}[entry]
    return metric, options, applied.p_wrong if entry in OF_P else applied.u


def risk_of_answered(answered: FloatArray, wrong: Any) -> float:
    """Share of wrong answers among the answered; undefined where none is."""
    chosen = np.asarray(wrong)[answered > 0]
    if chosen.size == 0:
        raise UndefinedMetricError("nothing is answered.")
    return float(chosen.mean())


def out_of_distribution(queries: Table, config: EvaluateConfig) -> BoolArray:
    """Which queries any of the named columns calls out of distribution."""
    out = np.zeros(len(queries), dtype=np.bool_)
    for column in config.out_of_distribution:
        values = queries.column(column, "evaluate.out_of_distribution")
        if not all(isinstance(value, bool | np.bool_) for value in values):
            raise InputError(f"evaluate.out_of_distribution: {column!r} is not true or false.")
        out |= np.array(values, dtype=np.bool_)
    return out


def cut(queries: Table, config: EvaluateConfig) -> dict[str, BoolArray]:
    """The slices by name: in and out of distribution, then each value of each column."""
    found: dict[str, BoolArray] = {}
    if config.out_of_distribution:
        out = out_of_distribution(queries, config)
        found |= {"in distribution": ~out, "out of distribution": out}
    for column in config.slices:
        values = queries.column(column, "evaluate.slices")
        if any(isinstance(value, list | dict) for value in values):
            raise InputError(f"evaluate.slices: {column!r} holds lists; expected plain values.")
        for value in sorted(set(values), key=lambda v: (str(type(v)), v)):
            same = (v == value for v in values)
            found[f"{column} {value}"] = np.fromiter(same, np.bool_, len(values))
    return {name: mask for name, mask in found.items() if mask.any()}


def best_baseline(figures: Mapping[str, Mapping[str, Row | None]]) -> str:
    """The baseline with the largest AUROC on the test queries: the hardest one to beat."""
    values = {}
    for name, row in figures.items():
        found = row["auroc"]
        if found is not None and group_of(name) == BASELINES:
            values[name] = found["estimate"]
    return max(values, key=lambda name: values[name]) if values else ""


def differences(
    outcomes: Mapping[str, Outcome], reference: str, queries: Table, config: EvaluateConfig
) -> dict[str, dict[str, Any]]:
    """AUROC of each method minus that of the reference, paired, with Holm's p over all of them."""
    if not reference or not several(queries.units):
        return {}
    base = outcomes[reference]
    found = {
        name: _difference(outcome, base, queries, config)
        for name, outcome in outcomes.items()
        if name != reference
    }
    adjusted = holm({name: d["p_value"] for name, d in found.items()})
    return {name: {**d, "p_holm": adjusted[name]} for name, d in found.items()}


def gains(
    outcomes: Mapping[str, Outcome], queries: Table, config: EvaluateConfig
) -> dict[str, dict[str, Any]]:
    """For each source alone: AUROC of the preset that fuses both minus that of the source."""
    one_class = queries.wrong.all() or not queries.wrong.any()  # no AUROC
    if one_class or not several(queries.units):
        return {}
    found = {}
    for name, outcome in outcomes.items():
        if group_of(name) == SOURCES and (fused := METHODS[name].preset) in outcomes:
            found[name] = {
                "fused": fused, **_difference(outcomes[fused], outcome, queries, config)
            }  # fmt: skip
    return found


def _difference(
    one: Outcome, other: Outcome, queries: Table, config: EvaluateConfig
) -> dict[str, Any]:
    """AUROC of one method minus that of another on the same queries, by paired bootstrap."""
    found = metrics.paired_bootstrap(
        "auroc", one.applied.u, other.applied.u, queries.wrong, units=queries.units,
        n_boot=FINER * config.bootstrap, level=config.level, seed=config.seed,
    )  # fmt: skip
    return {k: asdict(found)[k] for k in ("difference", "low", "high", "p_value")}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: the chance of any false discovery stays below each of them."""
    order = sorted(p_values, key=lambda name: p_values[name])
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted
