"""Tables that users bring: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError


def read_table(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Columns of a CSV, JSON-lines or Parquet file (the last needs the extra ``frames``)."""
    source = Path(path)
    try:
        if source.suffix == ".parquet":
            columns = extra("pyarrow.parquet", "reading Parquet", "frames").read_table(source)
            return dict(columns.to_pydict())
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"cannot read {source}: {error}.") from error
    if source.suffix in (".jsonl", ".ndjson"):
        rows = [_json_row(line, source, i) for i, line in _lines(text)]
    elif source.suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
    else:
        raise ArtefactError(
            f"{source} has an unknown ending; expected .csv, .jsonl or .parquet. Convert it."
        )
    if not rows:
        raise ArtefactError(f"{source} holds no rows.")
    return {name: [row.get(name) for row in rows] for name in rows[0]}


def _lines(text: str) -> list[tuple[int, str]]:
    return [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]


def _json_row(line: str, source: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ArtefactError(f"{source}, line {number}: not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ArtefactError(f"{source}, line {number}: expected an object, got {line[:40]!r}.")
    return row
