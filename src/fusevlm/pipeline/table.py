"""What earlier stages stored, joined into tables of queries: all of them, or some at a time.

From the stage score on nothing loads a model, and no more queries are in memory than one block of
them (:data:`BLOCK`) beside the calibration queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import prior_statistics
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.adapter import REDO as REDO_ADAPTER
from fusevlm.pipeline.adapter import STATISTICS, check_statistics
from fusevlm.pipeline.adapter import STORED as OF_ADAPTER
from fusevlm.pipeline.data import CALIBRATION, TEST, read_asked
from fusevlm.pipeline.semantics import KIND as SEMANTICS
from fusevlm.pipeline.semantics import STORED as OF_SEMANTICS
from fusevlm.pipeline.semantics import unpack_semantics
from fusevlm.scores.agreement import complement_column, rephrasing_column
from fusevlm.scores.likelihood import margin_column
from fusevlm.settings import AdapterConfig, Config
from fusevlm.store import read_json
from fusevlm.store.declared import OTHERS
from fusevlm.store.generations import (
    EMBEDDED,
    EMBEDDINGS,
    KIND,
    Wish,
    embeddings_between,
    generations_between,
)
from fusevlm.store.generations import (
    PROMPT as OF_PROMPT,
)
from fusevlm.store.generations import (
    STORED as SAMPLED,
)
from fusevlm.store.parts import Stored
from fusevlm.store.runs import require
from fusevlm.store.tables import StoredTable
from fusevlm.types import Generation, Queries, Query, Samples, Semantics

TABLE, LABELS, FAILED, ABSENT = "scores.parquet", "labels.parquet", "failed.json", "absent.json"
ROWS = "rows.json"  # how many queries of each block are in the table
MIDDLE, PROMPT = "middle", "prompt"
REDO = "Make it again: --redo score."
BLOCK = 2048  # test queries in memory at a time


def blocks(n_calibration: int, n_queries: int) -> list[tuple[int, int]]:
    """(start, stop) of the calibration queries and of each block of test queries, in order."""
    first = [(0, n_calibration)] if n_calibration else []
    starts = range(n_calibration, n_queries, BLOCK)
    return first + [(start, min(start + BLOCK, n_queries)) for start in starts]


class Reader:
    """Reads the stored queries of a run with all that is known of them before they are scored."""

    def __init__(self, run: Path, config: Config) -> None:
        self.run, self.config = run, config
        self.asked = read_asked(run)
        self.sampled = Stored(require(run, "sample"), KIND, columns=SAMPLED)
        self.embedded = Stored(require(run, "embed"), EMBEDDINGS, columns=EMBEDDED)
        path = require(run, "adapter") / STATISTICS
        self.statistics = StoredTable(path, REDO_ADAPTER, columns=OF_ADAPTER)

    @property
    def n_calibration(self) -> int:
        return self.asked.n_calibration

    def blocks(self) -> list[tuple[int, int]]:
        """The calibration queries, then the test queries some at a time."""
        return blocks(self.n_calibration, len(self.asked))

    @cached_property
    def _meant(self) -> Stored:
        return Stored(require(self.run, "semantics"), SEMANTICS, columns=OF_SEMANTICS)

    @cached_property
    def labelled(self) -> bool:
        """Whether all queries that did not fail have references."""
        for start in range(0, len(self.asked), BLOCK):
            stop = min(start + BLOCK, len(self.asked))
            bare = [k for k, r in enumerate(self.asked.column("references", start, stop)) if not r]
            if bare:
                failed = self._failed(start, stop, Wish())[0]
                queries = self.asked[start:stop]
                if any(queries[k].id not in failed for k in bare):
                    return False
        return True

    @cached_property
    def prompted(self) -> bool:
        """Whether all queries that were answered have a state of the prompt."""
        kind = f"{self.config.sample.prompt_layer}{OF_PROMPT}"
        return self.sampled.kinds[kind] == self.sampled.good[-1]

    def _wish(self, needs: set[str]) -> Wish:
        """The hidden states that are read for some needs."""
        config = self.config
        further = (MIDDLE,) if "middle" in needs and MIDDLE in config.sample.layers else ()
        prompts = (config.sample.prompt_layer,) if needs & {"embeddings", "middle", PROMPT} else ()
        return Wish(
            layer=config.score.layer if "embeddings" in needs else None,
            layers=further,
            answers=(config.score.layer,) if "answer_state" in needs else (),
            prompts=prompts if self.prompted else (),
        )

    def _failed(
        self, start: int, stop: int, wish: Wish
    ) -> tuple[dict[str, str], dict[str, Generation], dict[str, list[Any]]]:
        """Why queries cannot be scored; the generations by id; the statistics' rows."""
        stored = generations_between(self.sampled, start, stop, wish)
        found = {g.query_id: g for g in stored}
        first, end = self.embedded.good_before(start), self.embedded.good_before(stop)
        statistics = self.statistics.rows(first, end)
        return failures(found, set(statistics["query_id"])), found, statistics

    def table(
        self, needs: set[str] | None = None, start: int = 0, stop: int | None = None
    ) -> tuple[Queries | None, dict[str, str]]:
        """The queries from ``start`` to ``stop`` that did not fail; and why the others did.

        ``needs`` are of scores or methods: hidden states are read only where they hold
        ``embeddings`` or ``middle``, and the judged answers' where they hold ``answer_state``. The
        inputs ``image`` and ``text`` are always there; ``prompt``, the state of the last prompt
        token, where hidden states are read or ``prompt`` is among the needs, and the model gave it
        to all queries: it lies in the same files. None where all failed.
        """
        wanted = needs or set()
        end = len(self.asked) if stop is None else stop
        wish, config = self._wish(wanted), self.config
        failed, found, statistics = self._failed(start, end, wish)
        queries = [q for q in self.asked[start:end] if q.id in found and q.id not in failed]
        if not queries:
            return None, failed
        ids = [q.id for q in queries]
        generations = [found[i] for i in ids]
        samples = [g.samples for g in generations if g.samples is not None]
        vectors, views = self._vectors(start, end, ids)
        inputs = _inputs(vectors, generations, config.sample.prompt_layer)
        rows = _places(statistics.pop("query_id"), ids, "adapter")
        known = {n: [column[k] for k in rows] for n, column in statistics.items()}
        fit = np.flatnonzero([q.metadata["split"] == CALIBRATION for q in queries])
        meant = self._semantics(start, end, ids, samples) if wanted else None
        table = Queries(
            ids,
            samples,
            wrong=label(queries, samples, config.score.criterion) if self.labelled else None,
            prior=_prior(known, config.adapter, "image" in inputs),
            inputs=inputs,
            views={**views, "question_words": [q.question for q in queries]} if views else {},
            columns=_columns(queries, known),
            units=[str(q.metadata["unit"]) for q in queries],
            fit=fit if len(fit) else None,
            references=[q.references for q in queries],
            semantics=meant,
            states={
                name: [g.layers[name] for g in generations]
                for name in wish.layers
                if all(name in g.layers for g in generations)
            },
            sample_wrong=[
                _sample_wrong(q, said, config.score.criterion)
                for q, said in zip(queries, samples, strict=True)
            ]
            if "sample_wrong" in wanted and self.labelled
            else None,
            answer_states={
                name: _stacked([g.answer_layers[name] for g in generations], f"answer in {name}")
                for name in wish.answers
                if all(name in g.answer_layers for g in generations)
            },
        )
        return table, failed

    def _vectors(
        self, start: int, stop: int, ids: Sequence[str]
    ) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Input vectors of the queries ``ids``, and how they look."""
        names, vectors, views = embeddings_between(self.embedded, start, stop)
        rows = _places(names, ids, "embed")
        both = (vectors, views)
        inputs, seen = ({k: v[rows].astype(np.float64) for k, v in own.items()} for own in both)
        return inputs, seen

    def _semantics(
        self, start: int, stop: int, ids: Sequence[str], samples: Sequence[Samples]
    ) -> list[Semantics] | None:
        """What the stage semantics found of the queries ``ids``, which must be of these samples."""
        first, end = self.sampled.good_before(start), self.sampled.good_before(stop)
        found: dict[str, Semantics] = {}
        for number, low, high in self._meant.spans(first, end):
            found |= unpack_semantics(*self._meant.read(number), range(low, high))
        for i, said in zip(ids, samples, strict=True) if found else ():
            own, n = found.get(i), len(said)
            sizes = [] if own is None else [(own.meanings, (n,)), (own.between, (n + 1, n + 1))]
            if own is None or any(v is not None and np.shape(v) != size for v, size in sizes):
                raise ArtefactError(
                    f"semantics is not of the samples of query {i!r}. --redo semantics."
                )
        return [found[i] for i in ids] if found else None


class Scored:
    """Reads the queries of a run with the columns and labels of the finished stage score."""

    def __init__(self, run: Path, config: Config, reader: Reader | None = None) -> None:
        self.run, self.config = run, config
        self.reader = reader or Reader(run, config)
        self._folder = require(run, "score")
        columns = {"query_id": str, OTHERS: float | None}
        self._scores = StoredTable(self._folder / TABLE, REDO, columns=columns)
        columns = {"query_id": str, "wrong": bool | None}
        self._labels = StoredTable(self._folder / LABELS, REDO, columns=columns)
        self.absent: dict[str, str] = read_json(self._folder / ABSENT, REDO)

    @cached_property
    def _starts(self) -> dict[int, int]:
        """By the first query of each block: its first row in the table."""
        found: dict[int, int] = {}
        sizes = self._sizes()
        total = 0
        for (start, _), size in zip(self.reader.blocks(), sizes, strict=True):
            found[start] = total
            total += size
        return found

    def _sizes(self) -> list[int]:
        path = self._folder / ROWS
        sizes: Any = None
        if path.is_file():
            sizes = read_json(path, REDO).get("rows")
        else:  # a run of before: who failed is known by name
            failed = read_json(self._folder / FAILED, REDO)
            sizes = [
                sum(q.id not in failed for q in self.reader.asked[start:stop])
                for start, stop in self.reader.blocks()
            ]
        good = isinstance(sizes, list) and all(type(size) is int for size in sizes)
        if not good or len(sizes) != len(self.reader.blocks()) or sum(sizes) != len(self._scores):
            raise ArtefactError(f"{self._folder} is not of these queries. {REDO}")
        return list(sizes)

    def table(
        self, needs: set[str] | None, start: int, stop: int, config: Config | None = None
    ) -> Queries | None:
        """A block of the queries (:meth:`Reader.blocks`); None where all of it failed."""
        wanted = (needs or set()) | evidence_needs(self.config.calibrate.evidence)
        reader = self.reader
        if config is not None and config.score != reader.config.score:
            reader = self._with(config)
        queries, _ = reader.table(wanted, start, stop)
        return None if queries is None else self._joined(queries, self._starts[start])

    def whole(self, needs: set[str] | None = None) -> Queries:
        """All queries at once."""
        wanted = (needs or set()) | evidence_needs(self.config.calibrate.evidence)
        return self._joined(_some(*self.reader.table(wanted)), 0)

    def _with(self, config: Config) -> Reader:
        """A reader of another layer, on the same files."""
        other = Reader.__new__(Reader)
        other.__dict__ |= {k: v for k, v in self.reader.__dict__.items() if k != "config"}
        other.config = config
        return other

    def _joined(self, queries: Queries, row: int) -> Queries:
        table = self._scores.rows(row, row + len(queries))
        judged = self._labels.rows(row, row + len(queries))
        labels = judged["wrong"]
        if not list(queries.ids) == table.pop("query_id") == judged["query_id"]:
            raise ArtefactError(f"{self._folder} is not of these queries. {REDO}")
        scores = {name: np.array(values, dtype=np.float64) for name, values in table.items()}
        wrong = None if None in labels else np.array(labels, dtype=np.bool_)
        queries = replace(queries, wrong=wrong, columns={**queries.columns, **scores})
        evidence = further_evidence(queries, self.config.calibrate.evidence)
        return replace(queries, evidence=evidence)

    def known(self, needs: set[str] | None = None, config: Config | None = None) -> Queries:
        """The calibration queries; InputError where there are none."""
        size = self.reader.n_calibration
        if not size:
            raise InputError("there are no calibration queries: name data.calibration.")
        found = self.table(needs, 0, size, config)
        if found is None:
            raise self._all_failed(CALIBRATION)
        return found

    @property
    def n_known(self) -> int:
        """Calibration queries that did not fail."""
        return self._sizes()[0] if self.reader.n_calibration else 0

    def need_tests(self) -> None:
        """Refuse a run without a test query that did not fail."""
        if not self.test_blocks():
            raise InputError("there are no test queries: name data.test.")
        if sum(self._sizes()) == self.n_known:
            raise self._all_failed(TEST)

    def _all_failed(self, split: str) -> ArtefactError:
        failed = read_json(self._folder / FAILED, REDO)
        own = {name: why for name, why in failed.items() if name.startswith(f"{split}/")}
        return all_failed(own, f"{split} queries")

    def test_blocks(self) -> list[tuple[int, int]]:
        """Where the blocks of test queries are."""
        return [block for block in self.reader.blocks() if block[0] >= self.reader.n_calibration]

    def tests(
        self, needs: set[str] | None = None, config: Config | None = None
    ) -> Iterator[Queries]:
        """The test queries, a block at a time."""
        for start, stop in self.test_blocks():
            found = self.table(needs, start, stop, config)
            if found is not None:
                yield found


def read_table(
    run: Path, config: Config, *, states: set[str] | None = None
) -> tuple[Queries, dict[str, str]]:
    """All queries of a run that did not fail, before they are scored; and why the others did.

    ``states`` are the needs of :meth:`Reader.table`.
    """
    queries, failed = Reader(run, config).table(states)
    return _some(queries, failed), failed


def _some(queries: Queries | None, failed: Mapping[str, str]) -> Queries:
    if queries is None:
        raise all_failed(failed)
    return queries


def all_failed(failed: Mapping[str, str], what: str = "queries") -> ArtefactError:
    """Of queries of which none is left, and why."""
    reasons = sorted(set(failed.values()))
    return ArtefactError(f"all {len(failed)} {what} failed: {'; '.join(reasons[:3])}")


def read_scored(
    run: Path, config: Config, *, states: set[str] | None = None
) -> tuple[Queries, dict[str, str]]:
    """The table with the columns and labels of the finished stage; and why scores are absent."""
    scored = Scored(run, config)
    return scored.whole(states), scored.absent


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
    statistics: Mapping[str, Sequence[float]], adapter: AdapterConfig, pictures: bool
) -> dict[str, FloatArray]:
    """The statistic that is ``s``, and those beside it under their own names."""
    check_statistics(adapter, statistics, pictures=pictures)
    return {
        name: np.array(statistics[own], dtype=np.float64)
        for name, own in prior_statistics(adapter, pictures=pictures).items()
    }


def _inputs(
    vectors: Mapping[str, FloatArray], generations: Sequence[Generation], layer: str
) -> dict[str, FloatArray]:
    """Vectors of each query's image and question and, where all have it, of its prompt."""
    found = dict(vectors)
    prompts = [g.prompt_layers[layer] for g in generations if layer in g.prompt_layers]
    if len(prompts) == len(generations):
        found[PROMPT] = _stacked(prompts, "prompt").astype(np.float64)
    return found


