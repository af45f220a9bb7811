"""The distance to the nearest training embeddings: a reference that needs no training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError, NotFittedError
from fusevlm.priors.interface import Embeddings, check_pairs

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
KIND, MANIFEST = "fusevlm.KnnPrior", "knn.json"
_QUERIES = 512  # at a time


def mean_nearest_distance(queries: FloatArray, rows: FloatArray, k: int) -> FloatArray:
    """Mean Euclidean distance of each query to its k nearest rows. Cost O(B·N·D)."""
    squares = np.einsum("nd,nd->n", rows, rows)
    found = np.empty(len(queries))
    for start in range(0, len(queries), _QUERIES):
        part = queries[start : start + _QUERIES]
        d2 = np.einsum("bd,bd->b", part, part)[:, None] + squares - 2.0 * part @ rows.T
        nearest = np.partition(d2, k - 1, axis=1)[:, :k]
        found[start : start + _QUERIES] = np.sqrt(np.maximum(nearest, 0.0)).mean(axis=1)
    return found


@dataclass(frozen=True)
class _Saved:
    k: int
    norm: str
    rows: dict[str, Any]


class KnnPrior:
    """s = mean over modalities of the mean distance to the k nearest training embeddings.

    Statistics: ``distance`` (primary), ``distance_image``, ``distance_text``. Keeps all training
    embeddings.
    """

    primary = "distance"

    def __init__(self, k: int = 10, *, norm: str = "unit") -> None:
        self.k = checks.count(k, "k")
        self.norm = norm
        self._rows: dict[str, Embeddings] = {}

    def fit(self, image: Any = None, text: Any = None) -> KnnPrior:
        """Remember the training embeddings."""
        rows = check_pairs(image, text, norm=self.norm)
        size = len(next(iter(rows.values())))
        if size < self.k:
            raise InputError(f"{size} pairs are fewer than k = {self.k}. Use a smaller k.")
        self._rows = rows
        return self

    def statistics(self, image: Any = None, text: Any = None) -> dict[str, FloatArray]:
        """Distances of new embeddings, by name."""
        if not self._rows:
            raise NotFittedError("this prior has no training embeddings: call fit first.")
        widths = {name: rows.shape[1] for name, rows in self._rows.items()}
        pairs = check_pairs(image, text, norm=self.norm, widths=widths)
        each = {
            f"distance_{name}": mean_nearest_distance(
                rows.astype(np.float64), self._rows[name].astype(np.float64), self.k
            )
            for name, rows in pairs.items()
        }
        return {"distance": np.mean(list(each.values()), axis=0), **each}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path`` (JSON + safetensors)."""
        saved = _Saved(self.k, self.norm, self._rows)
        store.save_object(path, MANIFEST, KIND, SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KnnPrior:
        """Read what :meth:`save` wrote; another schema is migrated or refused."""
        classes: dict[str, type] = {"_Saved": _Saved}
        saved: _Saved = store.load_object(path, MANIFEST, KIND, SCHEMA_VERSION, classes, MIGRATIONS)
        prior = cls(saved.k, norm=saved.norm)
        prior._rows = saved.rows
        return prior
