"""Stage score: a column per baseline, and apart from them which answers are wrong.

Baselines that have something to tune see the labels of calibration queries, and no others. From
here on nothing loads a model: :func:`read_table` joins what earlier stages stored, once per stage,
and without hidden states where nobody needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import prior_statistics
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.adapter import check_statistics, read_statistics
from fusevlm.pipeline.data import CALIBRATION, read_asked
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.semantics import read_semantics
from fusevlm.scores import SCORES, compute_scores, needs_of
from fusevlm.scores.agreement import complement_column, rephrasing_column
from fusevlm.scores.likelihood import margin_column
from fusevlm.settings import AdapterConfig, Config
from fusevlm.store import read_json, read_parquet, save_json, save_parquet
from fusevlm.store.declared import OTHERS
from fusevlm.store.generations import read_embeddings, read_generations, read_views
from fusevlm.store.runs import SECONDS, require
from fusevlm.types import Generation, Queries, Query, Samples, Semantics

TABLE, LABELS, FAILED, ABSENT = "scores.parquet", "labels.parquet", "failed.json", "absent.json"
MIDDLE, PROMPT = "middle", "prompt"
REDO = "Make it again: --redo score."


def make(work: Work) -> dict[str, int]:
    """Write scores, labels, and the queries that have neither with the reason."""
    names = work.config.score.baselines or tuple(SCORES)
    queries, failed = read_table(work.run, work.config, states=needs_of(names))
    columns, absent, seconds = timed_scores(queries, names)
    folder = work.folder("score")
    save_parquet(folder / TABLE, {"query_id": queries.ids, **columns})
    wrong = [None] * len(queries) if queries.wrong is None else queries.wrong
    save_parquet(folder / LABELS, {"query_id": queries.ids, "wrong": wrong})
    save_json(folder / FAILED, failed)
    save_json(folder / ABSENT, absent)
    save_json(folder / SECONDS, seconds)
    return {
        "queries": len(queries),
        "failed": len(failed),
        "columns": len(columns),
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


def read_table(
    run: Path, config: Config, *, states: set[str] | None = None
) -> tuple[Queries, dict[str, str]]:
    """All queries of a run that did not fail, before they are scored; and why the others did.

    ``states`` are needs of scores or methods: hidden states are read only where they hold
    ``embeddings`` or ``middle``, and the judged answers' where they hold ``answer_state``. The
    inputs ``image`` and ``text`` are always there; ``prompt``, the state of the last prompt token,
    where hidden states are read or ``prompt`` is among the needs, and the model gave it to all
    queries: it lies in the same files.
    """
    needs = states or set()
    asked = {q.id: q for q in read_asked(run)}
    layer = config.score.layer if "embeddings" in needs else None
    further = (MIDDLE,) if "middle" in needs and MIDDLE in config.sample.layers else ()
    judged = (config.score.layer,) if "answer_state" in needs else ()
    prompts = (config.sample.prompt_layer,) if needs & {"embeddings", "middle", PROMPT} else ()
    stored = read_generations(
        require(run, "sample"), layer, layers=further, answers=judged, prompts=prompts
    )
    found = {g.query_id: g for g in stored}
    statistics = read_statistics(run)
    failed = _failed(found, statistics)
    ids = [i for i in asked if i in found and i not in failed]
    if not ids:
        reasons = sorted(set(failed.values()))
        raise ArtefactError(f"all {len(asked)} queries failed: {'; '.join(reasons[:3])}")
    queries = [asked[i] for i in ids]
    generations = [found[i] for i in ids]
    samples = [g.samples for g in generations if g.samples is not None]
    meant = _meant(run, ids, samples) if needs else None
    inputs = _inputs(run, ids, generations, config.sample.prompt_layer)
    fit = np.flatnonzero([q.metadata["split"] == CALIBRATION for q in queries])
    labelled = all(q.references for q in queries)
    table = Queries(
        ids,
        samples,
        wrong=label(queries, samples, config.score.criterion) if labelled else None,
        prior=_prior(statistics, ids, config.adapter, "image" in inputs),
        inputs=inputs,
        views=_views(run, queries),
        columns=_columns(queries, statistics, ids),
        units=[str(q.metadata["unit"]) for q in queries],
        fit=fit if len(fit) else None,
        references=[q.references for q in queries],
        semantics=meant,
        states={
            name: [g.layers[name] for g in generations]
            for name in further
            if all(name in g.layers for g in generations)
        },
        sample_wrong=[
            _sample_wrong(q, said, config.score.criterion)
            for q, said in zip(queries, samples, strict=True)
        ]
        if "sample_wrong" in needs and labelled
        else None,
        answer_states={
            name: _stacked([g.answer_layers[name] for g in generations], f"answer in {name}")
            for name in judged
            if all(name in g.answer_layers for g in generations)
        },
    )
    return table, failed


def read_scored(
    run: Path, config: Config, *, states: set[str] | None = None
) -> tuple[Queries, dict[str, str]]:
    """The table with the columns and labels of the finished stage; and why scores are absent."""
    folder = require(run, "score")
    table = read_parquet(folder / TABLE, REDO, columns={"query_id": str, OTHERS: float | None})
    labels = read_parquet(folder / LABELS, REDO, columns={"query_id": str, "wrong": bool | None})
    needs = (states or set()) | evidence_needs(config.calibrate.evidence)
    queries, _ = read_table(run, config, states=needs)
    if not list(queries.ids) == table.pop("query_id") == labels["query_id"]:
        raise ArtefactError(f"{folder} is not of these queries. {REDO}")
    scores = {name: np.array(values, dtype=np.float64) for name, values in table.items()}
    absent = read_json(folder / ABSENT, REDO)
    wrong = None if None in labels["wrong"] else np.array(labels["wrong"], dtype=np.bool_)
    queries = replace(queries, wrong=wrong, columns={**queries.columns, **scores})
    return replace(queries, evidence=further_evidence(queries, config.calibrate.evidence)), absent


def further_evidence(queries: Queries, names: Sequence[str]) -> dict[str, FloatArray]:
    """The evidence that calibrate.evidence names, NaN where a query was not asked for it."""
    return {name: EVIDENCE.get(name, partial(_score_column, name=name))(queries) for name in names}


def _score_column(queries: Queries, name: str) -> FloatArray:
    return np.asarray(queries.column(name, "calibrate.evidence"), dtype=np.float64)


EVIDENCE: dict[str, Callable[[Queries], FloatArray]] = {
    "complement": complement_column,
    "rephrasing": rephrasing_column,
    "margin": margin_column,
}


def evidence_needs(names: Sequence[str]) -> set[str]:
    """What must be read for some further evidence."""
    needs = {"complement": "complement", "rephrasing": "rephrasings"}
    return {needs[name] for name in names if name in needs}


def _prior(
    statistics: Mapping[str, Mapping[str, float]],
    ids: Sequence[str],
    adapter: AdapterConfig,
    pictures: bool,
) -> dict[str, FloatArray]:
    """The statistic that is ``s``, and those beside it under their own names."""
    check_statistics(adapter, next(iter(statistics.values())), pictures=pictures)
    return {
        name: np.array([statistics[i][own] for i in ids], dtype=np.float64)
        for name, own in prior_statistics(adapter, pictures=pictures).items()
    }


def _inputs(
    run: Path, ids: Sequence[str], generations: Sequence[Generation], layer: str
) -> dict[str, FloatArray]:
    """Vectors of each query's image and question and, where all have it, of its prompt."""
    embedded, vectors = read_embeddings(require(run, "embed"))
    rows = _places(embedded, ids)
    found = {name: values[rows].astype(np.float64) for name, values in vectors.items()}
    prompts = [g.prompt_layers[layer] for g in generations if layer in g.prompt_layers]
    if len(prompts) == len(ids):
        found[PROMPT] = _stacked(prompts, "prompt").astype(np.float64)
    return found


