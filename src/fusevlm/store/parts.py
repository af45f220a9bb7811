"""The parts of a stage: numbered rows and arrays, resumable after a crash at any point.

    STAGE/part-00007.parquet       rows
    STAGE/part-00007.safetensors   arrays
    STAGE/part-00007.json          kind, facts, names of the arrays, checksums

A part's files are written first, its JSON last: a part without one was interrupted, and is removed
when writing goes on. A part that is written again gets files of other names
(part-00007.1.parquet); the JSON that names them takes the place of the old one, and only then the
old files go, so that a kill leaves the one or the other. The stage's manifest says with which
settings, and whether all parts are there (:mod:`fusevlm.store.runs`). Cost per part does not grow
with the run, and of each part only a few numbers are held in memory.

One process opens the parts for writing (:class:`Parts`, which removes what was interrupted); any
number of others may write parts of their own beside it (:func:`write_part`). The files may lie in
a bucket (:mod:`fusevlm.store.places`).

An array named ``K`` or ``K.…`` (K a number) belongs to row K of the part alone; any other has an
entry for each row.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError, FuseError
from fusevlm.store.files import (
    AnyPath,
    digest,
    digest_file,
    parse_json,
    sealed_bytes,
    unsealed,
)
from fusevlm.store.places import Folder, Place, place_of
from fusevlm.store.tables import parquet_bytes, read_parquet

NAME = re.compile(r"\.?part-(\d{5,})(\.\d+)?\.(parquet|safetensors|json)(\.[0-9a-f]{1,8}\.tmp)?")
ENDINGS = ("parquet", "safetensors")
OWN = ("kind", "index", "arrays", "sha256", "version")  # of a part's JSON; all else are facts
# facts that are held in memory: how often a part was written, how many rows, and of which kind
NUMBERS = ("version", "size", "queries", "failed", "passing", "near_boundary", "pairs")
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
        self.place = place_of(folder)
        self._facts = {part["index"]: _numbers(part) for part in _finished(self.place, kind)}
        self.tidy()

    def __contains__(self, index: int) -> bool:
        return index in self._facts

    def __len__(self) -> int:
        return len(self._facts)

    @property
    def facts(self) -> list[dict[str, int]]:
        """The numbers that are noted of each finished part, in order."""
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
        part = write_part(self.place, self.kind, index, Part(rows, arrays, facts))
        self._facts[index] = _numbers(part)

    def note(self, index: int) -> None:
        """Count a part that another process has written."""
        self._facts[index] = _numbers(read_note(self.place, self.kind, index))

    @property
    def size(self) -> int | None:
        """Queries a part, as the first of them was cut; None before there is any."""
        found = [_whole(part, "size") for part in self._facts.values() if "size" in part]
        return found[0] if found else None

    def rows(self, index: int) -> dict[str, list[Any]]:
        """The rows of a finished part."""
        return _rows(self.place, read_note(self.place, self.kind, index))

    def read(self, index: int) -> Part:
        """A finished part."""
        return read_part(self.place, self.kind, index)

    def remove(self, index: int) -> None:
        """Remove a finished part that is not needed any more; its JSON first."""
        part = read_note(self.place, self.kind, index)
        self.place.remove(f"{_stem(index)}.json")
        for ending in ENDINGS:
            self.place.remove(_file(part, ending))
        del self._facts[index]

    def tidy(self) -> None:
        """Remove what is not of a finished part: what was interrupted, or not removed any more."""
        known = ({"index": index, **facts} for index, facts in self._facts.items())
        used = {name for part in known for name in _names(part)}
        for name in self.place.names():
            if NAME.fullmatch(name) and name not in used:
                self.place.remove(name)


def write_part(place: Place, kind: str, index: int, part: Part) -> dict[str, Any]:
    """Write a part, or put it in the place of what it was; what is noted of it."""
    from safetensors.numpy import save as pack

    payloads = {
        "parquet": parquet_bytes(part.rows),
        "safetensors": pack({k: np.ascontiguousarray(v) for k, v in part.arrays.items()}),
    }
    before = read_note(place, kind, index) if place.has(f"{_stem(index)}.json") else None
    version = 0 if before is None else _whole(before, "version") + 1
    sums = {ending: digest(payload) for ending, payload in payloads.items()}
    note = {"kind": kind, "index": index, **part.facts, "arrays": list(part.arrays), "sha256": sums}
    note |= {"version": version} if version else {}
    for ending, payload in payloads.items():
        place.save(_file(note, ending), payload)
    place.save(f"{_stem(index)}.json", sealed_bytes(note))
    if before is not None:
        for ending in ENDINGS:
            place.remove(_file(before, ending))
    return note


def read_note(place: Place, kind: str, index: int) -> dict[str, Any]:
    """What is noted of a finished part of this kind."""
    return _of_kind(place, f"{_stem(index)}.json", kind)


def read_part(place: Place, kind: str, index: int) -> Part:
    """A finished part."""
    part = read_note(place, kind, index)
    rows = _rows(place, part)
    facts = {name: value for name, value in part.items() if name not in OWN}
    return Part(rows, _arrays(place, part, lambda name: True), facts)


class Stored:
    """Read access to the rows of all finished parts by their number, one part at a time."""

    def __init__(
        self, folder: AnyPath, kind: str, *, columns: Mapping[str, Any] | None = None
    ) -> None:
        self.place, self.kind, self._columns = place_of(folder), kind, columns
        self.kinds: Counter[str] = Counter()  # arrays of single rows by what they are, such as last
        self._parts: list[int] = []
        self._good: list[int] = []
        self._sizes: list[int] = []
        for part in _finished(self.place, kind):
            rows, good = self._counted(part)
            self._parts.append(part["index"])
            self._good.append(good)
            self._sizes.append(rows)
            known = part.get("arrays")
            names = _arrays(self.place, part, lambda name: True) if known is None else known
            self.kinds.update(name.partition(".")[2] for name in names)
        self._starts = [0, *accumulate(self._sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def _counted(self, part: Mapping[str, Any]) -> tuple[int, int]:
        """Rows of a part, and those without an error; parts of before may not say."""
        if "queries" in part and "failed" in part:
            return _whole(part, "queries"), _whole(part, "queries") - _whole(part, "failed")
        rows = _rows(self.place, part, self._columns)
        size = len(next(iter(rows.values()), []))
        return size, sum(error is None for error in rows.get("error", [None] * size))

    @cached_property
    def good(self) -> list[int]:
        """How many rows without an error there are before each part, and in all."""
        return [0, *accumulate(self._good)]

    def start_of(self, number: int) -> int:
        """The first row of the part in this place."""
        return self._starts[number]

    def part_with(self, row: int) -> int:
        """In which place the part is that holds a row."""
        return bisect_right(self._starts, row) - 1

    def read(
        self, number: int, wanted: Wanted = lambda name: True
    ) -> tuple[dict[str, list[Any]], Arrays]:
        """Rows and the ``wanted`` arrays of the part in this place."""
        part = read_note(self.place, self.kind, self._parts[number])
        rows, size = _rows(self.place, part, self._columns), self._sizes[number]
        if any(len(column) != size for column in rows.values()):
            where = self.place.where(_file(part, "parquet"))
            raise ArtefactError(f"{where} has not the {size} rows noted. {_again(self.place)}")
        return rows, _arrays(self.place, part, wanted)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(place of a part, first, end) of rows ``start`` to ``stop``, within each part."""
        number = self.part_with(start)
        while start < stop and number < len(self._parts):
            first, end = self._starts[number], self._starts[number + 1]
            if end > start:
                yield number, start - first, min(stop, end) - first
                start = end
            number += 1

    def good_before(self, row: int) -> int:
        """How many rows before this one have no error."""
        if row >= len(self):
            return self.good[-1]
        number = self.part_with(row)
        first = self._starts[number]
        if self._good[number] == self._starts[number + 1] - first:
            return self.good[number] + row - first
        rows, _ = self.read(number, lambda name: False)
        return self.good[number] + sum(e is None for e in rows["error"][: row - first])


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
    place = place_of(folder)
    for part in _finished(place, kind):
        yield _rows(place, part, columns), _arrays(place, part, wanted)


