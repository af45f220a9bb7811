"""The parts of a stage: numbered rows and arrays, resumable after a crash at any point.

    STAGE/part-00007.parquet       rows
    STAGE/part-00007.safetensors   arrays
    STAGE/part-00007.json          kind, facts and checksums

A part's files are written first, its JSON last: a part without one was interrupted, and is removed
when writing goes on. The stage's manifest says with which settings, and whether all parts are
there (:mod:`fusevlm.store.runs`). Cost per part does not grow with the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError
from fusevlm.store.files import AnyPath, digest, digest_file, save
from fusevlm.store.tables import parquet_bytes, read_parquet

NAME = re.compile(r"\.?part-(\d{5,})\.(parquet|safetensors|json)(\.\d+\.tmp)?")
Arrays = dict[str, np.ndarray[Any, Any]]
Wanted = Callable[[str], bool]


class Parts:
    """Write access to the parts of one kind in a folder; the caller holds the run's lock."""

    def __init__(self, folder: AnyPath, kind: str) -> None:
        self.folder, self.kind = Path(folder), kind
        self._facts = {int(part["index"]): part for part in _finished(self.folder, kind)}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = NAME.fullmatch(path.name)
            if name and (name[3] or int(name[1]) not in self._facts):
                path.unlink()  # interrupted

    def __contains__(self, index: int) -> bool:
        return index in self._facts

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What is noted of each finished part, in order."""
        return [self._facts[index] for index in sorted(self._facts)]

    def total(self, name: str) -> int:
        """Sum of a fact over the finished parts."""
        return sum(int(part[name]) for part in self._facts.values())

    def write(
        self,
        index: int,
        rows: Mapping[str, Sequence[Any]],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        facts: Mapping[str, Any],
    ) -> None:
        """Add part ``index``: columns of rows, named arrays, and facts."""
        from safetensors.numpy import save as pack

        payloads = {
            "parquet": parquet_bytes(rows),
            "safetensors": pack({k: np.ascontiguousarray(v) for k, v in arrays.items()}),
        }
        for ending, payload in payloads.items():
            save(_path(self.folder, index, ending), payload)
        sums = {ending: digest(payload) for ending, payload in payloads.items()}
        part = {"kind": self.kind, "index": index, **facts, "sha256": sums}
        save(_path(self.folder, index, "json"), json.dumps(part).encode())
        self._facts[index] = part


def read_parts(
    folder: AnyPath, kind: str, wanted: Wanted = lambda name: True
) -> Iterator[tuple[dict[str, list[Any]], Arrays]]:
    """Rows and the ``wanted`` arrays of each finished part, in order, one part in memory at a time.

    A part whose arrays nobody wants is read without them.
    """
    for part in sorted(_finished(Path(folder), kind), key=lambda p: int(p["index"])):
        rows = read_parquet(_checked(Path(folder), part, "parquet"))
        yield rows, _arrays(Path(folder), part, wanted)


def part_files(folder: AnyPath, kind: str, ending: str) -> Iterator[tuple[Path, str]]:
    """(path, checksum) of one file of each finished part, in order; its bytes are compared."""
    home = Path(folder)
    for part in sorted(_finished(home, kind), key=lambda p: int(p["index"])):
        path = _path(home, part["index"], ending)
        if digest_file(path) != part["sha256"][ending]:
            raise _damaged(path)
        yield path, part["sha256"][ending]


def _arrays(folder: Path, part: Mapping[str, Any], wanted: Wanted) -> Arrays:
    from safetensors import safe_open

    path = _path(folder, part["index"], "safetensors")
    if not path.is_file():
        _checked(folder, part, "safetensors")
    with safe_open(path, framework="np") as stored:
        names = [name for name in stored.keys() if wanted(name)]  # noqa: SIM118 (not a dict)
    if not names:
        return {}
    _checked(folder, part, "safetensors")
    with safe_open(path, framework="np") as stored:
        return {name: stored.get_tensor(name) for name in names}


def _checked(folder: Path, part: Mapping[str, Any], ending: str) -> bytes:
    path = _path(folder, part["index"], ending)
    payload = path.read_bytes() if path.exists() else b""
    if digest(payload) != part["sha256"][ending]:
        raise _damaged(path)
    return payload


def _damaged(path: Path) -> ArtefactError:
    return ArtefactError(
        f"{path} is missing or damaged. Make the stage again: --redo {path.parent.name}."
    )


def _path(folder: Path, index: int, ending: str) -> Path:
    return folder / f"part-{index:05d}.{ending}"


def _finished(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What is noted of all finished parts."""
    found = []
    for path in sorted(folder.glob("part-*.json")):
        if not NAME.fullmatch(path.name):
            continue
        try:
            part = json.loads(path.read_bytes())
            if part["kind"] != kind or not isinstance(part["sha256"], dict):
                raise ValueError(f"it holds {part['kind']!r}, not {kind!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtefactError(
                f"{path} cannot be read: {error}. Make the stage again: --redo {folder.name}."
            ) from error
        found.append(part)
    return found
