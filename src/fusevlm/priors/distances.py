"""Distances to the training embeddings: references that need no training."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fusevlm import checks, store
from fusevlm.checks import FloatArray, OneOf, Shape, Whole
from fusevlm.errors import InputError, NotFittedError
from fusevlm.maths.gaussians import Gaussian, fit_gaussian, mahalanobis
from fusevlm.priors.interface import NORMS, Embeddings, check_pairs

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
_QUERIES = 512  # at a time
_DISTANCES = 1 << 25  # in memory at a time


def mean_nearest_distance(queries: FloatArray, rows: FloatArray, k: int) -> FloatArray:
    """Mean Euclidean distance of each query to its k nearest rows. Cost O(B·N·D)."""
    squares = np.einsum("nd,nd->n", rows, rows)
    found = np.empty(len(queries))
    size = max(1, min(_QUERIES, _DISTANCES // max(1, len(rows))))
    for start in range(0, len(queries), size):
        part = queries[start : start + size]
        d2 = np.einsum("bd,bd->b", part, part)[:, None] + squares - 2.0 * part @ rows.T
        nearest = np.partition(d2, k - 1, axis=1)[:, :k]
        found[start : start + size] = np.sqrt(np.maximum(nearest, 0.0)).mean(axis=1)
    return found


class _DistancePrior(ABC):
    """What the two priors share; the fields of ``_Saved`` are their attributes."""

    primary = "distance"
    norm: str
    _manifest: ClassVar[str]
    _Saved: ClassVar[type]

    @abstractmethod
    def _learn(self, pairs: dict[str, Embeddings]) -> None: ...

    @abstractmethod
    def _widths(self) -> dict[str, int]: ...

    @abstractmethod
    def _distance(self, name: str, rows: FloatArray) -> FloatArray: ...

    def fit(self, image: Any = None, text: Any = None) -> Self:
        """Learn the training embeddings of each modality."""
        self._learn(check_pairs(image, text, norm=self.norm))
        return self

    def statistics(self, image: Any = None, text: Any = None) -> dict[str, FloatArray]:
        """Distances of new embeddings, by name."""
        widths = self._widths()
        if not widths:
            raise NotFittedError("this prior has no training embeddings: call fit first.")
        pairs = check_pairs(image, text, norm=self.norm, widths=widths)
        each = {
            f"distance_{name}": self._distance(name, rows.astype(np.float64))
            for name, rows in pairs.items()
        }
        return {"distance": np.mean(list(each.values()), axis=0), **each}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path`` (JSON + safetensors)."""
        saved = self._Saved(**{f.name: getattr(self, f.name) for f in fields(self._Saved)})
        kind = f"fusevlm.{type(self).__name__}"
        store.save_object(path, self._manifest, kind, SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote; another schema is migrated or refused."""
        kind, classes = f"fusevlm.{cls.__name__}", {"_Saved": cls._Saved, "Gaussian": Gaussian}
        saved = store.load_object(
            path, cls._manifest, kind, SCHEMA_VERSION, classes, MIGRATIONS, of=cls._Saved
        )
        prior = cls()
        vars(prior).update(vars(saved))
        return prior


class KnnPrior(_DistancePrior):
    """s = mean over modalities of the mean distance to the k nearest training embeddings.

    Statistics: ``distance`` (primary), ``distance_image``, ``distance_text``. Keeps all training
    embeddings.
    """

    _manifest = "knn.json"

    @dataclass(frozen=True)
    class _Saved:
        k: Annotated[int, Whole(1)]
        norm: Annotated[str, OneOf(*NORMS)]
        rows: dict[str, Annotated[npt.NDArray[np.floating[Any]], Shape("N", "_")]]

    def __init__(self, k: int = 10, *, norm: str = "unit") -> None:
        self.k = checks.count(k, "k")
        self.norm = norm
        self.rows: dict[str, Embeddings] = {}

    def _learn(self, pairs: dict[str, Embeddings]) -> None:
        size = len(next(iter(pairs.values())))
        if size < self.k:
            raise InputError(f"{size} pairs are fewer than k = {self.k}. Use a smaller k.")
        self.rows = pairs

    def _widths(self) -> dict[str, int]:
        return {name: rows.shape[1] for name, rows in self.rows.items()}

    def _distance(self, name: str, rows: FloatArray) -> FloatArray:
        k = min(self.k, len(self.rows[name]))
        return mean_nearest_distance(rows, self.rows[name].astype(np.float64), k)


class MahalanobisPrior(_DistancePrior):
    """s = mean over modalities of the Mahalanobis distance, per root dimension.

    Statistics: ``distance`` (primary), ``distance_image``, ``distance_text``. Keeps one Gaussian a
    modality.
    """

    _manifest = "mahalanobis.json"

    @dataclass(frozen=True)
    class _Saved:
        norm: Annotated[str, OneOf(*NORMS)]
        gaussians: dict[str, Gaussian]

    def __init__(self, *, norm: str = "unit") -> None:
        self.norm = norm
        self.gaussians: dict[str, Gaussian] = {}

    def _learn(self, pairs: dict[str, Embeddings]) -> None:
        if len(next(iter(pairs.values()))) < 2:
            raise InputError("one pair has no covariance; expected at least 2.")
        self.gaussians = {n: fit_gaussian(rows.astype(np.float64)) for n, rows in pairs.items()}

    def _widths(self) -> dict[str, int]:
        return {name: len(gaussian.mean) for name, gaussian in self.gaussians.items()}

    def _distance(self, name: str, rows: FloatArray) -> FloatArray:
        return mahalanobis(rows, self.gaussians[name])
