"""How strange a tower's activations are before its projection, without labels and training.

The calibration queries are the reference. Two statistics of each modality, larger = stranger:

mahalanobis  √[(φ − m)ᵀΣ⁻¹(φ − m)/D], Σ shrunk as in :func:`fusevlm.maths.gaussians.fit_gaussian`
laplace      log φᵀA⁻¹φ with A = λI + Σφφᵀ: the log predictive variance, up to a constant, of what
             a linear map such as the projection makes of φ under the Laplace approximation, whose
             prior counts as one average row (λ = Σ|φ|²/(N·D))

Rows of the reference are nearer to it than new ones. Their own statistics are therefore those of a
reference without their group (queries about one image), in closed form: with Q the eigenvectors of
the whole reference, leaving out a group of k rows is an update of rank k, or k + 1 with the mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import FloatArray, Shape
from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.maths.gaussians import (
    Gaussian,
    fit_gaussian,
    left_out_mahalanobis,
    mahalanobis,
    need_rest,
    rows_of_groups,
    spectrum,
)
from fusevlm.priors.interface import Embeddings, check_pairs

MANIFEST, KIND, SCHEMA_VERSION = "activations.json", "fusevlm.ActivationPrior", 1
STATISTICS = ("mahalanobis_image", "mahalanobis_text", "laplace_image", "laplace_text")
TINY = 1e-300  # below any variance


@dataclass(frozen=True)
class Laplace:
    """The inverse root of A = λI + Σφφᵀ."""

    inverse_root: Annotated[FloatArray, Shape("D", "D")]  # R with RᵀR = A⁻¹


def fit_laplace(rows: FloatArray) -> Laplace:
    """The posterior precision of a linear map's weights that were learnt on these rows."""
    values, Q = spectrum(rows.T @ rows)
    ridge = float(values.sum()) / rows.size
    if ridge == 0.0:
        raise InputError("all activations are zero; expected those of a tower.")
    return Laplace((Q / np.sqrt(values + ridge)).T)


def log_variance(rows: FloatArray, laplace: Laplace) -> FloatArray:
    """log φᵀA⁻¹φ of each row."""
    white = rows @ laplace.inverse_root.T
    return np.asarray(np.log(np.maximum(np.einsum("nd,nd->n", white, white), TINY)))


def left_out_log_variance(rows: FloatArray, groups: Sequence[str]) -> FloatArray:
    """:func:`log_variance` of each row under a fit without its group.

    A₋ = B − ΦᵀΦ with B = λ₋I + Σφφᵀ, so φᵀA₋⁻¹φ is on the diagonal of (I − K)⁻¹K, K = ΦB⁻¹Φᵀ.
    """
    N, D = rows.shape
    values, Q = spectrum(rows.T @ rows)
    C, total = rows @ Q, float(values.sum())
    found = np.empty(N)
    for own in rows_of_groups(groups, N):
        U = C[own]
        ridge = (total - float(np.vdot(U, U))) / ((N - len(own)) * D)
        need_rest(ridge, total / rows.size)
        K = (U / (values + ridge)) @ U.T
        variance = np.diag(np.linalg.solve(np.eye(len(own)) - K, K))
        found[own] = np.log(np.maximum(variance, TINY))
    return found


@dataclass(frozen=True)
class _Kind:
    fit: Callable[[FloatArray], Any]
    apply: Callable[[FloatArray, Any], FloatArray]
    left_out: Callable[[FloatArray, Sequence[str]], FloatArray]


_KINDS = {
    "mahalanobis": _Kind(fit_gaussian, mahalanobis, left_out_mahalanobis),
    "laplace": _Kind(fit_laplace, log_variance, left_out_log_variance),
}


class ActivationPrior:
    """Statistics of activations by name; only those that are named are fitted and given."""

    @dataclass(frozen=True)
    class _Saved:
        names: tuple[str, ...]
        references: dict[str, Gaussian | Laplace]

    def __init__(self, names: Sequence[str] = STATISTICS) -> None:
        self.names = tuple(checks.known(name, STATISTICS, "statistic") for name in names)
        if not self.names:
            raise InputError(f"no statistic is named; expected some of {', '.join(STATISTICS)}.")
        self.references: dict[str, Gaussian | Laplace] = {}

    @property
    def primary(self) -> str:
        return self.names[0]

    def fit(self, image: Any = None, text: Any = None) -> Self:
        """Learn the reference activations of each modality."""
        rows = self._rows(image, text)
        self.references = {
            name: _KINDS[kind].fit(rows[modality]) for name, kind, modality in self._parts()
        }
        return self

    def statistics(self, image: Any = None, text: Any = None) -> dict[str, FloatArray]:
        """Statistics of new activations, by name."""
        if not self.references:
            raise NotFittedError("this prior has no reference activations: call fit first.")
        widths = {
            modality: self.references[name].inverse_root.shape[1]
            for name, _, modality in self._parts()
        }
        rows = self._rows(image, text, widths)
        return {
            name: _KINDS[kind].apply(rows[modality], self.references[name])
            for name, kind, modality in self._parts()
        }

    def left_out(
        self, groups: Sequence[str], image: Any = None, text: Any = None
    ) -> dict[str, FloatArray]:
        """Statistics of the reference itself: of each row under a fit without its group."""
        rows = self._rows(image, text)
        return {
            name: _KINDS[kind].left_out(rows[modality], groups)
            for name, kind, modality in self._parts()
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path`` (JSON + safetensors)."""
        saved = self._Saved(self.names, self.references)
        store.save_object(path, MANIFEST, KIND, SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote; another schema is refused."""
        classes = {"_Saved": cls._Saved, "Gaussian": Gaussian, "Laplace": Laplace}
        saved = store.load_object(path, MANIFEST, KIND, SCHEMA_VERSION, classes, {}, of=cls._Saved)
        prior = cls(saved.names)
        prior.references = dict(saved.references)
        kinds = {"mahalanobis": Gaussian, "laplace": Laplace}
        for name, kind, _ in prior._parts():
            if not isinstance(prior.references.get(name), kinds[kind]):
                raise ArtefactError(f"{path} is damaged: it has no {name}. Save it again.")
        return prior

    def _parts(self) -> list[tuple[str, str, str]]:
        """(name, kind, modality) of each statistic."""
        words = [(name, name.partition("_")) for name in self.names]
        return [(name, kind, modality) for name, (kind, _, modality) in words]

    def _rows(
        self, image: Any, text: Any, widths: dict[str, int] | None = None
    ) -> dict[str, FloatArray]:
        """The activations that the statistics read, as float64."""
        given = {"image": image, "text": text}
        read = {modality: given[modality] for _, _, modality in self._parts()}
        for modality, rows in read.items():
            if rows is None:
                raise InputError(f"{modality} activations are missing, which a statistic reads.")
        pairs: dict[str, Embeddings] = check_pairs(
            read.get("image"), read.get("text"), norm="any", widths=widths
        )
        return {modality: rows.astype(np.float64) for modality, rows in pairs.items()}
