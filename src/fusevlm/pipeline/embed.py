"""Stage embed: image and question vectors of every judged query, and the towers' activations."""

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
from fusevlm.priors.pictures import picture_statistics
from fusevlm.store.generations import BEFORE, EMBEDDINGS, VIEW
from fusevlm.store.parts import Parts
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.towers import ImageVectors, Towers

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
        rows, arrays = embedded(towers, some, activations=work.config.embed.activations)
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
    towers: Towers, queries: Sequence[Query], *, activations: bool = False
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Rows and the arrays ``image`` and ``text`` of some queries.

    A query with several images has the mean of their vectors, renormalised. A query whose image
    cannot be read keeps its row, with the error and zero vectors, and is left out downstream. With
    ``activations`` there are also ``image_pre`` (the mean over images), ``text_pre``, and
    ``image_view``: patch tokens and statistics of the pixels.
    """
    texts = towers.texts([q.question or " " for q in queries])
    loaded = [_pictures(query) for query in queries]
    pictures = [one for some, _ in loaded for one in some]
    owner = np.array([k for k, (some, _) in enumerate(loaded) for _ in some], dtype=np.intp)
    found = towers.image_features(pictures) if pictures else None
    images = np.zeros_like(texts.vectors)
    if found is not None:
        images = _means(found.vectors, owner, len(queries))
        images /= np.maximum(np.linalg.norm(images, axis=1, keepdims=True), TINY)
    rows: dict[str, list[Any]] = {
        "query_id": [q.id for q in queries],
        "error": [error for _, error in loaded],
        "text_truncated": [bool(cut) for cut in texts.truncated],
    }
    arrays: dict[str, Any] = {"image": images, "text": texts.vectors}
    if activations:
        before = view = np.zeros((len(queries), 0), dtype=np.float32)
        if found is not None:
            before = _means(found.activations, owner, len(queries))
            view = _means(image_view(found, pictures), owner, len(queries))
        arrays |= {f"image{BEFORE}": before, f"text{BEFORE}": texts.activations}
        arrays |= {f"image{VIEW}": view}
    return rows, arrays


def image_view(found: ImageVectors, pictures: Sequence[Any]) -> Any:
    """How pictures look, for novelty: their patch tokens and statistics of their pixels."""
    return np.hstack([found.patches, picture_statistics(pictures).astype(np.float32)])


def _means(rows: Any, owner: Any, size: int) -> Any:
    """The mean of each owner's rows; zeros for one that has none."""
    total = np.zeros((size, rows.shape[1]), dtype=np.float32)
    np.add.at(total, owner, rows)
    return total / np.maximum(np.bincount(owner, minlength=size), 1)[:, None].astype(np.float32)


def _pictures(query: Query) -> tuple[list[Any], str | None]:
    """The query's images, or none of them and why."""
    if not query.images:
        return [], "the query has no image."
    try:
        return [load_image(i) for i in query.images], None
    except (FuseError, ValueError, RuntimeError) as error:
        return [], str(error)
