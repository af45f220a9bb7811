"""Queries from a table: one row each, images named relative to a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.errors import InputError
from fusevlm.store import read_table
from fusevlm.types import Query

KNOWN = {"id", "question", "image", "images", "references", "history"}


def read_queries(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
) -> list[Query]:
    """Queries of a CSV, JSON-lines or Parquet file.

    Columns: ``question``; ``image`` (a path) or ``images`` (a list); optionally ``id`` (default:
    the row number), ``references`` (a list, or a JSON list in CSV) and ``history``. All other
    columns become metadata. Relative image paths are looked up in ``images``, or beside the file.
    """
    table = read_table(path)
    if "question" not in table:
        raise InputError(f"{path} has no column 'question'.{checks.hint('question', table)}")
    root = Path(images) if images is not None else Path(path).parent
    size = len(table["question"])
    if limit is not None:
        size = min(size, checks.count(limit, "limit"))
    found = [_query(table, i, root, path) for i in range(size)]
    seen: set[str] = set()
    for query in found:
        if query.id in seen:
            raise InputError(f"{path} has the id {query.id!r} twice; ids must be unique.")
        seen.add(query.id)
    return found


def _query(table: dict[str, list[Any]], i: int, root: Path, path: Any) -> Query:
    row = {name: values[i] for name, values in table.items()}
    names = _listed(row.get("images")) or _listed(row.get("image"))
    try:
        return Query(
            id=str(row["id"]) if row.get("id") is not None else str(i),
            question="" if row["question"] is None else str(row["question"]),
            images=[root / name for name in names],
            references=[str(r) for r in _listed(row.get("references"))],
            history=[(str(r), str(t)) for r, t in _listed(row.get("history"))],
            metadata={k: v for k, v in row.items() if k not in KNOWN},
        )
    except (InputError, ValueError) as error:
        raise InputError(f"{path}, row {i + 1}: {error}") from error


def _listed(value: Any) -> list[Any]:
    """A list from a list, a JSON list, a plain string or nothing."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return json.loads(value) if value.startswith("[") else [value]
    return list(value)
