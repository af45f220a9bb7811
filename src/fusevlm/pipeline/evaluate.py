"""Stage evaluate: every method on the test queries, with intervals, in slices and by source.

results.json holds no times and no paths: two runs with the same seeds compare byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import EvaluateConfig
from fusevlm.errors import InputError, UndefinedMetricError
from fusevlm.fuse.thresholds import Threshold
from fusevlm.pipeline.causes import causes
from fusevlm.pipeline.data import metadata, read_queries_of
from fusevlm.pipeline.intervals import Row, interval
from fusevlm.pipeline.methods import EMPIRICAL, FORMS, GUARANTEED, Judged, load_method
from fusevlm.pipeline.run import Work, require
from fusevlm.pipeline.score import read_scored
from fusevlm.pipeline.tables import read_parquet, save_csv, save_parquet
from fusevlm.store.runs import read_json, save_json
from fusevlm.types import Query

RESULTS, TABLE, PREDICTIONS = "results.json", "results.csv", "predictions.parquet"
RULES = {"guaranteed": GUARANTEED, "empirical": EMPIRICAL}


@dataclass(frozen=True, eq=False)
class Verdict:
    """A method on the test queries: scores, and who is answered under each rule."""

    judged: Judged
    thresholds: dict[str, Threshold]
    answered: dict[str, BoolArray]


def make(work: Work) -> dict[str, int]:
    """Judge, measure, write."""
    config = work.config
    queries = read_scored(work.run, "test", config.score.layer)
    known = {q.id: q for q in read_queries_of(work.run, ("test",))}
    asked = [known[i] for i in queries.ids]
    verdicts = {}
    for name in config.calibrate.methods:
        method = load_method(name, require(work.run, "calibrate") / name)
        thetas = {
            key: method.threshold(rule, config.evaluate.risk, config.evaluate.delta)
            for key, rule in RULES.items()
        }
        judged = method.judge(queries)
        answered = {key: judged.answers(theta) for key, theta in thetas.items()}
        verdicts[name] = Verdict(judged, thetas, answered)
    results = evaluate(verdicts, queries.wrong, queries.s, asked, config.evaluate, work.progress)
    folder = work.folder("evaluate")
    columns: dict[str, Any] = {"query_id": queries.ids, "wrong": queries.wrong}
    for name, verdict in verdicts.items():
        columns |= {f"{name}.u": verdict.judged.u, f"{name}.p_wrong": verdict.judged.p_wrong}
        columns |= {f"{name}.{k}": v for k, v in verdict.judged.columns.items()}
        columns |= {f"{name}.answered_{k}": v for k, v in verdict.answered.items()}
    save_parquet(folder / PREDICTIONS, columns)
    save_csv(folder / TABLE, CSV_HEADER, csv_rows(results))
    save_json(folder / RESULTS, results)
    return {"queries": len(queries.ids), "wrong": int(queries.wrong.sum())}


def read_results(run: Path) -> dict[str, Any]:
    """The results of a run."""
    return read_json(require(run, "evaluate") / RESULTS, "Make it again: --redo evaluate.")


def read_predictions(run: Path) -> dict[str, list[Any]]:
    """What every method said of every test query."""
    return read_parquet(require(run, "evaluate") / PREDICTIONS)


def evaluate(
    verdicts: Mapping[str, Verdict],
    wrong: BoolArray,
    s: FloatArray,
    queries: Sequence[Query],
    config: EvaluateConfig,
    progress: Any = lambda done, total: None,
) -> dict[str, Any]:
    """All figures as plain data."""
    clusters = cluster_ids(queries, config.cluster)
    slices = cut(queries, config)
    rows = []
    for number, (name, mask) in enumerate({"all": np.full(len(wrong), True), **slices}.items()):
        progress(number, len(slices) + 1)
        rows.append(_measure(name, mask, verdicts, wrong, clusters, config))
    progress(len(slices) + 1, len(slices) + 1)
    shown = next((name for name in verdicts if name in FORMS), None)
    judged = None if shown is None else verdicts[shown].judged
    return {
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()},
        "thresholds": {
            name: {key: _theta(theta) for key, theta in verdict.thresholds.items()}
            for name, verdict in verdicts.items()
        },
        "slices": rows,
        "causes": causes(s, judged, shown, queries, clusters, config),
    }


def cluster_ids(queries: Sequence[Query], column: str) -> list[str]:
    """What is resampled together: the values of a metadata column, or the image."""
    if not column:
        return ["|".join(map(str, q.images)) or q.id for q in queries]
    return [str(value) for value in metadata(queries, column, "evaluate.cluster")]


def out_of_distribution(queries: Sequence[Query], config: EvaluateConfig) -> BoolArray:
    """Which queries any of the named columns calls out of distribution."""
    out = np.zeros(len(queries), dtype=np.bool_)
    for column in config.out_of_distribution:
        values = metadata(queries, column, "evaluate.out_of_distribution")
        if not all(isinstance(value, bool) for value in values):
            raise InputError(f"evaluate.out_of_distribution: {column!r} is not true or false.")
        out |= np.array(values, dtype=np.bool_)
    return out


def cut(queries: Sequence[Query], config: EvaluateConfig) -> dict[str, BoolArray]:
    """The slices by name: in and out of distribution, then each value of each column."""
    found: dict[str, BoolArray] = {}
    if config.out_of_distribution:
        out = out_of_distribution(queries, config)
        found |= {"in distribution": ~out, "out of distribution": out}
    for column in config.slices:
        values = metadata(queries, column, "evaluate.slices")
        for value in sorted(set(values), key=lambda v: (str(type(v)), v)):
            found[f"{column} {value}"] = np.array([v == value for v in values])
    return {name: mask for name, mask in found.items() if mask.any()}


def _measure(
    name: str,
    mask: BoolArray,
    verdicts: Mapping[str, Verdict],
    wrong: BoolArray,
    clusters: Sequence[str],
    config: EvaluateConfig,
) -> dict[str, Any]:
    ids = [c for c, inside in zip(clusters, mask, strict=True) if inside]
    label = wrong[mask]

    def value(metric: Any, scores: Any, labels: Any = label) -> Row | None:
        return interval(metric, scores, labels, ids, config)

    table = {}
    for method, verdict in verdicts.items():
        u, p = verdict.judged.u[mask], verdict.judged.p_wrong[mask]
        row = {"auroc": value("auroc", u), "aurac": value("aurac", u), "ece": value("ece", p)}
        for key, answered in verdict.answered.items():
            chosen = answered[mask].astype(np.float64)
            # base_accuracy is 1 − mean(label): with "not answered" as the label, the coverage
            row[f"coverage_{key}"] = value("base_accuracy", chosen, ~answered[mask])
            row[f"risk_{key}"] = value(risk_of_answered, chosen)
        table[method] = row
    accuracy = value("base_accuracy", np.zeros(len(label)))
    return {
        "slice": name,
        "queries": int(mask.sum()),
        "wrong": int(label.sum()),
        "base_accuracy": accuracy,
        "methods": table,
    }


def risk_of_answered(answered: FloatArray, wrong: Any) -> float:
    """Share of wrong answers among the answered; undefined where none is."""
    chosen = np.asarray(wrong)[answered > 0]
    if chosen.size == 0:
        raise UndefinedMetricError("nothing is answered.")
    return float(chosen.mean())


def _theta(theta: Threshold) -> dict[str, Any]:
    return {
        k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(theta).items()
    }


CSV_HEADER = ("slice", "queries", "method", "metric", "estimate", "low", "high")


def csv_rows(results: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Every interval of the results as a row."""
    rows = []
    for part in results["slices"]:
        named = [("", "base_accuracy", part["base_accuracy"])]
        named += [
            (method, metric, row)
            for method, table in part["methods"].items()
            for metric, row in table.items()
        ]
        for method, metric, row in named:
            found = (None,) * 3 if row is None else (row["estimate"], row["low"], row["high"])
            rows.append((part["slice"], part["queries"], method, metric, *found))
    return rows
