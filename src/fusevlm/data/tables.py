"""Queries from a table: one row each, images named relative to a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np

from fusevlm import checks
from fusevlm.data.images import located
from fusevlm.displays import Rows
from fusevlm.errors import InputError
from fusevlm.store.tables import UserTable
from fusevlm.types import Query

KNOWN = {"id", "question", "image", "images", "references", "history"}


def read_queries(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    outside: bool = False,
) -> list[Query]:
    """Queries of a CSV, JSON-lines or Parquet file.

    Columns: ``question``; ``image`` (a path) or ``images`` (a list); optionally ``id`` (default:
    the row number), ``references`` (a list, or a JSON list in CSV) and ``history``. All other
    columns become metadata. Image paths are looked up in ``images``, or beside the file; one that
    leaves that folder is refused, unless ``outside`` allows it: such a query fails by itself.
    """
    table = QueryTable(path, images, limit=limit, outside=outside)
    table.refuse_twice()
    return Rows(table)


class QueryTable(Sequence[Query]):
    """The same queries one after the other, as often as one likes; none is kept in memory."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        images: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = None,
        outside: bool = False,
    ) -> None:
        self.path, self.outside = path, outside
        self._table = UserTable(path)
        names = self._table.names
        if "question" not in names:
            raise InputError(f"{path} has no column 'question'.{checks.hint('question', names)}")
        self.root = Path(images) if images is not None else Path(path).parent
        self._size = len(self._table)
        if limit is not None:
            self._size = min(self._size, checks.count(limit, "limit"))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Query]:
        for i, row in enumerate(islice(self._table, self._size)):
            yield _query(row, i, self.root, self.path, self.outside)

    @overload
    def __getitem__(self, index: int) -> Query: ...

    @overload
    def __getitem__(self, index: slice) -> list[Query]: ...

    def __getitem__(self, index: int | slice) -> Query | list[Query]:
        """Looks through the file from its beginning."""
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        place = range(len(self))[index]
        return next(islice(self, place, None))

    def refuse_twice(self) -> None:
        """Refuse a table with two queries of one id; takes eight bytes a query."""
        hashes = np.sort(np.fromiter((_hash(query.id) for query in self), np.uint64, len(self)))
        suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen: set[str] = set()
        for query in self if suspects else ():
            if query.id in seen:
                raise InputError(f"{self.path} has the id {query.id!r} twice; ids must be unique.")
            if _hash(query.id) in suspects:
                seen.add(query.id)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _query(row: Mapping[str, Any], i: int, root: Path, path: Any, outside: bool) -> Query:
    try:
        return query_of(row, i, root, outside)
    except (InputError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}, row {i + 1}: {error}") from error


def query_of(row: Mapping[str, Any], i: int, root: Path, outside: bool) -> Query:
    """The query of row ``i``, whose pictures lie in ``root``."""
    names = listed(row.get("images")) or listed(row.get("image"))
    return Query(
        id=str(row["id"]) if row.get("id") is not None else str(i),
        question="" if row["question"] is None else str(row["question"]),
        images=[located(root, str(name), outside=outside) for name in names],
        references=[str(r) for r in listed(row.get("references"))],
        history=[(str(r), str(t)) for r, t in listed(row.get("history"))],
        metadata={k: v for k, v in row.items() if k not in KNOWN},
    )


def listed(value: Any) -> list[Any]:
    """A list from a list, a JSON list, a plain string or nothing."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return list(_json(value)) if value.startswith("[") else [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        shown = text if len(text) <= 40 else f"{text[:39]}…"
        raise InputError(
            f'{shown} is no JSON list; expected one such as ["a", "b"], with double quotes.'
        ) from error
