"""Judged pairs kept on disk in one SQLite file, so that no pair is judged twice.

Each row has its checksum: one that was damaged is passed over, and its pair judged again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import ArtefactError
from fusevlm.store.files import refuse_shared

Pair = tuple[str, str]  # premise, hypothesis

BESIDE = ("", "-journal", "-wal", "-shm")  # endings of the files SQLite keeps
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
  model TEXT, pair BLOB, contradiction REAL, neutral REAL, entailment REAL, checksum INTEGER,
  PRIMARY KEY (model, pair)
) WITHOUT ROWID
"""


class PairCache:
    """Probabilities by model and pair; each ``add`` is one transaction, whole or not there.

    The file is opened when it is first used, and again when it is used after ``close``; ``with``
    closes it. After a crash it holds every finished transaction, and SQLite rolls back the one that
    was open. Several processes may share the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._opened: sqlite3.Connection | None = None

    def find(self, model: str, pairs: Iterable[Pair]) -> dict[Pair, FloatArray]:
        """Probabilities [3] of those pairs that the model has judged before."""
        found = {}
        columns = "contradiction, neutral, entailment, checksum"
        query = f"SELECT {columns} FROM verdicts WHERE model = ? AND pair = ?"
        file = self._file()
        try:
            for pair in pairs:
                key = _digest(pair)
                row = file.execute(query, (model, key)).fetchone()
                if row is not None and row[3] == _checksum(model, key, row[:3]):
                    found[pair] = np.array(row[:3], dtype=np.float64)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._unusable(error) from error
        return found

    def add(self, model: str, judged: Mapping[Pair, FloatArray]) -> None:
        """Keep these probabilities, in the place of those that were there."""
        rows = []
        for pair, p in judged.items():
            key, values = _digest(pair), tuple(map(float, p))
            rows.append((model, key, *values, _checksum(model, key, values)))
        self.put(rows)

    def rows(self) -> list[tuple[Any, ...]]:
        """All that is kept, as it is kept."""
        try:
            return list(self._file().execute("SELECT * FROM verdicts"))
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def put(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keep rows of another cache, in the place of those that were there."""
        file = self._file()
        try:
            with file:
                file.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", rows)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise ArtefactError(
                f"cannot write to {self.path}: {error}. What was judged before is kept; free "
                f"space and run the same command again to go on."
            ) from error

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> PairCache:
        self._file()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _file(self) -> sqlite3.Connection:
        if self._opened is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                for ending in BESIDE:  # SQLite writes in place
                    path = Path(f"{self.path}{ending}")
                    if path.is_symlink() or path.exists():
                        refuse_shared(path, path.lstat())
                self._opened = sqlite3.connect(self.path, timeout=60.0)
                with self._opened:
                    self._opened.execute(_TABLE)
            # of a damaged file SQLite may tell in letters that are none
            except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
                self.close()
                raise self._unusable(error) from error
        return self._opened

    def _unusable(self, error: Exception) -> ArtefactError:
        return ArtefactError(
            f"{self.path} cannot be used as a cache of judged pairs: {error}. Delete it, or name "
            f"another file."
        )


def gather_pairs(path: str | os.PathLike[str], others: Iterable[Path]) -> None:
    """Add the pairs of other caches to that of ``path``, and remove them."""
    for other in others:
        rows = []
        source = PairCache(other)
        try:
            rows = source.rows()
        finally:
            source.close()
        if rows:
            with PairCache(path) as target:
                target.put(rows)
        for ending in BESIDE:
            Path(f"{other}{ending}").unlink(missing_ok=True)


def _checksum(model: str, key: bytes, values: Sequence[Any]) -> int:
    """Of a row; of one that holds something else than numbers it is none's."""
    if not all(isinstance(value, float) for value in values):
        return -1
    return crc32(struct.pack("<3d", *values), crc32(model.encode() + b"\0" + key))


def _digest(pair: Pair) -> bytes:
    return hashlib.sha256(json.dumps(pair).encode()).digest()
