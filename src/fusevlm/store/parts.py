"""The parts of a stage: numbered rows and arrays, resumable after a crash at any point.

    STAGE/part-00007.parquet       rows
    STAGE/part-00007.safetensors   arrays
    STAGE/part-00007.json          kind, facts, names of the arrays, checksums

A part's files are written first, its JSON last: a part without one was interrupted, and is removed
when writing goes on. A part that is written again gets files of other names
(part-00007.1.parquet); the JSON that names them takes the place of the old one, and only then the
old files go, so that a kill leaves the one or the other. The stage's manifest says with which
settings, and whether all parts are there (:mod:`fusevlm.store.runs`). Cost per part does not grow
with the run.

An array named ``K`` or ``K.…`` (K a number) belongs to row K of the part alone; any other has an
entry for each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError, FuseError
from fusevlm.store.files import (
    AnyPath,
    digest,
    digest_file,
    read_regular,
    read_sealed,
    save,
    save_sealed,
)
from fusevlm.store.tables import parquet_bytes, read_parquet

NAME = re.compile(r"\.?part-(\d{5,})(\.\d+)?\.(parquet|safetensors|json)(\.[0-9a-f]{1,8}\.tmp)?")
ENDINGS = ("parquet", "safetensors")
Arrays = dict[str, np.ndarray[Any, Any]]
Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Part:
    """Columns of rows, named arrays, and facts: what a part holds."""

    rows: Mapping[str, Sequence[Any]]
    arrays: Mapping[str, np.ndarray[Any, Any]]
    facts: Mapping[str, Any]


class Parts:
    """Write access to the parts of one kind in a folder; the caller holds the run's lock."""

    def __init__(self, folder: AnyPath, kind: str) -> None:
        self.folder, self.kind = Path(folder), kind
        self._facts = {part["index"]: part for part in _finished(self.folder, kind)}
        used = {name for part in self._facts.values() for name in _names(part)}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if NAME.fullmatch(path.name) and path.name not in used:
                path.unlink()  # interrupted

    def __contains__(self, index: int) -> bool:
        return index in self._facts

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What is noted of each finished part, in order."""
        return [self._facts[index] for index in sorted(self._facts)]

    def fact(self, index: int, name: str) -> int:
        """A number that is noted of a finished part; 0 where it was not noted."""
        return _whole(self._facts[index], name)

    def total(self, name: str) -> int:
        """Sum of a fact over the finished parts."""
        return sum(self.fact(index, name) for index in self._facts)

    def write(
        self,
        index: int,
        rows: Mapping[str, Sequence[Any]],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        facts: Mapping[str, Any],
    ) -> None:
        """Add part ``index``, or put it in the place of what it was."""
        from safetensors.numpy import save as pack

        payloads = {
            "parquet": parquet_bytes(rows),
            "safetensors": pack({k: np.ascontiguousarray(v) for k, v in arrays.items()}),
        }
        before = self._facts.get(index)
        version = 0 if before is None else _whole(before, "version") + 1
        sums = {ending: digest(payload) for ending, payload in payloads.items()}
        part = {"kind": self.kind, "index": index, **facts, "arrays": list(arrays), "sha256": sums}
        part |= {"version": version} if version else {}
        for ending, payload in payloads.items():
            save(_path(self.folder, part, ending), payload)
        save_sealed(self.folder / f"{_stem(index)}.json", part)
        self._facts[index] = part
        if before is not None:
            for ending in ENDINGS:
                _path(self.folder, before, ending).unlink(missing_ok=True)

    @property
    def size(self) -> int | None:
        """Queries a part, as the first of them was cut; None before there is any."""
        found = [_whole(part, "size") for part in self._facts.values() if "size" in part]
        return found[0] if found else None

    def rows(self, index: int) -> dict[str, list[Any]]:
        """The rows of a finished part."""
        return _rows(self.folder, self._facts[index])

    def read(self, index: int) -> Part:
        """A finished part."""
        part, rows = self._facts[index], self.rows(index)
        own = ("kind", "index", "arrays", "sha256", "version")
        facts = {name: value for name, value in part.items() if name not in own}
        return Part(rows, _arrays(self.folder, part, lambda name: True), facts)


def merged(old: Part, new: Part, places: Sequence[int]) -> Part:
    """``old`` with the rows at ``places`` taken from ``new``, whose facts are left out."""
    rows = {name: list(values) for name, values in old.rows.items()}
    for name, values in new.rows.items():
        column = rows.setdefault(name, [None] * len(next(iter(rows.values()))))
        for place, value in zip(places, values, strict=True):
            column[place] = value
    arrays = {k: v for k, v in old.arrays.items() if _row(k) not in places}
    for name, value in new.arrays.items():
        row = _row(name)
        if row is not None:
            arrays[f"{places[row]}{name[len(str(row)) :]}"] = value
        else:
            arrays[name] = _filled(arrays[name], value, places)
    return Part(rows, arrays, old.facts)


def _row(name: str) -> int | None:
    """The row an array belongs to; None if it has an entry for each."""
    head = name.partition(".")[0]
    return int(head) if head.isdigit() else None


def _filled(old: Any, new: Any, places: Sequence[int]) -> Any:
    """Entries at ``places`` replaced; where none was known before, the others are zeros."""
    if old.shape[1:] != new.shape[1:] and 0 in old.shape[1:]:
        old = np.zeros((len(old), *new.shape[1:]), dtype=new.dtype)
    found = np.array(old)
    if 0 not in new.shape[1:]:
        found[list(places)] = new
    return found


def read_parts(
    folder: AnyPath,
    kind: str,
    wanted: Wanted = lambda name: True,
    *,
    columns: Mapping[str, Any] | None = None,
) -> Iterator[tuple[dict[str, list[Any]], Arrays]]:
    """Rows and the ``wanted`` arrays of each finished part, in order, one part in memory at a time.

    A part whose arrays nobody wants is read without them. ``columns`` are what rows must have.
    """
    for part in sorted(_finished(Path(folder), kind), key=lambda p: p["index"]):
        rows = _rows(Path(folder), part, columns)
        yield rows, _arrays(Path(folder), part, wanted)


def _rows(
    folder: Path, part: Mapping[str, Any], columns: Mapping[str, Any] | None = None
) -> dict[str, list[Any]]:
    path = _path(folder, part, "parquet")
    payload = _checked(folder, part, "parquet")
    return read_parquet(payload, _again(folder), columns=columns, name=path)


def part_files(folder: AnyPath, kind: str, ending: str) -> Iterator[tuple[Path, str]]:
    """(path, checksum) of one file of each finished part, in order; its bytes are compared."""
    home = Path(folder)
    for part in sorted(_finished(home, kind), key=lambda p: p["index"]):
        path = _path(home, part, ending)
        if digest_file(path) != part["sha256"][ending]:
            raise _damaged(path)
        yield path, part["sha256"][ending]


def damaged_parts(folder: Path) -> dict[int, str]:
    """Parts of any kind that are not whole, by number: which file, and what is wrong with it."""
    found = {}
    for path in sorted(folder.glob("part-*.json")):
        name = NAME.fullmatch(path.name)
        if not name or name[2]:
            continue
        try:
            part = _noted(path)
        except FuseError as error:
            found[int(name[1])] = str(error)
            continue
        wrong = [e for e in ENDINGS if digest_file(_path(folder, part, e)) != part["sha256"][e]]
        if wrong:
            spoilt = _path(folder, part, wrong[0])
            found[int(name[1])] = (
                f"{spoilt.name} {'was changed' if spoilt.exists() else 'is missing'}"
            )
    return found


def part_number(file: str) -> int | None:
    """Of which part a file is the JSON; None if it is none's."""
    name = NAME.fullmatch(file)
    return int(name[1]) if name and file == f"{_stem(int(name[1]))}.json" else None


