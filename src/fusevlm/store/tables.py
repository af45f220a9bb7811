"""Tables: Parquet and CSV of our own, and what users bring (CSV, JSON lines, Parquet)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError
from fusevlm.store.files import AnyPath, save


def parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    """Columns of equal length as a Parquet file."""
    arrow = extra("pyarrow", "writing a table", "frames")
    buffer = io.BytesIO()
    extra("pyarrow.parquet", "writing a table", "frames").write_table(
        arrow.table(dict(columns)), buffer
    )
    return buffer.getvalue()


def save_parquet(path: AnyPath, columns: Mapping[str, Any]) -> None:
    """Write a Parquet file."""
    save(path, parquet_bytes(columns))


def read_parquet(source: AnyPath | bytes, cure: str = "") -> dict[str, list[Any]]:
    """The columns of a Parquet file, or of its bytes; an error ends in ``cure``."""
    arrow = extra("pyarrow", "reading a table", "frames")
    parquet = extra("pyarrow.parquet", "reading a table", "frames")
    try:
        whole = arrow.BufferReader(source) if isinstance(source, bytes) else Path(source)
        found: dict[str, list[Any]] = parquet.read_table(whole).to_pydict()
    except (OSError, arrow.ArrowException) as error:
        name = "a table" if isinstance(source, bytes) else source
        raise ArtefactError(f"{name} is missing or damaged: {error}. {cure}".strip()) from error
    return found


def csv_bytes(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """A CSV file; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return text.getvalue().encode()


def save_columns(path: AnyPath, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns of equal length as .parquet or .csv, by the ending."""
    if Path(path).suffix == ".parquet":
        save_parquet(path, columns)
    else:
        save(path, csv_bytes(list(columns), list(zip(*columns.values(), strict=True))))


def read_table(path: AnyPath) -> dict[str, list[Any]]:
    """Columns of a user's CSV, JSON-lines or Parquet file (the last needs the extra ``frames``)."""
    source = Path(path)
    if source.suffix == ".parquet":
        return read_parquet(source)
    try:
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
