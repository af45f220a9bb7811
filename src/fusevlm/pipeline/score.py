"""Stage score: a column per baseline, and apart from them which answers are wrong.

Baselines that have something to tune see the labels of calibration queries, and no others. From
here on nothing loads a model: what earlier stages stored is joined (:mod:`.table`), the calibration
queries once and the test queries some at a time, without hidden states where nobody needs them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from fusevlm.checks import FloatArray
from fusevlm.pipeline.engine import Job, open_parts
from fusevlm.pipeline.parts import Piece
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.table import (
    ABSENT,
    EVIDENCE,
    FAILED,
    LABELS,
    ROWS,
    TABLE,
    Reader,
    all_failed,
    evidence_needs,
    further_evidence,
    label,
    read_scored,
    read_table,
)
from fusevlm.scores import SCORES, Streamed, absent_scores, compute_scores, needs_of
from fusevlm.scores.interface import Lacks
from fusevlm.store import save_json
from fusevlm.store.parts import Part, Parts
from fusevlm.store.runs import SECONDS
from fusevlm.store.tables import TableWriter
from fusevlm.types import Queries

__all__ = [
    "ABSENT", "EVIDENCE", "FAILED", "LABELS", "TABLE", "evidence_needs", "further_evidence",
    "label", "make", "read_scored", "read_table", "timed_scores",
]  # fmt: skip

KIND = "fusevlm.scores"
ID, WRONG, COLUMN = "query_id", "wrong", "score "  # columns of a part's rows
TOLD = "seconds"


def make(work: Work) -> dict[str, int]:
    """Write scores, labels, and the queries that have neither with the reason."""
    folder = work.folder("score")
    parts = open_parts(work, "score", KIND)
    seconds: dict[str, float] = {}

    def noted(index: int | None, told: Mapping[str, Any]) -> str:
        for name, spent in told.get(TOLD, {}).items():
            seconds[name] = seconds.get(name, 0.0) + spent
        return ""

    spans = items(work)
    work.engine.fill(Job("score", parts, spans, 1, noted=noted), work)
    counts = _put_together(work, parts, len(spans))
    kept = {name: round(spent, 4) for name, spent in seconds.items()}
    save_json(folder / SECONDS, kept)
    for index in range(len(spans)):
        parts.remove(index)
    return counts


def items(work: Work) -> Sequence[tuple[int, int]]:
    """The calibration queries, then the test queries in blocks: where each begins and ends."""
    return Reader(work.run, work.config).blocks()


def open_maker(work: Work) -> Scores:
    """What scores blocks of queries."""
    return Scores(work)


class Scores:
    """Makes a part of each block: its scores, its labels, who failed, and what is lacking."""

    def __init__(self, work: Work) -> None:
        self.reader = Reader(work.run, work.config)
        self.names = work.config.score.baselines or tuple(SCORES)
        self.needs = needs_of(self.names)
        self.seconds: dict[str, float] = {}

    @cached_property
    def known(self) -> tuple[Queries | None, dict[str, str]]:
        """The calibration queries, and why some of them failed."""
        size = self.reader.n_calibration
        return self.reader.table(self.needs, 0, size) if size else (None, {})

    @cached_property
    def scores(self) -> Streamed:
        """The scores, once the calibration queries are read."""
        return Streamed(self.names, self.known[0])

    def make(self, piece: Piece) -> Part:
        ((start, stop),) = piece.items
        rows: dict[str, Any] = {ID: [], WRONG: []}
        facts: dict[str, Any] = {"queries": 0}
        of_known = start < self.reader.n_calibration
        queries, failed = self.known if of_known else self.reader.table(self.needs, start, stop)
        if queries is not None:
            found = self.scores.of_known() if of_known else self.scores.of(queries)
            wrong = [None] * len(queries) if queries.wrong is None else queries.wrong.tolist()
            rows = {ID: list(queries.ids), WRONG: wrong}
            rows |= {f"{COLUMN}{name}": column for name, column in found.columns.items()}
            lacks = {need: list(told) for need, told in found.lacks.by_need.items()}
            facts = {
                "queries": len(queries),
                "sampled": found.lacks.sampled,
                "lacks": lacks,
                "errors": found.errors,
            }
            self.seconds = found.seconds
        return Part(rows, {}, {**facts, "reasons": failed})

    def told(self) -> dict[str, Any]:
        """Seconds that each score took since it was last asked."""
        spent, self.seconds = self.seconds, {}
        return {TOLD: spent}

    def close(self) -> None:
        return


def _put_together(work: Work, parts: Parts, size: int) -> dict[str, int]:
    """Write the tables of all blocks, and the reasons of those who are not in them."""
    folder = work.folder("score")
    names = work.config.score.baselines or tuple(SCORES)
    failed: dict[str, str] = {}
    errors: dict[str, str] = {}
    lacking: list[Lacks] = []
    counts: list[int] = []
    for index in range(size):
        facts = parts.read(index).facts
        failed |= facts["reasons"]
        counts.append(facts["queries"])
        if facts["queries"]:
            errors = {**facts["errors"], **errors}
            lacking.append(
                Lacks(
                    facts["queries"],
                    facts["sampled"],
                    {need: (told[0], told[1]) for need, told in facts["lacks"].items()},
                )
            )
    if not sum(counts):
        raise all_failed(failed)
    absent = absent_scores(names, lacking, errors)
    there = [name for name in names if name not in absent]
    types = {ID: "string", **dict.fromkeys(there, "double")}
    with (
        TableWriter(folder / TABLE, types) as table,
        TableWriter(folder / LABELS, {ID: "string", WRONG: "bool"}) as labels,
    ):
        for index in range(size):
            rows = parts.read(index).rows
            if counts[index]:
                table.write({ID: rows[ID], **{n: rows[f"{COLUMN}{n}"] for n in there}})
                labels.write({ID: rows[ID], WRONG: rows[WRONG]})
    save_json(folder / ROWS, {"rows": counts})
    save_json(folder / FAILED, failed)
    save_json(folder / ABSENT, absent)
    return {
        "queries": sum(counts),
        "failed": len(failed),
        "columns": len(there),
        "absent": len(absent),
    }


def timed_scores(
    queries: Queries, names: Sequence[str]
) -> tuple[dict[str, FloatArray], dict[str, str], dict[str, float]]:
    """Each baseline by itself with the seconds it took, and why the others are absent."""
    columns: dict[str, FloatArray] = {}
    absent: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in names:
        start = time.perf_counter()
        found, reasons = compute_scores(queries, [name])
        columns |= found
        absent |= reasons
        if name in found:
            seconds[name] = round(time.perf_counter() - start, 4)
    return columns, absent, seconds
