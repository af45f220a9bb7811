"""Stage evaluate: every method on the test queries, with intervals, in slices and by source.

results.json holds no times and no paths: two runs with the same seeds compare byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.config import prior_statistics
from fusevlm.errors import ArtefactError, InputError, library_quiet
from fusevlm.fuse.thresholds import Threshold
from fusevlm.pipeline.calibrate import Tables, read_methods, read_rounds
from fusevlm.pipeline.causes import causes
from fusevlm.pipeline.measure import (
    Outcome,
    best_baseline,
    differences,
    gains,
    measure,
    outcome_of,
    risk_rows,
)
from fusevlm.pipeline.methods import FUSE, GUARANTEED, Fitted, group_of
from fusevlm.pipeline.rounds import curve, replayed
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.written import check_results
from fusevlm.settings import Config, EvaluateConfig
from fusevlm.store import read_json, read_parquet, save, save_json, save_parquet
from fusevlm.store.runs import require_whole
from fusevlm.store.tables import csv_bytes
from fusevlm.types import Queries

RESULTS, TABLE, PREDICTIONS = "results.json", "results.csv", "predictions.parquet"
REDO = "Make it again: --redo evaluate."
PREDICTED: dict[str, Any] = {  # columns; also unit, which runs of before lack
    "query_id": str, "wrong": bool, "*unit": str, "*.u": float, "*.p_wrong": float,
}  # fmt: skip


def check(config: Config) -> None:
    """Refuse a table over severities of a prior statistic that there would not be."""
    named = prior_statistics(config.adapter)
    if config.evaluate.severity and "s" not in named and len(named) != 1:
        raise InputError(
            "evaluate.severity is about the prior statistic s, and adapter.source = 'none' leaves "
            "none. Leave it out, or name one statistic of activations."
        )


def make(work: Work) -> dict[str, int]:
    """Apply, measure, write."""
    config = work.config
    methods, absent = read_methods(work.run, config.calibrate.names())
    tables = Tables(work.run, config, tuple(methods))
    whole = tables.queries
    if not len(whole.test):
        raise InputError("there are no test queries: name data.test.")
    queries = whole.take(whole.test)
    if queries.wrong is None:
        raise InputError("the test queries have no labels: give them references.")
    outcomes, risks, explained, rules = {}, {}, {}, {}
    for name, load in methods.items():
        method = load()
        own = tables.of(method.method)
        given = queries if own is whole else own.take(own.test)
        outcomes[name] = outcome_of(method, given, config.evaluate)
        risks[name] = risk_rows(method, outcomes[name], queries.wrong, config.evaluate)
        explained[name] = explained_columns(method, outcomes[name], given)
        rules[name] = rule_of(outcomes[name])
    results = evaluate(outcomes, queries, config.evaluate, work.progress)
    results["risks"], results["rules"] = risks, rules
    results["absent"] = absent
    results["rounds"] = _rounds(work, whole, tuple(methods))
    results["calibration"] = len(whole) - len(queries)
    folder = work.folder("evaluate")
    columns: dict[str, Any] = {
        "query_id": queries.ids, "wrong": queries.wrong, "unit": list(queries.units or queries.ids),
    }  # fmt: skip
    for name, outcome in outcomes.items():
        columns |= {f"{name}.u": outcome.applied.u, f"{name}.p_wrong": outcome.applied.p_wrong}
        columns |= {f"{name}.{k}": v for k, v in outcome.applied.shown.items()}
        columns |= {f"{name}.answered_{k}": v for k, v in outcome.answered.items()}
        columns |= {f"{name}.reason_{k}": list(v) for k, v in outcome.reasons.items()}
        columns |= {f"{name}.{k}": v for k, v in explained[name].items()}
        columns |= {f"{name}.{k}": v for k, v in compared_columns(outcome).items()}
    save_parquet(folder / PREDICTIONS, columns)
    save(folder / TABLE, csv_bytes(CSV_HEADER, csv_rows(results)))
    save_json(folder / RESULTS, results)
    return {"queries": len(queries), "wrong": int(queries.wrong.sum())}


def _rounds(work: Work, queries: Queries, methods: tuple[str, ...]) -> dict[str, Any]:
    """What drawing in rounds would have cost and answered, beside fixed numbers of samples."""
    config, (rounds, why) = work.config, read_rounds(work.run)
    found: dict[str, Any] = {"absent": why, "tiers": [], "rows": []}
    with library_quiet():  # the table itself shows where nothing is certified
        if rounds is not None:
            found |= replayed(rounds, queries.take(queries.test), config)
        found["fixed"] = curve(queries, config.rounds.counts, methods, config)
    return found


def explained_columns(method: Fitted, outcome: Outcome, queries: Queries) -> dict[str, Any]:
    """Why each query is unsure, of a form of FUSE that decides by itself; else nothing."""
    scores = outcome.applied.guaranteed.scores
    if method.fuse is None or scores is None or GUARANTEED not in outcome.reasons:
        return {}
    form = method if method.apart is None else method.apart
    if form.fuse is None:
        return {}
    found = form.fuse.explain_scores(scores, queries.samples, outcome.reasons[GUARANTEED])
    bars = dict.fromkeys(bar for one in found for bar in one.bars)
    return {
        **{f"bar_{bar}": [one.bars.get(bar) for one in found] for bar in bars},
        "cause": [one.reason for one in found],
        "side": [one.side for one in found],
        "why": [one.sentence for one in found],
        "novelty": [None if np.isnan(p) else float(p) for p in scores.novelty],
    }


def rule_of(outcome: Outcome) -> dict[str, float] | None:
    """What a form of FUSE refuses whatever the threshold; None of a score."""
    compared = outcome.applied.guaranteed
    if compared.scores is None:
        return None
    options = compared.options
    return {"cap": options.cap, "novelty_level": options.novelty_level}


def compared_columns(outcome: Outcome) -> dict[str, Any]:
    """u and P(wrong) that the guaranteed threshold is about, where they are of another fit."""
    compared = outcome.applied.guaranteed
    if compared.u is outcome.applied.u or np.array_equal(compared.u, outcome.applied.u):
        return {}
    p = compared.p_wrong
    return {"u_guaranteed": compared.u, **({} if p is None else {"p_guaranteed": p})}


def read_results(run: Path) -> dict[str, Any]:
    """The results of a run."""
    path = require_whole(run, "evaluate") / RESULTS
    found = read_json(path, REDO)
    check_results(found, path, REDO)
    return found


def read_predictions(run: Path) -> dict[str, list[Any]]:
    """What every method said of every test query."""
    path = require_whole(run, "evaluate") / PREDICTIONS
    return read_parquet(path, REDO, columns=PREDICTED)


def need_methods(table: Mapping[str, Any], methods: Iterable[str], run: Path) -> None:
    """Refuse predictions that lack a method which the results have."""
    for name in methods:
        if not {f"{name}.u", f"{name}.p_wrong"} <= table.keys():
            raise ArtefactError(f"{run}: the predictions have nothing of {name}. {REDO}")


def evaluate(
    outcomes: Mapping[str, Outcome],
    queries: Queries,
    config: EvaluateConfig,
    progress: Any = lambda *_: None,
) -> dict[str, Any]:
    """All figures as plain data."""
    slices = measure(outcomes, queries, config, progress)
    reference = best_baseline(slices[0]["methods"])
    shown = next((name for name in outcomes if group_of(name) == FUSE), None)
    applied = None if shown is None else outcomes[shown].applied
    return {
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()},
        "thresholds": {
            name: {rule: _theta(theta) for rule, theta in outcome.thresholds.items()}
            for name, outcome in outcomes.items()
        },
        "slices": slices,
        "best_baseline": reference,
        "differences": differences(outcomes, reference, queries, config),
        "gains": gains(outcomes, queries, config),
        "causes": causes(queries, applied, shown, config),
    }


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
