"""What is resampled together: the one function that decides it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.data.images import Refused
from fusevlm.errors import InputError
from fusevlm.types import Query


def units_of(queries: Sequence[Query], column: str = "", split: str = "") -> list[str]:
    """The unit of each query: queries with the same one are not independent of each other.

    The values of a metadata column where one is named; else the image (several are joined), else,
    for a query without an image, its own id in its ``split``. An image is its path; a picture in
    memory is the query's ``image_id`` where there is one, and its content otherwise.
    """
    return [unit_of(query, column, split, queries) for query in queries]


def unit_of(query: Query, column: str, split: str, queries: Iterable[Query]) -> str:
    """The unit of one of the ``queries``."""
    if column:
        return _value(query, column, queries)
    own = f"{split}/" if split else ""
    return "|".join(_name(image, query) for image in query.images) or f"{own}{query.id}"


def _value(query: Query, column: str, queries: Iterable[Query]) -> str:
    value = query.metadata.get(column)
    if value is None or value != value:  # a missing value would make a unit of all that lack one
        there = dict.fromkeys(name for q in queries for name in q.metadata)
        advice = (
            " Fill it in for every query, or name another column."
            if column in there
            else checks.hint(column, there)
        )
        raise InputError(
            f"units are the values of the column {column!r}, which query {query.id!r} lacks."
            f"{advice}"
        )
    return str(value)


def _name(image: Any, query: Query) -> str:
    if isinstance(image, Refused):
        return image.name
    if isinstance(image, str | Path):
        return os.path.normpath(image)
    if query.metadata.get("image_id") is not None:
        return str(query.metadata["image_id"])
    content = image if isinstance(image, bytes | bytearray) else image.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