def _places(known: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Rows of the embedded queries with these ids."""
    place = {query_id: k for k, query_id in enumerate(known)}
    gone = [i for i in ids if i not in place]
    if gone:
        raise ArtefactError(f"embed has nothing of the query {gone[0]!r}. --redo embed.")
    return [place[i] for i in ids]


def _stacked(states: Sequence[Any], what: str) -> Any:
    """Hidden states of all queries in one array, which must be of one shape."""
    if len({np.shape(state) for state in states}) > 1:
        raise ArtefactError(f"the stored states of the {what} differ in shape. --redo sample.")
    return np.stack([np.asarray(state) for state in states])


def _meant(run: Path, ids: Sequence[str], samples: Sequence[Samples]) -> list[Semantics] | None:
    """What stage semantics found of these queries, which must be of as many samples."""
    meant = read_semantics(run)
    for i, said in zip(ids, samples, strict=True) if meant else ():
        own, n = meant.get(i), len(said)
        sizes = [] if own is None else [(own.meanings, (n,)), (own.between, (n + 1, n + 1))]
        if own is None or any(v is not None and np.shape(v) != size for v, size in sizes):
            raise ArtefactError(
                f"semantics is not of the samples of query {i!r}. --redo semantics."
            )
    return [meant[i] for i in ids] if meant else None


def _views(run: Path, queries: Sequence[Query]) -> dict[str, Any]:
    """How the queries look: what stage embed kept of images and questions, and the words."""
    folder = require(run, "embed")
    rows = _places(read_embeddings(folder)[0], [q.id for q in queries])
    views = {k: values[rows].astype(np.float64) for k, values in read_views(folder).items()}
    return {**views, "question_words": [q.question for q in queries]} if views else {}


def _columns(
    queries: Sequence[Query], statistics: Mapping[str, Mapping[str, float]], ids: Sequence[str]
) -> dict[str, Any]:
    """Metadata that every query has, the question, and every prior statistic."""
    names = [n for n in queries[0].metadata if all(n in q.metadata for q in queries)]
    found: dict[str, Any] = {name: [q.metadata[name] for q in queries] for name in names}
    found["question"] = [q.question for q in queries]
    for name in next(iter(statistics.values())):
        found[name] = np.array([statistics[i][name] for i in ids])
    return found


def _sample_wrong(query: Query, samples: Samples, criterion: str) -> BoolArray:
    """Whether each sample is wrong; test queries are not looked at and count as right."""
    if query.metadata["split"] != CALIBRATION:
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


def label(queries: Sequence[Query], samples: Sequence[Samples], criterion: str) -> BoolArray:
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
