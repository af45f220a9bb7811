"""Stage embed: image and question vectors of every judged query, and the towers' activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm.data.images import load_image
from fusevlm.errors import FuseError, InputError
from fusevlm.models.devices import out_of_memory
from fusevlm.models.registry import local_input, model_folder, need_models
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.engine import Job, open_parts
from fusevlm.pipeline.parts import Piece, part_size
from fusevlm.pipeline.run import Work
from fusevlm.priors.pictures import picture_statistics
from fusevlm.settings import MINILM, NONE, Config, EmbedConfig
from fusevlm.store.generations import BEFORE, EMBEDDINGS, VIEW, count_rows
from fusevlm.store.parts import Part
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.towers import ImageVectors, TextTower, Towers

Embedded = tuple[dict[str, list[Any]], dict[str, Any]]  # rows and arrays
PART = "dual_encoder"
TINY = 1e-12  # norm of a query without an image


def inputs(config: Config) -> dict[str, Path]:
    """The towers' folder, if it is one."""
    if config.embed.towers in (NONE, MINILM):
        return {}
    return local_input("embed.towers", config.embed.towers, PART)


def make(work: Work) -> dict[str, int]:
    """Embed, or go on embedding."""
    queries, parts = items(work), open_parts(work, "embed", EMBEDDINGS)
    size = part_size(len(queries), work.config.embed.batch)
    work.engine.fill(Job("embed", parts, queries, size, again=work.again), work)
    return {name: parts.total(name) for name in ("queries", "failed", "passing")}


def items(work: Work) -> Sequence[Query]:
    """The queries of all splits."""
    return read_asked(work.run)


def open_maker(work: Work) -> Embedder:
    """The towers of the run, ready to embed."""
    embed, towers = work.config.embed, load_towers(work.config.embed)
    sees = towers is not None and towers.sees
    pictures = sees and any(query.images for query in items(work))
    some = partial(embedded, towers, activations=embed.activations, pictures=pictures)
    return Embedder(some, embed.batch, work.say)


