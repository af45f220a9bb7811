"""Stage semantics: which samples mean the same, and what the model says when asked otherwise.

Clusters and similarities of the sampled answers, agreement under rephrased questions, P(True): all
that scores need beyond the samples and that takes a model to make. What the config leaves at "none"
is left out, and the scores that need it say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.config import Config, SemanticsConfig
from fusevlm.models.registry import local_input, model_folder
from fusevlm.pipeline.data import read_queries_of
from fusevlm.pipeline.run import Work, require
from fusevlm.pipeline.sample import load_backend
from fusevlm.semantics.strings import by_similarity, by_string
from fusevlm.store.generations import read_generations
from fusevlm.store.parts import PartStore, read_parts
from fusevlm.types import Query, Samples

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace
    from fusevlm.semantics.inference import NliModel
    from fusevlm.semantics.rephrase import Rephraser

KIND, GENERATOR = "fusevlm.semantics", "question_generator"
CACHE = "nli.sqlite"
BATCH = 100  # queries a part


@dataclass(frozen=True, eq=False)
class Meaning:
    """What is known of the samples of one query; None where the run does not have it."""

    clusters: IntArray | None = None
    between: FloatArray | None = None  # similarities [n+1, n+1] of samples and judged answer
    agreement: BoolArray | None = None
    p_true: float | None = None

    @property
    def similarity(self) -> FloatArray | None:
        """[n, n] between the samples."""
        return None if self.between is None else self.between[:-1, :-1]

    @property
    def answer_similarity(self) -> FloatArray | None:
        """[n] of each sample to the judged answer."""
        return None if self.between is None else self.between[-1, :-1]


def inputs(config: Config) -> dict[str, Path]:
    """The question generator's folder, if one is used."""
    if config.semantics.rephrase != "generator":
        return {}
    return local_input("semantics.generator", config.semantics.generator, GENERATOR)


def make(work: Work) -> dict[str, int]:
    """Go through the sampled queries, ``BATCH`` at a time, going on where it stopped."""
    queries = {q.id: q for q in read_queries_of(work.run)}
    found = [
        (queries[g.query_id], g.samples)
        for g in read_generations(require(work.run, "sample"))
        if g.samples is not None
    ]
    tools = Tools(work.config, work.folder("semantics") / CACHE)
    with PartStore(work.folder("semantics"), KIND, {"batch": BATCH}) as parts:
        for index, start in enumerate(range(0, len(found), BATCH)):
            work.progress(start, len(found))
            if index not in parts:
                batch = found[start : start + BATCH]
                rows, arrays = _packed([q.id for q, _ in batch], meanings(tools, batch))
                parts.write(index, rows, arrays, {"queries": len(batch)})
        parts.finish()
    work.progress(len(found), len(found))
    return {"queries": len(found)}


class Tools:
    """The models a config asks for, each loaded when it is first needed."""

    def __init__(self, config: Config, cache: Path) -> None:
        self.config, self.cache = config, cache
        self._made: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def wanted(self) -> SemanticsConfig:
        return self.config.semantics

    @property
    def vlm(self) -> HuggingFace:
        found: HuggingFace = self._once("vlm", lambda: load_backend(self.config.sample))
        return found

    @property
    def nli(self) -> tuple[NliModel, Any]:
        from fusevlm.semantics.inference import NliModel
        from fusevlm.store.cache import PairCache

        judge: NliModel = self._once("nli", lambda: NliModel.load(self.wanted.nli))
        return judge, self._once("cache", lambda: PairCache(self.cache))

    @property
    def encoder(self) -> Any:
        from fusevlm.models.towers import SentenceEncoder

        return self._once("encoder", lambda: SentenceEncoder.load(self.wanted.encoder))

    @property
    def rephraser(self) -> Rephraser:
        from fusevlm.semantics import rephrase

        makers: dict[str, Callable[[], Rephraser]] = {
            "generator": lambda: rephrase.by_generator(
                model_folder(self.wanted.generator, GENERATOR)
            ),
            "prompt": lambda: rephrase.by_prompt(self.vlm),
            "templates": rephrase.Templates,
        }
        found: Rephraser = self._once("rephraser", makers[self.wanted.rephrase])
        return found


