"""Tables: Parquet and CSV of our own, and what users bring (CSV, JSON lines, Parquet)."""

from __future__ import annotations

import csv
import io
import json
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError
from fusevlm.store.declared import OTHERS, need_columns
from fusevlm.store.files import AnyPath, open_regular, read_regular, save, writing

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # begins what a spreadsheet would run
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MOST_CELL = 50_000_000  # characters of a CSV cell
GROUP = 2048  # rows of a table that are written and read together


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


class TableWriter:
    """Writes a Parquet file block by block, few rows in memory; it is there when it is closed.

    ``types`` are Arrow's types of the columns by name, as text. A file of at most :data:`GROUP`
    rows has the bytes of :func:`save_parquet`, whatever the types.
    """

    def __init__(self, path: AnyPath, types: Mapping[str, str]) -> None:
        self.path, self.types = Path(path), dict(types)
        self._waiting: list[Mapping[str, Any]] = []
        self._size = 0  # rows of them
        self._open = ExitStack()
        self._writer: Any = None

    def __enter__(self) -> TableWriter:
        return self

    def write(self, block: Mapping[str, Any]) -> None:
        """Add rows."""
        self._waiting.append(block)
        self._size += len(next(iter(block.values())))
        if self._size > GROUP:
            self._flush()

    def _flush(self) -> None:
        """Write the rows that wait."""
        arrow = extra("pyarrow", "writing a table", "frames")
        schema = self._schema()
        if self._writer is None:
            parquet = extra("pyarrow.parquet", "writing a table", "frames")
            stream = self._open.enter_context(writing(self.path))
            self._writer = self._open.enter_context(parquet.ParquetWriter(stream, schema))
        found = [arrow.table(dict(block)).cast(schema) for block in self._waiting]
        self._writer.write_table(arrow.concat_tables(found).combine_chunks())
        self._waiting, self._size = [], 0

    def _schema(self) -> Any:
        arrow = extra("pyarrow", "writing a table", "frames")
        listed = {name: kind.removeprefix("list ") for name, kind in self.types.items()}
        types = {name: arrow.type_for_alias(kind) for name, kind in listed.items()}
        return arrow.schema(
            [
                (name, arrow.list_(own) if self.types[name].startswith("list ") else own)
                for name, own in types.items()
            ]
        )

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._waiting:
            if self._writer is None:
                save_parquet(self.path, _joined(self._waiting))
            else:
                self._flush()
        self._open.__exit__(kind, error, trace)