class Embedder:
    """Makes parts of queries, ``batch`` of them at a time."""

    def __init__(
        self,
        embed: Callable[[Sequence[Query]], Embedded],
        batch: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.embed, self.batch, self.say = embed, batch, say

    def make(self, piece: Piece) -> Part:
        queries = list(piece.items)
        found = [
            _halving(self.embed, queries[start : start + self.batch], self.say)
            for start in range(0, len(queries), self.batch)
        ]
        rows, arrays = found[0]
        for more in found[1:]:
            rows, arrays = _joined((rows, arrays), more)
        return Part(rows, arrays, count_rows(rows))

    def told(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return


def _halving(
    make: Callable[[Sequence[Query]], Embedded],
    queries: Sequence[Query],
    say: Callable[[str], None],
) -> Embedded:
    """What is made of all queries; where memory runs out, of each half of them by itself."""
    try:
        return make(queries)
    except (RuntimeError, MemoryError) as error:
        if len(queries) == 1 or not out_of_memory(error):
            raise
    half = len(queries) // 2
    say(f"embed: out of memory with {len(queries)} queries at a time: going on with {half}")
    return _joined(_halving(make, queries[:half], say), _halving(make, queries[half:], say))


def _joined(one: Embedded, two: Embedded) -> Embedded:
    """What was made of some queries and of those after them."""
    rows = {name: [*one[0][name], *two[0][name]] for name in one[0]}
    return rows, {name: _stacked(one[1][name], two[1][name]) for name in one[1]}


def _stacked(one: Any, two: Any) -> Any:
    """Rows of both; where one half had no picture, zeros."""
    width = max(one.shape[1], two.shape[1])
    wide = [a if a.shape[1] else np.zeros((len(a), width), dtype=np.float32) for a in (one, two)]
    return np.concatenate(wide)


def load_towers(embed: EmbedConfig) -> Towers | TextTower | None:
    """The towers of a config; None where it wants none."""
    if embed.towers == NONE:
        return None
    need_models("embedding")
    from fusevlm.models.towers import SentenceEncoder, TextTower, Towers

    if embed.towers == MINILM:
        return TextTower(SentenceEncoder.load(MINILM, device=embed.device, dtype=embed.dtype))
    return Towers.load(
        model_folder(embed.towers, PART),
        revision=embed.revision or None,
        device=embed.device,
        dtype=embed.dtype,
    )


def embedded(
    towers: Towers | TextTower | None,
    queries: Sequence[Query],
    *,
    activations: bool = False,
    pictures: bool = True,
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Rows and the arrays ``image`` and ``text`` of some queries.

    A query with several images has the mean of their vectors, renormalised. A query whose image
    cannot be read keeps its row, with the error and zero vectors, and is left out downstream. With
    ``activations`` there are also ``image_pre`` (the mean over images), ``text_pre``, and
    ``image_view``: patch tokens and statistics of the pixels. Without ``pictures`` there is
    nothing of images, and without towers nothing at all.
    """
    loaded = [_pictures(query) if pictures else ([], None) for query in queries]
    rows: dict[str, list[Any]] = {
        "query_id": [q.id for q in queries],
        "error": [None if error is None else str(error) or "out of memory" for _, error in loaded],
        "passing": [
            getattr(error, "passing", isinstance(error, MemoryError)) for _, error in loaded
        ],
        "text_truncated": [False] * len(queries),
    }
    if towers is None:
        return rows, {}
    texts = towers.texts([q.question or " " for q in queries])
    rows["text_truncated"] = [bool(cut) for cut in texts.truncated]
    arrays: dict[str, Any] = {"text": texts.vectors}
    if activations:
        arrays[f"text{BEFORE}"] = texts.activations
    if pictures:
        shown = [some for some, _ in loaded]
        arrays |= _of_pictures(towers, shown, texts.vectors.shape[1], activations)
    return rows, _finite(rows, arrays)


def _finite(rows: dict[str, list[Any]], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays with zeros for queries whose vectors are no numbers, which have failed."""
    bad = [~np.isfinite(values).all(axis=1) for values in arrays.values() if values.shape[1]]
    broken = np.any(bad, axis=0)
    for k in np.flatnonzero(broken):
        rows["error"][k] = rows["error"][k] or "its vectors hold NaN or infinity."
    return {name: np.where(broken[:, None], 0.0, a).astype(a.dtype) if broken.any() else a
            for name, a in arrays.items()}  # fmt: skip


def _of_pictures(
    towers: Any, shown: Sequence[Sequence[Any]], width: int, activations: bool
) -> dict[str, Any]:
    """The arrays of the images of some queries; zeros where there are none."""
    size, pictures = len(shown), [one for some in shown for one in some]
    owner = np.array([k for k, some in enumerate(shown) for _ in some], dtype=np.intp)
    found = towers.image_features(pictures) if pictures else None
    images = np.zeros((size, width), dtype=np.float32)
    before = view = np.zeros((size, 0), dtype=np.float32)
    if found is not None:
        images = _means(found.vectors, owner, size)
        images /= np.maximum(np.linalg.norm(images, axis=1, keepdims=True), TINY)
        before = _means(found.activations, owner, size)
        view = _means(image_view(found, pictures), owner, size)
    arrays = {"image": images}
    return arrays | ({f"image{BEFORE}": before, f"image{VIEW}": view} if activations else {})


def image_view(found: ImageVectors, pictures: Sequence[Any]) -> Any:
    """How pictures look, for novelty: their patch tokens and statistics of their pixels."""
    return np.hstack([found.patches, picture_statistics(pictures).astype(np.float32)])


def _means(rows: Any, owner: Any, size: int) -> Any:
    """The mean of each owner's rows; zeros for one that has none."""
    total = np.zeros((size, rows.shape[1]), dtype=np.float32)
    np.add.at(total, owner, rows)
    return total / np.maximum(np.bincount(owner, minlength=size), 1)[:, None].astype(np.float32)


def _pictures(query: Query) -> tuple[list[Any], Exception | None]:
    """The query's images, or none of them and why."""
    if not query.images:
        return [], InputError(
            "the query has no image, and others of this run have. Put queries without pictures "
            "into a run of their own."
        )
    try:
        return [load_image(i) for i in query.images], None
    except (FuseError, ValueError, RuntimeError, MemoryError) as error:
        return [], error
