"""Stage evaluate: every method on the test queries, with intervals, in slices and by source.

results.json holds no times and no paths: two runs with the same seeds compare byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.config import prior_statistics
from fusevlm.errors import ArtefactError, InputError, library_quiet
from fusevlm.fuse.thresholds import Threshold
from fusevlm.pipeline.calibrate import Tables, read_methods, read_rounds
from fusevlm.pipeline.causes import causes
from fusevlm.pipeline.measure import (
    Judged,
    Outcome,
    RiskTable,
    Rules,
    Table,
    best_baseline,
    decided,
    differences,
    gains,
    measure,
    rules_of,
)
from fusevlm.pipeline.methods import FUSE, GUARANTEED, Applied, Compared, Fitted, group_of
from fusevlm.pipeline.rounds import curve_of, replayed
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.written import check_results
from fusevlm.settings import Config, EvaluateConfig
from fusevlm.store import read_json, read_parquet, save, save_json, save_parquet
from fusevlm.store.columns import Columns
from fusevlm.store.files import remove, slug
from fusevlm.store.runs import require_whole
from fusevlm.store.tables import StoredTable, TableWriter, csv_bytes
from fusevlm.types import Queries

RESULTS, TABLE, PREDICTIONS = "results.json", "results.csv", "predictions.parquet"
REDO = "Make it again: --redo evaluate."
KEPT, BLOCKS = "columns", "blocks"  # folders that are there while the stage is made
KNOWN = "test queries"  # among the blocks: what is known of them beside what methods say
TOGETHER = 4  # methods in memory at a time: the samples are read once for them
GUARANTEED_U, GUARANTEED_P = "u_guaranteed_fit", "p_guaranteed_fit"  # of a fit of its own
CAUSES = ("evidence",)  # what tables of causes are made of, beside u and P(wrong)
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
    """Apply, measure, write; the test queries come a block at a time."""
    config, folder = work.config, work.folder("evaluate")
    methods, absent = read_methods(work.run, config.calibrate.names())
    tables = Tables(work.run, config, tuple(methods))
    tables.scored.need_tests()
    with Columns(folder / KEPT) as columns, Blocks(folder / BLOCKS) as blocks:
        reading, outcomes = Reading(config.evaluate, blocks), Applications(columns)
        risks: dict[str, list[dict[str, Any]]] = {}
        rules: dict[str, dict[str, float] | None] = {}
        for names in together(methods, tables):
            some = [
                Application(name, methods[name](), config.evaluate, outcomes, blocks)
                for name in names
            ]
            for number, queries in enumerate(tables.tests(some[0].method.method)):
                reading.add(number, queries)
                for one in some:
                    one.add(number, queries)
            risks |= {one.name: one.risks.rows() for one in some}
            rules |= {one.name: one.rule for one in some}
        judged = reading.judged()
        results = evaluate(outcomes, judged, config.evaluate, work.progress)
        results["risks"], results["rules"] = risks, rules
        results["absent"] = absent
        results["rounds"] = _rounds(work, tables, tuple(methods))
        results["calibration"] = tables.scored.n_known
        _write_predictions(folder / PREDICTIONS, tuple(methods), blocks)
    save(folder / TABLE, csv_bytes(CSV_HEADER, csv_rows(results)))
    save_json(folder / RESULTS, results)
    return {"queries": len(judged), "wrong": int(judged.wrong.sum())}


def together(methods: Iterable[str], tables: Tables) -> Iterator[list[str]]:
    """Methods that read the same of the test queries, a few at a time, in their order."""
    for _, own in groupby(methods, tables.layer_of):
        names = list(own)
        for start in range(0, len(names), TOGETHER):
            yield names[start : start + TOGETHER]


class Reading:
    """Labels, units and the columns that the settings name, of all test queries.

    Methods go through the queries several times; what is known of a query is noted once.
    """

    def __init__(self, wanted: EvaluateConfig, blocks: Blocks) -> None:
        names = dict.fromkeys([*wanted.slices, *wanted.out_of_distribution])
        names |= dict.fromkeys(name for name in (wanted.severity, wanted.corruption) if name)
        self.wanted, self.blocks = wanted, blocks
        self._columns: dict[str, list[Any]] = {name: [] for name in names}
        self._same: dict[Any, Any] = {}  # equal values are kept once
        self._wrong: list[Any] = []
        self._units: list[Any] = []
        self._s: list[Any] = []

    def add(self, number: int, queries: Queries) -> None:
        """Note the block of this number, if it is a further one."""
        if number < len(self._wrong):
            return
        if queries.wrong is None:
            raise InputError("the test queries have no labels: give them references.")
        units = list(queries.units or queries.ids)
        self._wrong.append(queries.wrong)
        self._units.append(np.array([_number(unit) for unit in units]))
        for name, column in self._columns.items():
            if name in queries.columns:
                values = queries.columns[name]
                column += [self._same.setdefault((type(value), value), value) for value in values]
        if self.wanted.severity:
            self._s.append(queries.s)
        known = {"query_id": list(queries.ids), "wrong": queries.wrong, "unit": units}
        self.blocks.save(KNOWN, number, known)

    def judged(self) -> Judged:
        """All that was noted."""
        size = sum(map(len, self._wrong))
        return Judged(
            np.concatenate(self._wrong),
            np.concatenate(self._units),
            {name: column for name, column in self._columns.items() if len(column) == size},
            np.concatenate(self._s) if self._s else None,
        )


def _number(unit: str) -> int:
    """A unit by 63 bits of its hash: two of ten million are one with a chance of 1 in 100,000."""
    return int.from_bytes(blake2b(unit.encode(), digest_size=8).digest(), "little") >> 1


class Applications(Mapping[str, Outcome]):
    """What methods said of all test queries, by name; of one method at a time in memory."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self._rules = columns, dict[str, Rules]()

    def begin(self, name: str, rules: Rules) -> None:
        """Have a method whose columns follow."""
        self._rules[name] = rules

    def add(self, name: str, outcome: Outcome) -> None:
        """What a method said of some more queries."""
        applied = outcome.applied
        given: dict[str, Any] = {"u": applied.u, "p_wrong": applied.p_wrong}
        optional = {"p_platt": applied.p_platt, "p_min_max": applied.p_min_max}
        given |= {key: values for key, values in optional.items() if values is not None}
        given |= {f"shown {key}": applied.shown[key] for key in CAUSES if key in applied.shown}
        given |= {f"answered {rule}": values for rule, values in outcome.answered.items()}
        given |= {f"certified {risk!r}": values for risk, values in outcome.certified.items()}
        for key, values in given.items():
            self.columns.append(f"{name} {key}", values)

    def __getitem__(self, name: str) -> Outcome:
        rules = self._rules[name]

        def column(key: str) -> Any:
            full = f"{name} {key}"
            return self.columns.read(full) if full in self.columns else None

        u = column("u")
        shown = {key: values for key in CAUSES if (values := column(f"shown {key}")) is not None}
        applied = Applied(
            u, column("p_wrong"), column("p_platt"), column("p_min_max"),
            Compared(u), Compared(u), shown,
        )  # fmt: skip
        return Outcome(
            applied,
            rules.thresholds,
            {rule: column(f"answered {rule}") for rule in rules.thresholds},
            {},
            {risk: column(f"certified {risk!r}") for risk in rules.certified},
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


class Application:
    """A method on its way through the test queries: its rows by risk, and its rule."""

    def __init__(
        self,
        name: str,
        method: Fitted,
        config: EvaluateConfig,
        outcomes: Applications,
        blocks: Blocks,
    ) -> None:
        self.name, self.method, self.outcomes, self.blocks = name, method, outcomes, blocks
        self.rules = rules_of(method, config)
        outcomes.begin(name, self.rules)
        self.risks = RiskTable(method, self.rules, config)
        self.rule: dict[str, float] | None = None

    def add(self, number: int, queries: Queries) -> None:
        """Apply it to a block of them."""
        # what is to be said of test queries as a whole is said of the first of them
        with library_quiet() if number else nullcontext():
            outcome = decided(self.method.apply(queries), self.rules)
        self.outcomes.add(self.name, outcome)
        self.risks.add(outcome.applied, queries.wrong)
        self.rule = rule_of(outcome)
        self.blocks.save(self.name, number, prediction_columns(self.method, outcome, queries))


def prediction_columns(method: Fitted, outcome: Outcome, queries: Queries) -> dict[str, Any]:
    """All that is kept of what a method said of some queries, by name."""
    applied = outcome.applied
    found: dict[str, Any] = {"u": applied.u, "p_wrong": applied.p_wrong}
    found |= applied.shown
    found |= {f"answered_{k}": v for k, v in outcome.answered.items()}
    found |= {f"reason_{k}": list(v) for k, v in outcome.reasons.items()}
    return found | explained_columns(method, outcome, queries) | compared_columns(outcome)


class Blocks:
    """Columns of each method of each block, kept until all methods are applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns: dict[str, dict[str, None]] = {}  # of each method, over all blocks
        self.differs: set[str] = set()  # methods whose guarantee is about other scores
        self.count = 0  # of blocks

    def __enter__(self) -> Blocks:
        if self.folder.is_dir():
            remove(self.folder)  # of a stage that was interrupted
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder.is_dir():
            remove(self.folder)

    def save(self, method: str, number: int, columns: Mapping[str, Any]) -> None:
        """Keep the columns of a block."""
        self.count = max(self.count, number + 1)
        own = self.columns.setdefault(method, {})
        own |= dict.fromkeys(columns)
        if GUARANTEED_U in columns and not np.array_equal(columns[GUARANTEED_U], columns["u"]):
            self.differs.add(method)
        save_parquet(self.folder / f"{slug(method)}-{number:05d}.parquet", columns)

    def read(self, method: str, number: int, size: int) -> dict[str, Any]:
        """The columns of a block, all of the method's in one order; None where there are none."""
        path = self.folder / f"{slug(method)}-{number:05d}.parquet"
        found = read_parquet(path, REDO)
        names = self.columns[method]
        if method not in self.differs:
            names = {name: None for name in names if not name.endswith("_guaranteed_fit")}
        return {name: found.get(name, [None] * size) for name in names}


def _write_predictions(path: Path, methods: tuple[str, ...], blocks: Blocks) -> None:
    types: dict[str, str] = {"query_id": "string", "wrong": "bool", "unit": "string"}
    for method in methods:
        names = blocks.read(method, 0, 0)
        types |= {f"{method}.{_plain(name)}": column_type(name) for name in names}
    with TableWriter(path, types) as writer:
        for number in range(blocks.count):
            columns = blocks.read(KNOWN, number, 0)
            size = len(columns["query_id"])
            for method in methods:
                found = blocks.read(method, number, size)
                columns |= {f"{method}.{_plain(name)}": v for name, v in found.items()}
            writer.write(columns)


def _plain(name: str) -> str:
    return name.removesuffix("_fit") if name.endswith("_guaranteed_fit") else name


def column_type(name: str) -> str:
    """Of a column of predictions."""
    if name.startswith("answered_"):
        return "bool"
    return "string" if name.startswith("reason_") or name in ("cause", "side", "why") else "double"


def _rounds(work: Work, tables: Tables, methods: tuple[str, ...]) -> dict[str, Any]:
    """What drawing in rounds would have cost and answered, beside fixed numbers of samples."""
    config, (rounds, why) = work.config, read_rounds(work.run)
    found: dict[str, Any] = {"absent": why, "tiers": [], "rows": []}
    with library_quiet():  # the table itself shows where nothing is certified
        if rounds is not None:
            found |= replayed(rounds, tables.tests(), config)
        counts, found["fixed"] = config.rounds.counts, []
        if counts:
            found["fixed"] = curve_of(tables.known, tables.tests, counts, methods, config)
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
    if compared.u is outcome.applied.u:
        return {}
    p = compared.p_wrong
    return {GUARANTEED_U: compared.u, **({} if p is None else {GUARANTEED_P: p})}


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


def need_methods(columns: Collection[str], methods: Iterable[str], run: Path) -> None:
    """Refuse predictions that lack a method which the results have."""
    for name in methods:
        if not {f"{name}.u", f"{name}.p_wrong"} <= set(columns):
            raise ArtefactError(f"{run}: the predictions have nothing of {name}. {REDO}")


def open_predictions(run: Path) -> StoredTable:
    """The same, read when it is looked at."""
    path = require_whole(run, "evaluate") / PREDICTIONS
    return StoredTable(path, REDO, columns=PREDICTED)


def evaluate(
    outcomes: Mapping[str, Outcome],
    queries: Table,
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
