"""The calibration queries nearest to a new one: what the model did on them, right and wrong.

Inputs of each kind (picture, question) are projected onto their leading principal directions and
scaled so that each kind counts alike; near is near in the Euclidean sense.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fusevlm import store
from fusevlm.checks import BoolArray, FloatArray, Shape
from fusevlm.errors import ArtefactError, InputError
from fusevlm.types import Queries

MANIFEST, KIND, SCHEMA_VERSION = "neighbours.json", "fusevlm.Neighbours", 1
KINDS = ("image", "text")  # of inputs: what a person would call alike
COMPONENTS = 32
LONGEST = 300  # characters kept of a question or an answer


@dataclass(frozen=True)
class Axes:
    """Leading directions of one kind of input, scaled to total variance 1."""

    mean: Annotated[FloatArray, Shape("D")]
    directions: Annotated[FloatArray, Shape("D", "C")]

    def __call__(self, rows: FloatArray) -> FloatArray:
        return np.asarray((rows - self.mean) @ self.directions)


@dataclass(frozen=True)
class Neighbour:
    """A calibration query near to the one that was asked."""

    question: str
    answer: str
    wrong: bool
    distance: float


@dataclass(frozen=True)
class Neighbours:
    """Labelled calibration queries by their inputs."""

    axes: Mapping[str, Axes]
    places: Annotated[FloatArray, Shape("N", "C")]  # float32
    questions: Annotated[tuple[str, ...], Shape("N")]
    answers: Annotated[tuple[str, ...], Shape("N")]
    wrong: Annotated[BoolArray, Shape("N")]

    def near(self, inputs: Mapping[str, FloatArray], count: int = 5) -> list[Neighbour]:
        """The nearest to one query, whose inputs are [1, D] each; the nearest first."""
        if any(name not in inputs for name in self.axes):
            return []
        rows = {name: np.atleast_2d(inputs[name]) for name in self.axes}
        for name, axes in self.axes.items():
            if rows[name].shape[1] != len(axes.mean):
                raise InputError(
                    f"the input {name!r} has {rows[name].shape[1]} features; the calibration's had "
                    f"{len(axes.mean)}. Use the same encoder."
                )
        own = np.hstack([axes(rows[name]) for name, axes in self.axes.items()])
        # rounded, so that of equal questions always the same are shown
        apart = np.round(np.linalg.norm(self.places - own, axis=1), 4)
        return [
            Neighbour(self.questions[k], self.answers[k], bool(self.wrong[k]), float(apart[k]))
            for k in np.argsort(apart, kind="stable")[:count]
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path`` (JSON + safetensors)."""
        store.save_object(path, MANIFEST, KIND, SCHEMA_VERSION, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Neighbours:
        """Read what :meth:`save` wrote; another schema is refused."""
        classes = {"Neighbours": cls, "Axes": Axes}
        found: Neighbours = store.load_object(
            path, MANIFEST, KIND, SCHEMA_VERSION, classes, {}, of=cls
        )
        wide = sum(axes.directions.shape[1] for axes in found.axes.values())
        if found.places.shape[1] != wide:
            raise ArtefactError(f"{path} is damaged: its places have no axes. Save it again.")
        return found


def fit_neighbours(queries: Queries, questions: Sequence[str]) -> Neighbours | None:
    """Of labelled calibration queries with inputs; None where there are none."""
    if queries.wrong is None:
        return None
    axes = {name: _axes(np.asarray(rows)) for name, rows in queries.inputs.items() if name in KINDS}
    if not axes:
        return None
    places = np.hstack([own(np.asarray(queries.inputs[name])) for name, own in axes.items()])
    return Neighbours(
        axes,
        places.astype(np.float32),
        tuple(_short(text) for text in questions),
        tuple(_short(one.answer) for one in queries.samples),
        np.asarray(queries.wrong, dtype=np.bool_),
    )


def _axes(rows: FloatArray) -> Axes:
    mean = rows.mean(axis=0)
    _, size, directions = np.linalg.svd(rows - mean, full_matrices=False)
    total = float(np.sqrt((size**2).sum() / len(rows)))
    kept = directions[:COMPONENTS].T / (total if total > 0.0 else 1.0)
    return Axes(mean.astype(np.float32), kept.astype(np.float32))


def _short(text: Any) -> str:
    shown = str(text or "")
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