def meanings(tools: Tools, batch: Sequence[tuple[Query, Samples]]) -> list[Meaning]:
    """Everything the config asks for, of some queries."""
    between = _similarities(tools, batch)
    clusters = _clusters(tools, batch, between)
    agreement = _agreements(tools, batch)
    p_true = _p_trues(tools, batch)
    return [Meaning(*row) for row in zip(clusters, between, agreement, p_true, strict=True)]


def _similarities(tools: Tools, batch: Sequence[tuple[Query, Samples]]) -> Sequence[Any]:
    """Between the samples and, last, the judged answer of each query."""
    texts = [[*samples.texts, samples.answer or ""] for _, samples in batch]
    kind = tools.wanted.similarity
    if kind == "sentences":
        from fusevlm.semantics.sentences import sentence_similarity

        return sentence_similarity(tools.encoder, texts)
    if kind == "nli":
        from fusevlm.semantics.inference import nli_similarity

        judge, cache = tools.nli
        questions = [query.question for query, _ in batch]
        return nli_similarity(judge, questions, texts, cache=cache).matrices
    if kind == "string":
        labels = [by_string(row) for row in texts]
        return [np.equal.outer(row, row).astype(np.float64) for row in labels]
    return [None] * len(batch)


def _clusters(
    tools: Tools, batch: Sequence[tuple[Query, Samples]], between: Sequence[Any]
) -> Sequence[Any]:
    texts = [samples.texts for _, samples in batch]
    kind = tools.wanted.clusters
    if kind == "string":
        return [by_string(row) for row in texts]
    if kind == "nli":
        from fusevlm.semantics.inference import cluster_queries

        judge, cache = tools.nli
        questions = [query.question for query, _ in batch]
        return cluster_queries(judge, questions, texts, cache=cache).labels
    if kind == "sentences":
        return [by_similarity(W[:-1, :-1], tools.wanted.threshold) for W in between]
    return [None] * len(batch)


def _agreements(tools: Tools, batch: Sequence[tuple[Query, Samples]]) -> Sequence[Any]:
    if tools.wanted.rephrase == "none":
        return [None] * len(batch)
    from fusevlm.semantics.rephrase import agreement

    queries, answers = _answered(batch)
    wanted = tools.wanted
    asked = tools.rephraser.rephrase(queries, answers, wanted.rephrasings, wanted.seed)
    return agreement(tools.vlm, queries, answers, asked)


def _p_trues(tools: Tools, batch: Sequence[tuple[Query, Samples]]) -> Sequence[Any]:
    if not tools.wanted.p_true:
        return [None] * len(batch)
    from fusevlm.semantics.selfcheck import p_true

    return [float(p) for p in p_true(tools.vlm, *_answered(batch)).yes]


def _answered(batch: Sequence[tuple[Query, Samples]]) -> tuple[list[Query], list[str]]:
    return [query for query, _ in batch], [samples.answer or "" for _, samples in batch]


def _packed(
    ids: Sequence[str], found: Sequence[Meaning]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    def plain(value: Any) -> Any:
        return None if value is None else value.tolist()

    rows: dict[str, list[Any]] = {
        "query_id": list(ids),
        "clusters": [plain(m.clusters) for m in found],
        "agreement": [plain(m.agreement) for m in found],
        "p_true": [m.p_true for m in found],
    }
    arrays = {
        f"{k}": m.between.astype(np.float32) for k, m in enumerate(found) if m.between is not None
    }
    return rows, arrays


def read_meanings(run: Path) -> dict[str, Meaning]:
    """What the stage found, by query id."""

    def array(value: Any, dtype: Any) -> Any:
        return None if value is None else np.array(value, dtype=dtype)

    found: dict[str, Meaning] = {}
    for rows, arrays in read_parts(require(run, "semantics"), KIND):
        for k, query_id in enumerate(rows["query_id"]):
            found[query_id] = Meaning(
                array(rows["clusters"][k], np.int64),
                array(arrays.get(f"{k}"), np.float64),
                array(rows["agreement"][k], np.bool_),
                rows["p_true"][k],
            )
    return found
