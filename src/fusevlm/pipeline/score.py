"""Stage score: a column per score, and apart from them which answers are wrong.

Scores that have something to tune see the labels of calibration queries, and no others. From here
on nothing loads a model: everything comes from the tables of earlier stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import Config
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.adapter import STATISTICS
from fusevlm.pipeline.data import read_queries_of
from fusevlm.pipeline.run import Work, require
from fusevlm.pipeline.semantics import Meaning, read_meanings
from fusevlm.pipeline.tables import read_parquet, save_parquet
from fusevlm.scores import Inputs, compute_scores
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import save_json
from fusevlm.types import Generation, Query, Samples

TABLE, LABELS, FAILED, ABSENT = "scores.parquet", "labels.parquet", "failed.json", "absent.json"
PRIOR = "s"  # the column that holds adapter.statistic
MIDDLE = "middle"
TEXT = ("query_id", "split")


def make(work: Work) -> dict[str, int]:
    """Write scores, labels, and the queries that have neither with the reason."""
    layer = work.config.score.layer
    queries = {q.id: q for q in read_queries_of(work.run)}
    found = {g.query_id: g for g in read_generations(require(work.run, "sample"), layer)}
    statistics = _statistics(work.run)
    failed = _failed(found, statistics)
    ids = [i for i in queries if i not in failed]
    if not ids:
        reasons = sorted(set(failed.values()))
        raise ArtefactError(f"all {len(queries)} queries failed: {'; '.join(reasons[:3])}")
    splits = [str(queries[i].metadata["split"]) for i in ids]
    generations = [found[i] for i in ids]
    asked = [queries[i] for i in ids]
    samples = [g.samples for g in generations if g.samples is not None]
    wrong = judge(asked, samples, work.config.score.criterion)
    columns, absent = compute_scores(
        score_inputs(
            asked, generations, read_meanings(work.run), wrong, work.config.score.criterion
        )
    )
    for name in next(iter(statistics.values())):
        columns[name] = np.array([statistics[i][name] for i in ids])
    columns[PRIOR] = columns[work.config.adapter.statistic]
    folder = work.folder("score")
    save_parquet(folder / TABLE, {"query_id": ids, "split": splits, **columns})
    save_parquet(folder / LABELS, {"query_id": ids, "wrong": wrong})
    save_json(folder / FAILED, failed)
    save_json(folder / ABSENT, absent)
    return {"queries": len(ids), "failed": len(failed), "columns": len(columns)}


def score_inputs(
    queries: Sequence[Query],
    generations: Sequence[Generation],
    meanings: Mapping[str, Meaning],
    wrong: BoolArray,
    criterion: str,
) -> Inputs:
    """All that scores may read of these queries; labels are for calibration queries only."""
    samples = [g.samples for g in generations if g.samples is not None]
    fit = np.flatnonzero([q.metadata["split"] == "calibration" for q in queries])
    known = [meanings[q.id] for q in queries]
    p_true = [m.p_true for m in known if m.p_true is not None]
    middle = [np.asarray(g.layers[MIDDLE]) for g in generations if MIDDLE in g.layers]
    return Inputs(
        samples,
        middle=middle if len(middle) == len(samples) else None,
        clusters=_all([m.clusters for m in known]),
        similarity=_all([m.similarity for m in known]),
        answer_similarity=_all([m.answer_similarity for m in known]),
        agreement=_all([m.agreement for m in known]),
        p_true=np.array(p_true) if len(p_true) == len(known) else None,
        fit=fit if len(fit) else None,
        wrong=wrong,
        sample_wrong=[
            _sample_wrong(query, said, criterion)
            for query, said in zip(queries, samples, strict=True)
        ],
    )


def _all(values: Sequence[Any]) -> Any:
    """The values, or None where any is missing."""
    return None if any(value is None for value in values) else values


def _sample_wrong(query: Query, samples: Samples, criterion: str) -> BoolArray:
    """Whether each sample is wrong; test queries are not looked at and count as right."""
    if query.metadata["split"] != "calibration":
        return np.zeros(len(samples), dtype=np.bool_)
    verdict = {t: is_wrong(t, query.references, criterion) for t in set(samples.texts)}
    return np.array([verdict[text] for text in samples.texts])


def _failed(found: Mapping[str, Generation], statistics: Mapping[str, Any]) -> dict[str, str]:
    """Why some queries cannot be scored."""
    failed = {i: g.error for i, g in found.items() if g.error is not None}
    for query_id in found:
        if query_id not in failed and query_id not in statistics:
            failed[query_id] = "its image or question could not be embedded"
    return failed


def judge(queries: Sequence[Query], samples: Sequence[Samples], criterion: str) -> BoolArray:
    """Which judged answers are wrong."""
    found = []
    for query, said in zip(queries, samples, strict=True):
        if said.answer is None:
            raise InputError(f"query {query.id!r} has no judged answer.")
        try:
            found.append(is_wrong(said.answer, query.references, criterion))
        except InputError as error:
            raise InputError(f"query {query.id!r}: {error}") from error
    return np.array(found, dtype=np.bool_)


def _statistics(run: Path) -> dict[str, dict[str, float]]:
    table = read_parquet(require(run, "adapter") / STATISTICS)
    ids = table.pop("query_id")
    return {i: {name: table[name][k] for name in table} for k, i in enumerate(ids)}


@dataclass(frozen=True, eq=False)
class Scored:
    """The scored queries of one split, aligned."""

    ids: list[str]
    samples: list[Samples]
    columns: dict[str, FloatArray]
    wrong: BoolArray

    @property
    def s(self) -> FloatArray:
        return self.columns[PRIOR]


def read_scored(run: Path, split: str, layer: str) -> Scored:
    """Samples, columns and labels of the queries of a split that did not fail."""
    folder = require(run, "score")
    table, labels = read_parquet(folder / TABLE), read_parquet(folder / LABELS)
    rows = [k for k, name in enumerate(table["split"]) if name == split]
    if not rows:
        raise ArtefactError(f"{folder} holds no query of the split {split}.")
    ids = [table["query_id"][k] for k in rows]
    columns = {
        name: np.array([values[k] for k in rows], dtype=np.float64)
        for name, values in table.items()
        if name not in TEXT
    }
    wrong = np.array([labels["wrong"][k] for k in rows], dtype=np.bool_)
    wanted = set(ids)
    samples = {
        g.query_id: g.samples
        for g in read_generations(require(run, "sample"), layer)
        if g.query_id in wanted and g.samples is not None
    }
    return Scored(ids, [samples[i] for i in ids], columns, wrong)


@dataclass(frozen=True, eq=False)
class Whole:
    """All queries of a run that did not fail, calibration and test, as scores read them."""

    inputs: Inputs
    s: FloatArray
    answers: list[str]
    references: list[Sequence[str]]
    clusters: list[str]  # what is resampled together
    n_failed: int


def read_inputs(run: Path, config: Config) -> Whole:
    """What the stage score had before it, for comparisons that go beyond its columns."""
    folder = require(run, "score")
    table, labels = read_parquet(folder / TABLE), read_parquet(folder / LABELS)
    ids = table["query_id"]
    known = {q.id: q for q in read_queries_of(run)}
    found = {g.query_id: g for g in read_generations(require(run, "sample"), config.score.layer)}
    queries, generations = [known[i] for i in ids], [found[i] for i in ids]
    wrong = np.array(labels["wrong"], dtype=np.bool_)
    cluster = config.evaluate.cluster
    return Whole(
        score_inputs(queries, generations, read_meanings(run), wrong, config.score.criterion),
        np.array(table[PRIOR], dtype=np.float64),
        [(g.samples.answer or "") if g.samples else "" for g in generations],
        [q.references for q in queries],
        [str(q.metadata.get(cluster, q.id)) for q in queries],
        len(known) - len(ids),
    )