def put_away(folder: Path, index: int) -> None:
    """Rename the files of a part, so that it counts as never made."""
    for path in sorted(folder.glob(f"{_stem(index)}.*")):
        name = NAME.fullmatch(path.name)
        if name and not name[4]:
            target = path.with_name(f"{path.name}.damaged")
            number = 1
            while target.exists():
                number += 1
                target = path.with_name(f"{path.name}.damaged-{number}")
            path.rename(target)


def _arrays(folder: Path, part: Mapping[str, Any], wanted: Wanted) -> Arrays:
    """The wanted arrays; a file none of whose arrays is wanted need only be there."""
    from safetensors import SafetensorError, safe_open

    path = _path(folder, part, "safetensors")
    known = part.get("arrays")  # parts of before do not say
    if not path.is_file():
        raise _damaged(path)
    if known is not None and not any(map(wanted, known)):
        return {}
    _checked(folder, part, "safetensors")
    try:
        with safe_open(path, framework="np") as stored:
            names = [name for name in stored.keys() if wanted(name)]  # noqa: SIM118 (not a dict)
            found = {name: stored.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise _damaged(path) from error
    for name, values in found.items():
        if values.dtype.kind not in "fiub":
            raise ArtefactError(
                f"{path} holds an array of {values.dtype}, {name}. {_again(folder)}"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ArtefactError(f"{path} holds NaN or infinity, in {name}. {_again(folder)}")
    return found


def _checked(folder: Path, part: Mapping[str, Any], ending: str) -> bytes:
    path = _path(folder, part, ending)
    payload = read_regular(path) if path.exists() else b""
    if digest(payload) != part["sha256"][ending]:
        raise _damaged(path)
    return payload


def _damaged(path: Path) -> ArtefactError:
    return ArtefactError(f"{path} is missing or damaged. {_again(path.parent)}")


def _again(folder: Path) -> str:
    return f"Make the stage again: --redo {folder.name}."


def _stem(index: int) -> str:
    return f"part-{index:05d}"


def _path(folder: Path, part: Mapping[str, Any], ending: str) -> Path:
    """Of a part's rows or arrays."""
    version = _whole(part, "version")
    return folder / f"{_stem(part['index'])}{f'.{version}' if version else ''}.{ending}"


def _names(part: Mapping[str, Any]) -> set[str]:
    """Names of all files of a finished part."""
    found = {_path(Path(), part, ending).name for ending in ENDINGS}
    return {*found, f"{_stem(part['index'])}.json"}


def _finished(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What is noted of all finished parts."""
    found = []
    for path in sorted(folder.glob("part-*.json")):
        name = NAME.fullmatch(path.name)
        if not name or name[2]:
            continue
        part = _noted(path)
        if part.get("kind") != kind:
            raise ArtefactError(
                f"{path} holds {part.get('kind')!r}, not {kind!r}. {_again(folder)}"
            )
        found.append(part)
    return found


def _noted(path: Path) -> dict[str, Any]:
    """What is noted of the part in whose place ``path`` is; names in it lead nowhere else."""
    cure = _again(path.parent)
    part = read_sealed(path, cure)
    name, sums = NAME.fullmatch(path.name), part.get("sha256")
    assert name is not None
    good = type(part.get("index")) is int and part["index"] == int(name[1])
    good = good and isinstance(sums, dict) and all(type(sums.get(e)) is str for e in ENDINGS)
    known = part.get("arrays", [])
    good = good and isinstance(known, list) and all(type(one) is str for one in known)
    if not good:
        raise ArtefactError(f"{path} is not of this part, or damaged. {cure}")
    _whole(part, "version")
    return part


def _whole(part: Mapping[str, Any], name: str) -> int:
    """A number that is noted of a part; 0 where it was not noted."""
    found = part.get(name, 0)
    if type(found) is not int or found < 0:
        raise ArtefactError(f"of part {part.get('index')} {name} is noted as {found!r}.")
    return found