def _rows(
    place: Place, part: Mapping[str, Any], columns: Mapping[str, Any] | None = None
) -> dict[str, list[Any]]:
    payload = _checked(place, part, "parquet")
    where = place.where(_file(part, "parquet"))
    return read_parquet(payload, _again(place), columns=columns, name=where)


def part_files(folder: AnyPath, kind: str, ending: str) -> Iterator[tuple[Path, str]]:
    """(path, checksum) of one file of each finished part, in order; its bytes are compared."""
    home = Folder(folder)
    for part in _finished(home, kind):
        path = home.path / _file(part, ending)
        if digest_file(path) != part["sha256"][ending]:
            raise _damaged(home, path.name)
        yield path, part["sha256"][ending]


def damaged_parts(folder: Path) -> dict[int, str]:
    """Parts of any kind that are not whole, by number: which file, and what is wrong with it."""
    found, place = {}, place_of(folder)
    for index, name in _json_names(place):
        try:
            part = _noted(place, name)
        except FuseError as error:
            found[index] = str(error)
            continue
        sums = place.digests(_file(part, ending) for ending in ENDINGS)
        wrong = [e for e in ENDINGS if sums[_file(part, e)] != part["sha256"][e]]
        if wrong:
            spoilt = _file(part, wrong[0])
            found[index] = f"{spoilt} {'was changed' if place.has(spoilt) else 'is missing'}"
    return found


def part_number(file: str) -> int | None:
    """Of which part a file is the JSON; None if it is none's."""
    name = NAME.fullmatch(file)
    return int(name[1]) if name and file == f"{_stem(int(name[1]))}.json" else None


def begun(folder: AnyPath) -> bool:
    """Whether a part of the stage is finished, wherever its parts lie."""
    return bool(_json_names(place_of(folder)))


