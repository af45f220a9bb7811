"""Columns of numbers on disk, which grow at their end: what does not belong into memory at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError
from fusevlm.store.files import AnyPath, open_own, remove, slug


class Columns:
    """Columns by name in a folder that is theirs alone; ``with`` removes it in the end.

    They are for the time of one stage, and hold nothing that another could go on with.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.folder = Path(folder)
        self._types: dict[str, np.dtype[Any]] = {}
        if self.folder.is_dir():
            remove(self.folder)  # of a stage that was interrupted

    def __enter__(self) -> Columns:
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder.is_dir():
            remove(self.folder)

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def append(self, name: str, values: Any) -> None:
        """Add entries to a column, which is begun where there is none."""
        rows = np.ascontiguousarray(values)
        kept = self._types.setdefault(name, rows.dtype)
        if rows.dtype != kept:
            raise ValueError(f"the column {name} holds {kept}, not {rows.dtype}.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = open_own(self._path(name), os.O_WRONLY | os.O_APPEND)
            with os.fdopen(handle, "ab") as stream:
                stream.write(rows.tobytes())
        except OSError as error:
            raise ArtefactError(
                f"cannot write to {self.folder}: {error.strerror or error}. What is finished is "
                f"kept; free space, then give the same command again."
            ) from error

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """A whole column."""
        return np.fromfile(self._path(name), self._types[name])

    def _path(self, name: str) -> Path:
        place = list(self._types).index(name)
        return self.folder / f"{place:04d}-{slug(name)[:80]}"