def _places(known: Sequence[str], ids: Sequence[str], stage: str) -> list[int]:
    """Rows in which a stage has the queries with these ids."""
    place = {query_id: k for k, query_id in enumerate(known)}
    gone = [i for i in ids if i not in place]
    if gone:
        raise ArtefactError(f"{stage} has nothing of the query {gone[0]!r}. --redo {stage}.")
    return [place[i] for i in ids]


def _stacked(states: Sequence[Any], what: str) -> Any:
    """Hidden states of all queries in one array, which must be of one shape."""
    if len({np.shape(state) for state in states}) > 1:
        raise ArtefactError(f"the stored states of the {what} differ in shape. --redo sample.")
    return np.stack([np.asarray(state) for state in states])


def _columns(queries: Sequence[Query], statistics: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Metadata that every query has, the question, and every prior statistic."""
    names = [n for n in queries[0].metadata if all(n in q.metadata for q in queries)]
    found: dict[str, Any] = {name: [q.metadata[name] for q in queries] for name in names}
    found["question"] = [q.question for q in queries]
    return found | {name: np.array(values) for name, values in statistics.items()}


def _sample_wrong(query: Query, samples: Samples, criterion: str) -> BoolArray:
    """Whether each sample is wrong; test queries are not looked at and count as right."""
    if query.metadata["split"] != CALIBRATION:
        return np.zeros(len(samples), dtype=np.bool_)
    verdict = {t: is_wrong(t, query.references, criterion) for t in set(samples.texts)}
    return np.array([verdict[text] for text in samples.texts])


def failures(found: Mapping[str, Generation], embedded: set[str]) -> dict[str, str]:
    """Why some queries cannot be scored."""
    failed = {i: g.error for i, g in found.items() if g.error is not None}
    for query_id in found:
        if query_id not in failed and query_id not in embedded:
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
