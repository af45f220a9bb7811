"""Is a query like the calibration queries? A conformal p-value for each side of its input.

A view is how a query looks: numbers [N, D] (patch tokens, activations, embeddings) or texts. Views
whose names begin alike make one side: ``image`` and ``image_pixels`` the image, ``question`` and
``text`` the question; any other name is a side of its own. The distance of a query on a side is

    k + d/(1 + d)

with k how many of its words no calibration query has, and d the Mahalanobis distance of its
numbers, each scaled to variance 1, under a shrunk covariance. References are the calibration
queries, each at its distance from those of other units. With U units,

    p = (1 + Σ_units (share of the unit's queries at least as far)) / (U + 1)

is at most t with probability t at most, for a query drawn like those of the units (hierarchical
exchangeability; up to the one unit by which the fits differ, which makes references look farther
and p larger). Sides are combined by Bonferroni's rule: min(1, K·min p) of K sides. A p-value cannot
be below K/(U + 1): where that exceeds the level, novelty is silent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, Shape
from fusevlm.errors import InputError
from fusevlm.maths.gaussians import Gaussian, fit_gaussian, left_out_mahalanobis, mahalanobis

COMPONENTS = 512  # wider views are reduced to their principal components
SIDES = {"image": "image", "question": "question", "text": "question"}  # by a view's first word
Views = Mapping[str, Any]  # [N, D] numbers or N texts


@dataclass(frozen=True)
class Numbers:
    """The numbers of one side: which views, and their Gaussian."""

    widths: Mapping[str, int]
    gaussian: Gaussian  # of the columns as they are: scales and reduction are in its root

    def distance(self, views: Views) -> FloatArray:
        """The Mahalanobis distance of new queries [N]."""
        return mahalanobis(_joined(views, self.widths), self.gaussian)


@dataclass(frozen=True)
class Side:
    """What calibration queries look like on one side of the input."""

    numbers: Numbers | None
    worded: tuple[str, ...]  # views that are texts
    words: tuple[str, ...]  # all that the calibration queries have
    distances: Annotated[FloatArray, Shape("n")]  # of the references, ascending
    # Σ_units share of the unit's queries at rank i or above
    farther: Annotated[FloatArray, Shape("n+1")]

    def distance(self, views: Views) -> FloatArray:
        """How far new queries are [N]."""
        known = frozenset(self.words)
        unknown = [len(words - known) for words in _words(views, self.worded)]
        far = None
        if self.numbers is not None:
            far = self.numbers.distance(views)
        return _combined(np.array(unknown, dtype=np.float64), far)

    def p_value(self, views: Views) -> FloatArray:
        """How probable a query at least as far is, if it is drawn like the references [N]."""
        rank = np.searchsorted(self.distances, self.distance(views), side="left")
        return np.asarray((1.0 + self.farther[rank]) / (1.0 + self.farther[0]))


@dataclass(frozen=True)
class Novelty:
    """References of every side; ``sides`` is empty where novelty is silent, and ``why`` says so."""

    sides: Mapping[str, Side]
    views: Mapping[str, int]  # names of the views with their widths, 0 for texts
    level: float
    n_units: int
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether the sides are of the views, and each goes with itself."""
        texts = {name for name, width in self.views.items() if width == 0}
        for side in self.sides.values():
            numbers = {} if side.numbers is None else side.numbers.widths
            if any(self.views.get(n) != width or width < 1 for n, width in numbers.items()):
                return False
            if side.numbers is not None and (
                len(side.numbers.gaussian.mean) != sum(numbers.values()) or not numbers
            ):
                return False
            if len(side.farther) != len(side.distances) + 1 or not set(side.worded) <= texts:
                return False
            if side.numbers is None and not side.worded:
                return False
        return True

    def p_values(self, views: Views) -> dict[str, FloatArray]:
        """The p-value of each side, times the number of sides."""
        _same_views(views, self.views)
        count = len(self.sides)
        return {k: np.minimum(1.0, count * side.p_value(views)) for k, side in self.sides.items()}


