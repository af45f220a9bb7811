"""Stage embed: image and question vectors of every judged query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm.config import Config, EmbedConfig
from fusevlm.data.images import load_image
from fusevlm.errors import FuseError
from fusevlm.models.registry import local_input, model_folder, need_models
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.sample import missing_parts
from fusevlm.store.generations import EMBEDDINGS
from fusevlm.store.parts import Parts
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.towers import Towers

PART = "dual_encoder"
TINY = 1e-12  # norm of a query without an image


def inputs(config: Config) -> dict[str, Path]:
    """The towers' folder, if it is one."""
    return local_input("embed.towers", config.embed.towers, PART)


def make(work: Work) -> dict[str, int]:
    """Embed, or go on embedding."""
    queries = read_asked(work.run)
    parts = Parts(work.folder("embed"), EMBEDDINGS)
    towers = load_towers(work.config.embed)
    for index, some in missing_parts(parts, queries, work.config.embed.batch, work.progress):
        rows, arrays = embedded(towers, some)
        failed = sum(error is not None for error in rows["error"])
        parts.write(index, rows, arrays, {"queries": len(some), "failed": failed})
    return {"queries": parts.total("queries"), "failed": parts.total("failed")}


def load_towers(embed: EmbedConfig) -> Towers:
    """The towers of a config."""
    need_models("embedding")
    from fusevlm.models.towers import Towers

    return Towers.load(
        model_folder(embed.towers, PART),
        revision=embed.revision or None,
        device=embed.device,
        dtype=embed.dtype,
    )


def embedded(
    towers: Towers, queries: Sequence[Query]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Rows and the arrays ``image`` and ``text`` of some queries.

    A query with several images has the mean of their vectors, renormalised. A query whose image
    cannot be read keeps its row, with the error and zero vectors, and is left out downstream.
    """
    texts = towers.texts([q.question or " " for q in queries])
    loaded = [_pictures(query) for query in queries]
    images = np.zeros_like(texts.vectors)
    owner = [k for k, (pictures, _) in enumerate(loaded) for _ in pictures]
    if owner:
        vectors = towers.images([one for pictures, _ in loaded for one in pictures])
        np.add.at(images, owner, vectors)
        images /= np.maximum(np.linalg.norm(images, axis=1, keepdims=True), TINY)
    rows: dict[str, list[Any]] = {
        "query_id": [q.id for q in queries],
        "error": [error for _, error in loaded],
        "text_truncated": [bool(cut) for cut in texts.truncated],
    }
    return rows, {"image": images, "text": texts.vectors}


def _pictures(query: Query) -> tuple[list[Any], str | None]:
    """The query's images, or none of them and why."""
    if not query.images:
        return [], "the query has no image."
    try:
        return [load_image(i) for i in query.images], None
    except (FuseError, ValueError, RuntimeError) as error:
        return [], str(error)
