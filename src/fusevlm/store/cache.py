"""Judged pairs kept on disk in one SQLite file, so that no pair is judged twice."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import ArtefactError

Pair = tuple[str, str]  # premise, hypothesis

_TABLE = """
CREATE TABLE IF NOT EXISTS judged (
  model TEXT, pair BLOB, contradiction REAL, neutral REAL, entailment REAL,
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
        query = "SELECT contradiction, neutral, entailment FROM judged WHERE model = ? AND pair = ?"
        file = self._file()
        try:
            for pair in pairs:
                row = file.execute(query, (model, _digest(pair))).fetchone()
                if row is not None:
                    found[pair] = np.array(row, dtype=np.float64)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return found

    def add(self, model: str, judged: Mapping[Pair, FloatArray]) -> None:
        """Keep these probabilities; a pair that is there already stays as it is."""
        rows = [(model, _digest(pair), *map(float, p)) for pair, p in judged.items()]
        file = self._file()
        try:
            with file:
                file.executemany("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
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
                self._opened = sqlite3.connect(self.path, timeout=60.0)
                with self._opened:
                    self._opened.execute(_TABLE)
            except (OSError, sqlite3.Error) as error:
                self.close()
                raise self._unusable(error) from error
        return self._opened

    def _unusable(self, error: Exception) -> ArtefactError:
        return ArtefactError(
            f"{self.path} cannot be used as a cache of judged pairs: {error}. Delete it, or name "
            f"another file."
        )


def _digest(pair: Pair) -> bytes:
    return hashlib.sha256(json.dumps(pair).encode()).digest()
