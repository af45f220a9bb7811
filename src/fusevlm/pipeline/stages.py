"""Sampling and embedding in parts: resumable, one batch of queries at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import FuseError
from fusevlm.fuse.evidence import response_rows
from fusevlm.store.embeddings import KIND as EMBEDDINGS
from fusevlm.store.generations import KIND as GENERATIONS
from fusevlm.store.generations import Whiten, write_generations
from fusevlm.store.parts import PartStore
from fusevlm.types import Query, Samples

if TYPE_CHECKING:
    from fusevlm.fuse.estimator import Fuse
    from fusevlm.models.protocol import Decoding, Model
    from fusevlm.models.towers import Towers

Progress = Callable[[int, int], None]  # queries done, queries in all
TINY = 1e-12  # norm of a query without an image


@dataclass(frozen=True)
class Outcome:
    """What a stage did."""

    folder: Path
    done: int
    failed: int
    resumed: int  # of those done, how many an earlier run had finished
    near_boundary: int = 0


def sample_stage(
    backend: Model,
    queries: Sequence[Query],
    folder: str | os.PathLike[str],
    *,
    n: int,
    temperatures: FloatArray,
    seed: int = 0,
    batch: int = 8,
    decoding: Decoding | None = None,
    half: bool = False,
    gram_of: Fuse | None = None,
    progress: Progress = lambda done, total: None,
) -> Outcome:
    """Sample all queries into a run folder, ``batch`` queries a part, going on where it stopped.

    Parts are cut by position, so a resumed run has the batch layout of an uninterrupted one and
    gives the same bytes. With ``gram_of`` (a fitted Fuse) whitened Grams replace hidden states.
    """
    batch = checks.count(batch, "batch")
    settings = {
        "model": backend.name,
        "n": n,
        "temperatures": [float(t) for t in temperatures],
        "seed": seed,
        "batch": batch,
        "decoding": None if decoding is None else asdict(decoding),
        "half": half,
        "keep": "hidden" if gram_of is None else "gram",
        "queries": _fingerprint(queries),
    }
    gram = None if gram_of is None else _whitened_gram(gram_of)
    with PartStore(folder, GENERATIONS, settings) as store:
        resumed = sum(part["queries"] for part in store.facts)
        done = resumed
        progress(done, len(queries))
        for index, start in enumerate(range(0, len(queries), batch)):
            if index in store:
                continue
            part = queries[start : start + batch]
            found = list(backend.sample(part, n, temperatures, seed))
            write_generations(store, index, found, half=half, gram=gram)
            done += len(part)
            progress(done, len(queries))
        store.finish()
        failed = sum(part["failed"] for part in store.facts)
        near = sum(part["near_boundary"] for part in store.facts)
    return Outcome(Path(folder), done, failed, resumed, near)


def _fingerprint(queries: Sequence[Query]) -> str:
    """How many queries, and a digest of ids, questions and image names in order."""
    digest = hashlib.sha256()
    for query in queries:
        names = [str(i) if isinstance(i, str | Path) else type(i).__name__ for i in query.images]
        digest.update(json.dumps([query.id, query.question, names, list(query.history)]).encode())
    return f"{len(queries)} queries, {digest.hexdigest()[:16]}"


def _whitened_gram(fuse: Fuse) -> Whiten:
    whitener = fuse.model.whitener
    if whitener is None:
        raise FuseError("this fit has no whitening to make Grams with; fit it on embeddings.")

    def gram(samples: Samples) -> tuple[FloatArray, int]:
        return whitener.gram(response_rows(samples, fuse.options)), whitener.d

    return gram


def embed_stage(
    towers: Towers,
    queries: Sequence[Query],
    folder: str | os.PathLike[str],
    *,
    name: str,
    batch: int = 64,
    progress: Progress = lambda done, total: None,
) -> Outcome:
    """Image and question embeddings of all queries, as parts with arrays ``image`` and ``text``.

    A query with several images has the mean of their vectors, renormalised. A query whose image
    cannot be read keeps its row, with the error and zero vectors, and is left out downstream.
    """
    batch = checks.count(batch, "batch")
    settings = {"towers": name, "batch": batch, "queries": _fingerprint(queries)}
    with PartStore(folder, EMBEDDINGS, settings) as store:
        resumed = sum(part["queries"] for part in store.facts)
        done = resumed
        for index, start in enumerate(range(0, len(queries), batch)):
            if index in store:
                continue
            part = queries[start : start + batch]
            rows, arrays = _embedded(towers, part)
            failed = sum(error is not None for error in rows["error"])
            store.write(index, rows, arrays, {"queries": len(part), "failed": failed})
            done += len(part)
            progress(done, len(queries))
        store.finish()
        failed = sum(part["failed"] for part in store.facts)
    return Outcome(Path(folder), done, failed, resumed)


def _embedded(
    towers: Towers, queries: Sequence[Query]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    texts = towers.texts([q.question or " " for q in queries])
    loaded: list[list[Any]] = []
    errors: list[str | None] = []
    for query in queries:
        pictures, error = _pictures(query)
        loaded.append(pictures)
        errors.append(error)
    images = np.zeros_like(texts.vectors)
    owner = [k for k, pictures in enumerate(loaded) for _ in pictures]
    if owner:
        vectors = towers.images([one for pictures in loaded for one in pictures])
        np.add.at(images, owner, vectors)
        images /= np.maximum(np.linalg.norm(images, axis=1, keepdims=True), TINY)
    rows: dict[str, list[Any]] = {
        "query_id": [q.id for q in queries],
        "error": errors,
        "text_truncated": [bool(cut) for cut in texts.truncated],
    }
    return rows, {"image": images, "text": texts.vectors}


def _pictures(query: Query) -> tuple[list[Any], str | None]:
    """The query's images, or none of them and why."""
    from fusevlm.data.images import load_image

    if not query.images:
        return [], "the query has no image."
    try:
        return [load_image(i) for i in query.images], None
    except (FuseError, ValueError, RuntimeError) as error:
        return [], str(error)