def _joined(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of blocks one after the other."""
    return {name: [value for block in blocks for value in block[name]] for name in blocks[0]}


class StoredTable:
    """A Parquet file of our own, read some rows at a time; one group of rows is kept in memory.

    ``columns`` are those that there must be, and what their cells are, as in :func:`read_parquet`.
    """

    def __init__(
        self, path: AnyPath, cure: str = "", *, columns: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.cure, self._kinds = Path(path), cure, columns or {}
        parquet = extra("pyarrow.parquet", "reading a table", "frames")
        arrow = extra("pyarrow", "reading a table", "frames")
        self._errors = (OSError, ArtefactError, arrow.ArrowException, ValueError, OverflowError)
        stream = self._tried(lambda: open_regular(path))
        weakref.finalize(self, stream.close)
        self._file = self._tried(lambda: parquet.ParquetFile(stream))
        facts = self._file.metadata
        self.names: list[str] = list(self._file.schema_arrow.names)
        self._tried(lambda: self._checked(self._file.schema_arrow.empty_table()))
        self._starts = [0]
        for group in range(facts.num_row_groups):
            self._starts.append(self._starts[-1] + facts.row_group(group).num_rows)
        self._kept: tuple[tuple[int, tuple[str, ...]], Any] = ((-1, ()), None)

    def __len__(self) -> int:
        return self._starts[-1]

    def rows(
        self, start: int, stop: int, columns: Sequence[str] | None = None
    ) -> dict[str, list[Any]]:
        """The columns (some of them) of the rows from ``start`` to ``stop``."""
        names = self.names if columns is None else [n for n in columns if n in self.names]
        found: dict[str, list[Any]] = {name: [] for name in names}
        for group, (first, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            low, high = max(start, first), min(stop, end)
            if low < high:
                part = self._group(group, tuple(names)).slice(low - first, high - low)
                for name in names:
                    found[name] += self._tried(part.column(name).to_pylist)
        return found

    def take(self, places: Sequence[int], columns: Sequence[str] | None = None) -> dict[str, Any]:
        """The columns (some of them) of the rows in these places, which rise."""
        found: dict[str, list[Any]] = {}
        for first, end in zip(self._starts, self._starts[1:], strict=False):
            own = [place - first for place in places if first <= place < end]
            if own:
                for name, values in self.rows(first, end, columns).items():
                    found.setdefault(name, []).extend(values[k] for k in own)
        return found

    def column(self, name: str) -> Any:
        """One column as an array of numbers; what is no number is NaN."""
        whole = self._tried(lambda: self._checked(self._file.read([name]), [name])).column(0)
        return self._tried(lambda: whole.to_numpy(zero_copy_only=False))

    def blocks(self, size: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """All rows, so many at a time."""
        for start in range(0, len(self), size):
            yield self.rows(start, start + size, columns)

    def _group(self, number: int, names: tuple[str, ...]) -> Any:
        if self._kept[0] != (number, names):
            read = self._file.read_row_group
            found = self._tried(lambda: self._checked(read(number, columns=list(names)), names))
            self._kept = ((number, names), found)
        return self._kept[1]

    def _checked(self, table: Any, names: Sequence[str] | None = None) -> Any:
        """A table whose columns (some of them) are what was declared."""
        kinds = self._kinds
        if names is not None:
            kinds = {n: kind for n, kind in kinds.items() if n in names or n.startswith(OTHERS)}
        need_columns(table, kinds, "it")
        return table

    def _tried(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._errors as error:
            said = str(error).split("\n")[0].rstrip(".")
            text = f"{self.path} is missing or damaged: {said}. {self.cure}".strip()
            raise ArtefactError(text) from error


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
    table = UserTable(path)
    found = {name: [] for name in table.names}
    for row in table:
        for name, column in found.items():
            column.append(row[name])
    return found


class UserTable:
    """The same file row by row, as often as one likes; it is looked through once when opened."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        if self.path.suffix == ".parquet":
            self._stored = StoredTable(self.path)
            self.names, self._size = self._stored.names, len(self._stored)
        elif self.path.suffix in READERS:
            self.names, self._size = self._looked_through()
        else:
            raise ArtefactError(
                f"{self.path} has an unknown ending; expected .csv, .jsonl or .parquet. Convert it."
            )
        if not self._size:
            raise ArtefactError(f"{self.path} holds no rows.")

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.path.suffix == ".parquet":
            for block in self._stored.blocks(GROUP):
                for values in zip(*block.values(), strict=True):
                    yield dict(zip(block, values, strict=True))
            return
        for row in self._rows():
            yield {name: row.get(name) for name in self.names}

    def _looked_through(self) -> tuple[list[str], int]:
        names: dict[str, None] = {}
        size = 0
        for row in self._rows():
            names |= dict.fromkeys(row)
            size += 1
        return list(names), size

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            with open_regular(self.path) as stream:
                yield from READERS[self.path.suffix](stream, self.path)
        except (OSError, UnicodeDecodeError) as error:
            raise ArtefactError(f"cannot read {self.path}: {error}.") from error


def _csv_rows(stream: BinaryIO, source: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file with a header; a line break inside quotes is part of its cell."""
    csv.field_size_limit(MOST_CELL)
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        lines = csv.reader(text, strict=True)
        rows = enumerate(_cells(lines, source), 1)
        header: list[str] = next((row for _, row in rows), [])
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ArtefactError(f"{source} has two columns {twice!r}. Rename one.")
        for number, row in rows:
            if len(row) > len(header):
                raise ArtefactError(
                    f"{source}, row {number} has {len(row)} cells for {len(header)} columns. Put "
                    f"cells with commas in quotes."
                )
            yield dict(zip(header, row, strict=False))


def _cells(lines: Any, source: Path) -> Iterator[list[str]]:
    """The rows of a CSV file that hold anything."""
    try:
        yield from (row for row in lines if row)
    except csv.Error as error:
        raise ArtefactError(f"{source}, line {lines.line_num}: {error}.") from error


def _json_rows(stream: BinaryIO, source: Path) -> Iterator[dict[str, Any]]:
    # other marks that end a line (U+2028, form feed) may stand inside a string
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n") as text:
        for number, line in enumerate(text, 1):
            if line.strip():
                yield _json_row(line.removesuffix("\n"), source, number)


def _json_row(line: str, source: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{source}, line {number}: not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ArtefactError(f"{source}, line {number}: expected an object, got {line[:40]!r}.")
    return row


READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
