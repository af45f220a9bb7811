"""What every prior offers, and the checks all of them share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fusevlm.checks import FloatArray, choice
from fusevlm.errors import InputError
from fusevlm.store.pairs import StoredRows

Embeddings = npt.NDArray[np.float32] | npt.NDArray[np.float64]

NORMS = ("unit", "normalize", "any")
NORM_TOLERANCE = 0.01
_ROWS = 8192  # checked at a time


class Prior(Protocol):
    """Fit on paired embeddings, then give statistics of new ones; larger means stranger.

    ``primary`` names the statistic to use as s. Widths of the two modalities may differ, and either
    may be left out (None) of the fit, or of a query if the fit had both.
    """

    primary: str

    def fit(self, image: Any = None, text: Any = None) -> Self: ...

    def statistics(self, image: Any = None, text: Any = None) -> dict[str, FloatArray]: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


def check_pairs(
    image: Any, text: Any, *, norm: str = "unit", widths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The modalities given, by name: equal row counts, finite, known widths, norm 1 if asked.

    ``norm``: "unit" refuses rows whose norm is more than 1 % from 1; "normalize" divides each row
    by its norm; "any" takes them as they are. float32 stays float32: no copy is made of large data,
    and stored pairs stay stored.
    """
    choice(norm, "norm", NORMS)
    given = {name: value for name, value in (("image", image), ("text", text)) if value is not None}
    if not given:
        raise InputError("neither image nor text embeddings were given; pass at least one.")
    pairs = {name: _embeddings(value, name, norm) for name, value in given.items()}
    sizes = {name: len(rows) for name, rows in pairs.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            f"image has {sizes['image']} rows and text {sizes['text']}; expected pairs, row by row."
        )
    for name, rows in pairs.items():
        if widths is None:
            continue
        if name not in widths:
            raise InputError(f"{name} embeddings were given, but the fit had none of them.")
        if rows.shape[1] != widths[name]:
            raise InputError(
                f"{name} embeddings have width {rows.shape[1]}; the fit had {widths[name]}. "
                f"Use the encoder the prior was fitted with, or fit again."
            )
    return pairs


def _embeddings(value: Any, name: str, norm: str) -> Any:
    stored = isinstance(value, StoredRows)
    if stored and norm == "normalize":
        raise InputError(
            "stored pairs are read from disk as they are; norm='normalize' needs arrays."
        )
    rows = value if stored else np.asarray(value)
    if rows.dtype.kind not in "fiub":
        raise InputError(f"{name} embeddings are not numeric: they are of {rows.dtype}.")
    if rows.dtype not in (np.float32, np.float64):
        try:
            rows = rows.astype(np.float32 if rows.dtype == np.float16 else np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} embeddings are not numeric ({error}).") from error
    if rows.ndim != 2 or 0 in rows.shape:
        raise InputError(
            f"{name} embeddings have shape {rows.shape}; expected (pairs, width) with at least one "
            f"of each."
        )
    scaled: Any = np.empty_like(rows) if norm == "normalize" else rows
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        bad = ~np.isfinite(part)
        if bad.any():
            row = start + int(np.argwhere(bad)[0][0])
            raise InputError(
                f"{name} embeddings have NaN or infinite values (first in row {row}). "
                f"Drop those pairs or repair the step that made them."
            )
        with np.errstate(over="ignore"):  # of numbers whose squares are none
            norms = np.linalg.norm(part, axis=1)
        if norm == "normalize":
            if not norms.all():
                row = start + int(np.argmin(norms))
                raise InputError(f"{name} embeddings have norm 0 in row {row}: no direction.")
            scaled[start : start + _ROWS] = part / norms[:, None]
        elif norm == "unit" and float(np.abs(norms - 1.0).max()) > NORM_TOLERANCE:
            row = int(np.abs(norms - 1.0).argmax())
            raise InputError(
                f"{name} embeddings are not of norm 1 (row {start + row} has {norms[row]:.4g}). "
                f"Pass norm='normalize' to divide by the norm, or norm='any' to keep them."
            )
    return scaled