def put_away(folder: Path, index: int) -> None:
    """Rename the files of a part, so that it counts as never made."""
    place = place_of(folder)
    there = set(place.names())
    for file in sorted(there):
        name = NAME.fullmatch(file)
        if name and not name[4] and int(name[1]) == index and file.startswith(_stem(index)):
            target = f"{file}.damaged"
            number = 1
            while target in there:
                number += 1
                target = f"{file}.damaged-{number}"
            place.rename(file, target)


def json_digests(place: Place) -> dict[str, str]:
    """Digest of the JSON of each part that lies in a place."""
    return place.digests(name for _, name in _json_names(place))


def _arrays(place: Place, part: Mapping[str, Any], wanted: Wanted) -> Arrays:
    """The wanted arrays; a file none of whose arrays is wanted need only be there."""
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    name = _file(part, "safetensors")
    known = part.get("arrays")  # parts of before do not say
    if not place.has(name):
        raise _damaged(place, name)
    if known is not None and not any(map(wanted, known)):
        return {}
    payload = _checked(place, part, "safetensors")
    try:
        if place.folder is None:
            found = {k: v for k, v in load(payload).items() if wanted(k)}
        else:
            del payload
            with safe_open(place.folder / name, framework="np") as stored:
                names = [k for k in stored.keys() if wanted(k)]  # noqa: SIM118 (not a dict)
                found = {k: stored.get_tensor(k) for k in names}
    except SafetensorError as error:
        raise _damaged(place, name) from error
    for own, values in found.items():
        if values.dtype.kind not in "fiub":
            raise ArtefactError(
                f"{place.where(name)} holds an array of {values.dtype}, {own}. {_again(place)}"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ArtefactError(
                f"{place.where(name)} holds NaN or infinity, in {own}. {_again(place)}"
            )
    return found


def _checked(place: Place, part: Mapping[str, Any], ending: str) -> bytes:
    name = _file(part, ending)
    try:
        payload = place.read(name)
    except FileNotFoundError:
        payload = b""
    if digest(payload) != part["sha256"][ending]:
        raise _damaged(place, name)
    return payload


def _damaged(place: Place, name: str) -> ArtefactError:
    return ArtefactError(f"{place.where(name)} is missing or damaged. {_again(place)}")


def _again(place: Place) -> str:
    return f"Make the stage again: --redo {place.name}."


def _stem(index: int) -> str:
    return f"part-{index:05d}"


def _file(part: Mapping[str, Any], ending: str) -> str:
    """Name of a part's rows or arrays."""
    version = _whole(part, "version")
    return f"{_stem(part['index'])}{f'.{version}' if version else ''}.{ending}"


def _names(part: Mapping[str, Any]) -> set[str]:
    """Names of all files of a finished part."""
    return {*(_file(part, ending) for ending in ENDINGS), f"{_stem(part['index'])}.json"}


def _numbers(part: Mapping[str, Any]) -> dict[str, int]:
    """What is held in memory of a part."""
    return {name: part[name] for name in NUMBERS if name in part}


def _json_names(place: Place) -> list[tuple[int, str]]:
    """(number, name) of the JSON of each finished part, in the order of their numbers."""
    found = ((NAME.fullmatch(name), name) for name in place.names())
    return sorted(
        (int(own[1]), name)
        for own, name in found
        if own and own[3] == "json" and not own[2] and not own[4] and not name.startswith(".")
    )


def _finished(place: Place, kind: str) -> Iterator[dict[str, Any]]:
    """What is noted of all finished parts, in the order of their numbers."""
    for _, name in _json_names(place):
        yield _of_kind(place, name, kind)


def _of_kind(place: Place, name: str, kind: str) -> dict[str, Any]:
    part = _noted(place, name)
    if part.get("kind") != kind:
        raise ArtefactError(
            f"{place.where(name)} holds {part.get('kind')!r}, not {kind!r}. {_again(place)}"
        )
    return part


def _noted(place: Place, name: str) -> dict[str, Any]:
    """What is noted of the part in whose place the file is; names in it lead nowhere else."""
    cure, where = _again(place), place.where(name)
    try:
        payload = place.read(name)
    except OSError as error:
        raise ArtefactError(f"{where} cannot be read: {error}. {cure}") from error
    part = unsealed(parse_json(payload, where, cure), where, cure)
    found, sums = NAME.fullmatch(name), part.get("sha256")
    assert found is not None
    good = type(part.get("index")) is int and part["index"] == int(found[1])
    good = good and isinstance(sums, dict) and all(type(sums.get(e)) is str for e in ENDINGS)
    known = part.get("arrays", [])
    good = good and isinstance(known, list) and all(type(one) is str for one in known)
    if not good:
        raise ArtefactError(f"{where} is not of this part, or damaged. {cure}")
    _whole(part, "version")
    return part


def _whole(part: Mapping[str, Any], name: str) -> int:
    """A number that is noted of a part; 0 where it was not noted."""
    found = part.get(name, 0)
    if type(found) is not int or found < 0:
        raise ArtefactError(f"of part {part.get('index')} {name} is noted as {found!r}.")
    return found
