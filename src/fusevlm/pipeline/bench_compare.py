"""All methods on the stored samples of one dataset and model: a cell per method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusevlm import metrics
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import CalibrateConfig, EvaluateConfig
from fusevlm.errors import FuseError
from fusevlm.logs import library_quiet
from fusevlm.metrics import Difference
from fusevlm.pipeline.ablations import (
    ABLATIONS,
    PAPER,
    PRACTICAL,
    Ablation,
    Outcome,
    Split,
    run_ablation,
)
from fusevlm.pipeline.bench_results import METRICS, Cell
from fusevlm.pipeline.methods import GUARANTEED, fit_column

FUSE = ("practical", "paper")
FINER = 10  # times as many resamples for a difference: Holm multiplies its smallest p by the rows
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Data:
    """One place: both splits with their score columns, and what belongs together (images)."""

    fit: Split
    test: Split
    fit_columns: Mapping[str, FloatArray]
    columns: Mapping[str, FloatArray]
    clusters: Sequence[str]


def compare(
    data: Data,
    judging: EvaluateConfig,
    rows: Sequence[str] = tuple(ABLATIONS),
    progress: Progress = lambda done, total: None,
) -> dict[str, Cell]:
    """Cells of all score columns and of the named rows of FUSE, each against the best column."""
    total, found, scores = len(data.columns) + len(rows), {}, {}
    for done, name in enumerate(data.columns):
        progress(done, total)
        outcome, seconds = _timed(column, name, data, judging)
        scores[name] = outcome.u
        found[name] = _cell(outcome, data, judging, seconds)
    reference = best_baseline({name: found[name] for name in data.columns})
    for done, name in enumerate(rows, len(data.columns)):
        progress(done, total)
        try:
            with library_quiet():
                outcome, seconds = _timed(
                    run_ablation, ABLATIONS[name], data.fit, data.test, risk=judging.risk
                )
        except FuseError as error:
            found[name] = Cell(missing=str(error))
            continue
        scores[name] = outcome.u
        found[name] = _cell(outcome, data, judging, seconds)
    progress(total, total)
    against = {
        name: _difference(u, scores[reference], data, judging)
        for name, u in scores.items()
        if reference and name != reference
    }
    adjusted = holm({name: difference.p_value for name, difference in against.items()})
    for name, difference in against.items():
        found[name] = replace(found[name], against=difference, p_holm=adjusted[name])
    return found


def column(name: str, data: Data, judging: EvaluateConfig) -> Outcome:
    """A score column: Platt's P(wrong) and Learn-then-Test, each from its half of calibration."""
    u = data.fit_columns[name]
    fitted = fit_column(name, u, data.fit.wrong, CalibrateConfig(seed=judging.seed))
    new = data.columns[name]
    theta = fitted.threshold(GUARANTEED, judging.risk, judging.delta)
    return Outcome(new, fitted.score_map(new), theta.threshold)


def best_baseline(cells: Mapping[str, Cell]) -> str:
    """The column with the largest AUROC on the test queries: the hardest one to beat."""
    values = {n: c.metrics["auroc"].estimate for n, c in cells.items() if "auroc" in c.metrics}
    return max(values, key=lambda name: values[name]) if values else ""


def _cell(outcome: Outcome, data: Data, judging: EvaluateConfig, seconds: float) -> Cell:
    with library_quiet():
        every = metrics.summary(
            outcome.u, data.test.wrong, outcome.p_wrong, clusters=data.clusters,
            n_boot=judging.bootstrap, level=judging.level, seed=judging.seed,
        )  # fmt: skip
    answered = outcome.u <= outcome.theta
    return Cell(
        {name: every[name] for name in METRICS if name in every},
        coverage=float(answered.mean()),
        risk=float(data.test.wrong[answered].mean()) if answered.any() else None,
        seconds=seconds,
    )


def _difference(
    u: FloatArray, reference: FloatArray, data: Data, judging: EvaluateConfig
) -> Difference:
    return metrics.paired_bootstrap(
        "auroc", u, reference, data.test.wrong, clusters=data.clusters,
        n_boot=FINER * judging.bootstrap, level=judging.level, seed=judging.seed,
    )  # fmt: skip


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: the chance of any false discovery stays below each of them."""
    order = sorted(p_values, key=lambda name: p_values[name])
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def group_of(row: Ablation) -> str:
    """Where a row of FUSE stands in the tables."""
    if row.name in FUSE:
        return "FUSE"
    if row.uses != "both":
        return "Sources"
    return "Ablations" if row in (*PAPER, *PRACTICAL) else "Sensitivity"


def auroc_or_none(u: FloatArray, wrong: BoolArray) -> float | None:
    """AUROC where both classes occur."""
    return float(metrics.auroc(u, wrong)) if wrong.any() and not wrong.all() else None


def _timed(work: Callable[..., Outcome], *given: Any, **options: Any) -> tuple[Outcome, float]:
    start = time.perf_counter()
    return work(*given, **options), time.perf_counter() - start
