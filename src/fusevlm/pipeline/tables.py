"""The tables of a run: Parquet and CSV, column by column."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError
from fusevlm.store.runs import save


def save_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    """Columns of equal length as a Parquet file."""
    arrow = extra("pyarrow", "a run", "frames")
    parquet = extra("pyarrow.parquet", "a run", "frames")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(dict(columns)), buffer)
    save(path, buffer.getvalue())


def read_parquet(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet file of a run."""
    arrow = extra("pyarrow", "a run", "frames")
    parquet = extra("pyarrow.parquet", "a run", "frames")
    try:
        found: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    except (OSError, arrow.ArrowException) as error:
        stage = path.parent.name
        raise ArtefactError(
            f"{path} is missing or damaged: {error}. Make it again: --redo {stage}."
        ) from error
    return found


def save_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A CSV file; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    save(path, text.getvalue().encode())
