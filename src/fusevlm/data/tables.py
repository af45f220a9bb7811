"""Queries from a table: one row each, images named relative to a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.data.images import located
from fusevlm.displays import Rows
from fusevlm.errors import InputError
from fusevlm.store import read_table
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
    table = read_table(path)
    if "question" not in table:
        raise InputError(f"{path} has no column 'question'.{checks.hint('question', table)}")
    root = Path(images) if images is not None else Path(path).parent
    size = len(table["question"])
    if limit is not None:
        size = min(size, checks.count(limit, "limit"))
    rows = ({name: values[i] for name, values in table.items()} for i in range(size))
    found = Rows(_query(row, i, root, path, outside) for i, row in enumerate(rows))
    seen: set[str] = set()
    for query in found:
        if query.id in seen:
            raise InputError(f"{path} has the id {query.id!r} twice; ids must be unique.")
        seen.add(query.id)
    return found


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
        found = json.loads(value) if value.startswith("[") else [value]
        return found if isinstance(found, list) else [found]
    return list(value) if isinstance(value, list | tuple) else [value]