def fit_novelty(views: Views, units: Sequence[str], level: float) -> Novelty:
    """References from calibration queries; no labels are needed."""
    widths = {name: _width(values, name) for name, values in views.items()}
    sides: dict[str, list[str]] = {}
    for name in views:
        sides.setdefault(side_of(name), []).append(name)
    size = len(set(units))
    if level == 0.0 or not sides:
        return Novelty({}, widths, level, size)
    if (size + 1) * level < len(sides):
        least = int(np.ceil(len(sides) / level)) - 1
        why = (
            f"novelty at the level {level:g} needs {least} units for {len(sides)} side(s) of the "
            f"input and has {size}: no query is called novel. Use more calibration queries, which "
            f"need no labels for this, or a larger novelty_level."
        )
        return Novelty({}, widths, level, size, why)
    found = {
        side: _fit_side({name: views[name] for name in names}, units)
        for side, names in sides.items()
    }
    return Novelty(found, widths, level, size)


def side_of(view: str) -> str:
    """image, question, or the view's own name."""
    return SIDES.get(view.split("_")[0], view)


def strangest(p_values: Mapping[str, FloatArray]) -> tuple[FloatArray, list[str]]:
    """The combined p-value of each query, and the side it comes from."""
    names, table = list(p_values), np.array(list(p_values.values()))
    return table.min(axis=0), [names[i] for i in table.argmin(axis=0)]


def _fit_side(views: Views, units: Sequence[str]) -> Side:
    texts = tuple(name for name in views if _is_text(views[name]))
    spoken = _words(views, texts)
    owners: dict[str, set[str]] = {}
    for words, unit in zip(spoken, units, strict=True):
        for word in words:
            owners.setdefault(word, set()).add(unit)
    alone = [sum(len(owners[word]) == 1 for word in words) for words in spoken]
    numbers, far = _fit_numbers({k: v for k, v in views.items() if k not in texts}, units)
    distance = _combined(np.array(alone, dtype=np.float64), far)
    own = np.unique(np.asarray(units), return_inverse=True)[1]
    order = np.argsort(distance, kind="stable")
    share = (1.0 / np.bincount(own)[own])[order]
    farther = np.concatenate([np.cumsum(share[::-1])[::-1], [0.0]])
    return Side(numbers, texts, tuple(sorted(owners)), distance[order], farther)


def _fit_numbers(views: Views, units: Sequence[str]) -> tuple[Numbers | None, FloatArray | None]:
    """The Gaussian of a side's numbers, and each row's distance from the rows of other units."""
    widths = {name: _width(values, name) for name, values in views.items()}
    rows = _joined(views, widths)
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    varies = spread > 1e-9 * np.maximum(1.0, np.abs(mean))
    if not varies.any():
        return None, None
    axes = np.diag(1.0 / np.where(varies, spread, 1.0))[:, varies]
    if axes.shape[1] > COMPONENTS:
        scaled = (rows - mean) @ axes
        axes = axes @ np.linalg.svd(scaled, full_matrices=False)[2][:COMPONENTS].T
    reduced = np.asarray((rows - mean) @ axes)  # of mean 0
    root = (fit_gaussian(reduced).inverse_root @ axes.T).astype(np.float32)  # the largest of a fit
    found = Gaussian(mean, root)  # type: ignore[arg-type]
    return Numbers(widths, found), left_out_mahalanobis(reduced, units)


def _combined(unknown: FloatArray, far: FloatArray | None) -> FloatArray:
    return unknown if far is None else np.asarray(unknown + far / (1.0 + far))


def _joined(views: Views, widths: Mapping[str, int]) -> FloatArray:
    columns = [checks.matrix(views[name], f"views[{name!r}]") for name in widths]
    return np.hstack(columns) if columns else np.zeros((1, 0))


def _words(views: Views, names: Sequence[str]) -> list[set[str]]:
    """The words of each query in the views that are texts."""
    size = len(next(iter(views.values())))
    found: list[set[str]] = [set() for _ in range(size)]
    for name in names:
        for words, text in zip(found, views[name], strict=True):
            words.update(re.findall(r"\w+", text.lower()))
    return found


def _is_text(values: Any) -> bool:
    return not isinstance(values, np.ndarray) and all(isinstance(value, str) for value in values)


def _width(values: Any, name: str) -> int:
    """Features of a view; 0 for texts."""
    return 0 if _is_text(values) else int(checks.matrix(values, f"views[{name!r}]").shape[1])


def _same_views(views: Views, known: Mapping[str, int]) -> None:
    checks.same_names(views, known, "views")
    for name, width in known.items():
        if _width(views[name], name) != width:
            kind = "texts" if width == 0 else f"{width} numbers per query"
            raise InputError(f"views[{name!r}] must be {kind}, as in the fit.")
