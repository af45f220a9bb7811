"""Two runs side by side, on the test queries that both have: ``fusevlm report RUN RUN``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import __version__
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.metrics.discrimination import auroc_counts
from fusevlm.pipeline.evaluate import need_methods, read_predictions, read_results
from fusevlm.pipeline.figures import titles_of
from fusevlm.pipeline.measure import certified_at
from fusevlm.pipeline.report import read_shown
from fusevlm.render.page import difference, figure, render
from fusevlm.store.runs import read_run, require_whole

N_BOOT, LEVEL = 1000, 0.95


@dataclass(frozen=True, eq=False)
class Side:
    """What one of the runs says of the queries that both have, in the same order."""

    name: str
    model: str
    results: dict[str, Any]
    wrong: BoolArray
    columns: dict[str, FloatArray]  # METHOD.u and METHOD.p_wrong
    units: list[str]
    questions: list[str]
    answers: list[str]

    @property
    def methods(self) -> list[str]:
        return list(self.results["slices"][0]["methods"])


def compare_page(one: Path, two: Path, *, seed: int = 0) -> str:
    """The page."""
    sides = read_sides(one, two)
    names = [name for name in sides[0].methods if name in sides[1].methods]
    if not names:
        raise InputError(f"{one} and {two} have no method in common.")
    titles = titles_of(names)
    counts = resamples(sides[0].units, seed)
    shown = {
        "title": " and ".join(side.name for side in sides),
        "sides": [{"name": side.name, "model": side.model} for side in sides],
        "lead": _lead(sides, counts),
        "header": _header(sides),
        "rows": [{"title": titles[name], "cells": _cells(sides, name, counts)} for name in names],
        "alone": {side.name: [n for n in side.methods if n not in names] for side in sides},
        "made": {"fusevlm": __version__},
    }
    return render("compare.html.j2", "compare.js", _data(sides, names, titles), shown)


def read_sides(one: Path, two: Path) -> tuple[Side, Side]:
    """Both runs on the queries they share; InputError where there are none."""
    tables = [read_predictions(run) for run in (one, two)]
    shared = set(tables[0]["query_id"]) & set(tables[1]["query_id"])
    ids = [i for i in tables[0]["query_id"] if i in shared]
    if not ids:
        raise InputError(f"{one} and {two} have no test query in common, by their ids.")
    first, second = (_side(run, table, ids) for run, table in zip((one, two), tables, strict=True))
    return first, second


def _side(run: Path, table: dict[str, list[Any]], ids: Sequence[str]) -> Side:
    place = {name: k for k, name in enumerate(table["query_id"])}
    rows = [place[i] for i in ids]
    config = read_run(run)
    for stage in ("data", "sample"):
        require_whole(run, stage)
    asked = read_shown(run, ids)
    if "unit" not in table:
        raise InputError(f"{run} was measured before runs could be compared: --redo evaluate.")
    wanted, results = [n for n in table if n.endswith((".u", ".p_wrong"))], read_results(run)
    need_methods(table, results["slices"][0]["methods"], run)
    return Side(
        f"{config.name} ({run.name})" if config.name != run.name else config.name,
        config.sample.model,
        results,
        np.array([table["wrong"][k] for k in rows], dtype=np.bool_),
        {name: np.array([table[name][k] for k in rows], dtype=np.float64) for name in wanted},
        [table["unit"][k] for k in rows],
        [one.query.question for one in asked],
        [one.samples.answer or "" for one in asked],
    )


def resamples(units: Sequence[str], seed: int) -> Any:
    """How often each query is drawn [N_BOOT + 1, N], whole units at a time; the first is once."""
    own = np.unique(np.asarray(units), return_inverse=True)[1]
    size = int(own.max()) + 1
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(size, np.full(size, 1 / size), size=N_BOOT)
    return np.vstack([np.ones(len(own), dtype=np.int64), drawn[:, own]])


def paired(one: FloatArray, two: FloatArray) -> dict[str, Any] | None:
    """two − one with its interval, of values over the same resamples; None where undefined."""
    gap = two - one
    if np.isnan(gap[0]):
        return None
    low, high = np.nanquantile(gap[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"difference": float(gap[0]), "low": float(low), "high": float(high)}


def accuracy(side: Side, counts: Any) -> FloatArray:
    """Share of right answers in each resample."""
    return np.asarray((counts @ ~side.wrong) / counts.sum(axis=1))


def auroc(side: Side, name: str, counts: Any) -> FloatArray:
    """AUROC of a method in each resample."""
    return auroc_counts(side.columns[f"{name}.u"], side.wrong, counts)


def _lead(sides: tuple[Side, Side], counts: Any) -> str:
    one, two = (accuracy(side, counts) for side in sides)
    gap = difference(paired(one, two))
    return (
        f"{len(sides[0].wrong)} test queries are in both. Accuracy {one[0]:.3f} and {two[0]:.3f}: "
        f"{gap['value']} ({gap['range']}). Differences are the second minus the first, with "
        f"{LEVEL:.0%} intervals over the same resampled units. Certified coverages are those of "
        f"each run, on all of its own test queries."
    )


def _header(sides: tuple[Side, Side]) -> list[str]:
    risks = sides[0].results["settings"]["risks"]
    names = [side.name for side in sides]
    certified = [f"certified at {risk:.3g}, {name}" for risk in risks for name in names]
    return ["method", *(f"AUROC, {name}" for name in names), "difference", *certified]


def _cells(sides: tuple[Side, Side], name: str, counts: Any) -> list[dict[str, str]]:
    one, two = (auroc(side, name, counts) for side in sides)
    plain = [{"value": "–" if np.isnan(values[0]) else f"{values[0]:.3f}"} for values in (one, two)]
    found = [*plain, difference(paired(one, two))]
    for risk in sides[0].results["settings"]["risks"]:
        for side in sides:
            row = side.results["slices"][0]["methods"][name]
            found.append(figure(row.get(certified_at(risk))))
    return found


def _data(sides: tuple[Side, Side], names: Sequence[str], titles: dict[str, str]) -> dict[str, Any]:
    one = sides[0]
    return {
        "names": [side.name for side in sides],
        "methods": [{"name": name, "title": titles[name]} for name in names],
        "question": one.questions,
        "answers": [side.answers for side in sides],
        "wrong": [[int(w) for w in side.wrong] for side in sides],
        "u": [{name: side.columns[f"{name}.u"].tolist() for name in names} for side in sides],
        "p": [{name: side.columns[f"{name}.p_wrong"].tolist() for name in names} for side in sides],
    }


def check_two(targets: Sequence[str]) -> tuple[Path, Path]:
    """Two run folders."""
    if len(targets) != 2:
        raise InputError(f"expected one run, or two to compare; got {len(targets)}.")
    one, two = map(Path, targets)
    for path in (one, two):
        if not path.is_dir():
            raise InputError(f"{path} is no run folder; to compare, name two of them.")
    return one, two
