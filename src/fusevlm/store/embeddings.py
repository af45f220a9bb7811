"""Paired embeddings as parts of a run: arrays ``image`` and ``text``, a row per query."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError
from fusevlm.store.parts import read_parts

KIND = "fusevlm.embeddings"


def read_embeddings(folder: str | os.PathLike[str]) -> tuple[list[str], dict[str, Any]]:
    """Ids and ``{"image": [N, D], "text": [N, D]}`` of the queries that could be embedded."""
    ids: list[str] = []
    found: dict[str, list[Any]] = {"image": [], "text": []}
    for rows, arrays in read_parts(folder, KIND):
        good = np.array([error is None for error in rows["error"]])
        ids += [i for i, ok in zip(rows["query_id"], good, strict=True) if ok]
        for name, parts in found.items():
            parts.append(arrays[name][good])
    if not ids:
        raise ArtefactError(f"{folder} holds no embedded query. Run fusevlm embed first.")
    return ids, {name: np.concatenate(parts) for name, parts in found.items()}
