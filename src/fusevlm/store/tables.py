"""Tables: Parquet and CSV of our own, and what users bring (CSV, JSON lines, Parquet)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError
from fusevlm.store.declared import need_columns
from fusevlm.store.files import AnyPath, read_regular, save

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # begins what a spreadsheet would run
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MOST_CELL = 50_000_000  # characters of a CSV cell


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


def read_parquet(
    source: AnyPath | bytes,
    cure: str = "",
    *,
    columns: Mapping[str, Any] | None = None,
    name: object = None,
) -> dict[str, list[Any]]:
    """The columns of a Parquet file, or of its bytes (then ``name`` says whose).

    ``columns`` are those that there must be, and what their cells are
    (:func:`fusevlm.store.declared.need_columns`). An error ends in ``cure``.
    """
    arrow = extra("pyarrow", "reading a table", "frames")
    parquet = extra("pyarrow.parquet", "reading a table", "frames")
    name = name or ("a table" if isinstance(source, bytes) else source)
    try:
        whole = source if isinstance(source, bytes) else read_regular(source)
        table = parquet.read_table(arrow.BufferReader(whole))
        if columns is not None:
            need_columns(table, columns, "it")
        found: dict[str, list[Any]] = table.to_pydict()
    except (OSError, ArtefactError, arrow.ArrowException, ValueError, OverflowError) as error:
        said = str(error).split("\n")[0].rstrip(".")
        raise ArtefactError(f"{name} is missing or damaged: {said}. {cure}".strip()) from error
    return found


def csv_bytes(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """A CSV file; None is an empty cell, and a text that a spreadsheet would run is not run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in [header, *rows]:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue().encode(errors="backslashreplace")


def _cell(value: Any) -> Any:
    """A cell that spreadsheets show as it is: ' before a text that begins as a formula does."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(FORMULA) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def save_columns(path: AnyPath, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns of equal length as .parquet or .csv, by the ending."""
    if Path(path).suffix == ".parquet":
        save_parquet(path, columns)
    else:
        save(path, csv_bytes(list(columns), list(zip(*columns.values(), strict=True))))


def read_table(path: AnyPath) -> dict[str, list[Any]]:
    """Columns of a user's CSV, JSON-lines or Parquet file (the last needs the extra ``frames``).

    A column that some rows of a JSON-lines file lack is None there.
    """
    source = Path(path)
    if source.suffix == ".parquet":
        found = read_parquet(source)
        if not any(found.values()):
            raise ArtefactError(f"{source} holds no rows.")
        return found
    if source.suffix not in READERS:
        raise ArtefactError(
            f"{source} has an unknown ending; expected .csv, .jsonl or .parquet. Convert it."
        )
    try:
        text = read_regular(source).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"cannot read {source}: {error}.") from error
    rows = READERS[source.suffix](text, source)
    if not rows:
        raise ArtefactError(f"{source} holds no rows.")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _csv_rows(text: str, source: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file with a header; a line break inside quotes is part of its cell."""
    csv.field_size_limit(MOST_CELL)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        raise ArtefactError(f"{source}, line {lines.line_num}: {error}.") from error
    header = rows[0] if rows else []
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ArtefactError(f"{source} has two columns {twice!r}. Rename one.")
    for number, row in enumerate(rows[1:], 2):
        if len(row) > len(header):
            raise ArtefactError(
                f"{source}, row {number} has {len(row)} cells for {len(header)} columns. Put cells "
                f"with commas in quotes."
            )
    return [dict(zip(header, row, strict=False)) for row in rows[1:]]


def _json_rows(text: str, source: Path) -> list[dict[str, Any]]:
    # other marks that end a line (U+2028, form feed) may stand inside a string
    lines = enumerate(text.split("\n"), 1)
    return [_json_row(line, source, i) for i, line in lines if line.strip()]


def _json_row(line: str, source: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{source}, line {number}: not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ArtefactError(f"{source}, line {number}: expected an object, got {line[:40]!r}.")
    return row


READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
