"""The Mahalanobis distance to the training embeddings: one Gaussian a modality, no training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import store
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError, NotFittedError
from fusevlm.maths.covariance import oas_intensity
from fusevlm.priors.interface import check_pairs

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
KIND, MANIFEST = "fusevlm.MahalanobisPrior", "mahalanobis.json"


@dataclass(frozen=True)
class Gaussian:
    """Mean and inverse Cholesky factor of one modality's training embeddings."""

    mean: FloatArray  # [D]
    inverse_root: FloatArray  # [D, D], L⁻¹ with LLᵀ = Σ


def fit_gaussian(rows: FloatArray) -> Gaussian:
    """Mean and covariance (1 − ρ)·S + ρ·(tr S/D)·I with the OAS intensity ρ.

    N is often below D: without shrinkage Σ has no inverse.
    """
    from scipy.linalg import cholesky, solve_triangular

    N, D = rows.shape
    mean = rows.mean(axis=0)
    S = np.cov(rows, rowvar=False, bias=True).reshape(D, D)
    if not np.ptp(rows, axis=0).any():
        raise InputError("all training embeddings are equal; a covariance needs them to differ.")
    rho = oas_intensity(S, N)
    Sigma = (1.0 - rho) * S
    Sigma[np.diag_indices(D)] += rho * float(np.trace(S)) / D
    L = cholesky(Sigma, lower=True)
    return Gaussian(mean, np.asarray(solve_triangular(L, np.eye(D), lower=True)))


def mahalanobis(rows: FloatArray, gaussian: Gaussian) -> FloatArray:
    """√[(z − m)ᵀΣ⁻¹(z − m)/D] of each row: about 1 for rows like the training ones."""
    white = (rows - gaussian.mean) @ gaussian.inverse_root.T
    return np.asarray(np.sqrt(np.mean(white * white, axis=1)))


@dataclass(frozen=True)
class _Saved:
    norm: str
    gaussians: dict[str, Gaussian]


class MahalanobisPrior:
    """s = mean over modalities of the Mahalanobis distance, per root dimension.

    Statistics: ``distance`` (primary), ``distance_image``, ``distance_text``.
    """

    primary = "distance"

    def __init__(self, *, norm: str = "unit") -> None:
        self.norm = norm
        self._gaussians: dict[str, Gaussian] = {}

    def fit(self, image: Any = None, text: Any = None) -> MahalanobisPrior:
        """Mean and shrunk covariance of each modality."""
        pairs = check_pairs(image, text, norm=self.norm)
        if len(next(iter(pairs.values()))) < 2:
            raise InputError("one pair has no covariance; expected at least 2.")
        self._gaussians = {
            name: fit_gaussian(rows.astype(np.float64)) for name, rows in pairs.items()
        }
        return self

    def statistics(self, image: Any = None, text: Any = None) -> dict[str, FloatArray]:
        """Distances of new embeddings, by name."""
        if not self._gaussians:
            raise NotFittedError("this prior has no covariance: call fit first.")
        widths = {name: len(gaussian.mean) for name, gaussian in self._gaussians.items()}
        pairs = check_pairs(image, text, norm=self.norm, widths=widths)
        each = {
            f"distance_{name}": mahalanobis(rows.astype(np.float64), self._gaussians[name])
            for name, rows in pairs.items()
        }
        return {"distance": np.mean(list(each.values()), axis=0), **each}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path`` (JSON + safetensors)."""
        saved = _Saved(self.norm, self._gaussians)
        store.save_object(path, MANIFEST, KIND, SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MahalanobisPrior:
        """Read what :meth:`save` wrote; another schema is migrated or refused."""
        classes: dict[str, type] = {"_Saved": _Saved, "Gaussian": Gaussian}
        saved: _Saved = store.load_object(path, MANIFEST, KIND, SCHEMA_VERSION, classes, MIGRATIONS)
        prior = cls(norm=saved.norm)
        prior._gaussians = saved.gaussians
        return prior
