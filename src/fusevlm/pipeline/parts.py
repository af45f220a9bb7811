"""Work done part by part: what is missing is made, and what failed is tried again.

A stage that is made of parts has, in its module,

    items(work)        all that it goes through, in order, read when it is looked at
    open_maker(work)   what makes parts of some of them: a model, loaded once

and an engine (:mod:`fusevlm.pipeline.engine`) that brings the two together, here or elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, overload

from fusevlm.store.generations import count_rows
from fusevlm.store.parts import Part, Parts, merged, read_part, write_part
from fusevlm.store.places import Place
from fusevlm.types import Query

NEVER, PASSING, ALL = "never", "passing", "all"  # failed rows to try again
Progress = Callable[..., None]  # done, in all, and perhaps a note
MOST_PARTS = 16384  # of a stage, as long as parts can grow
LARGEST = 1024  # queries a part


class Span(Sequence[Any]):
    """Some items of a long sequence, read when they are looked at."""

    def __init__(self, items: Sequence[Any], places: Sequence[int]) -> None:
        self.items, self.places = items, places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read(self.places))

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        chosen = self.places[index]
        return self._read(chosen) if isinstance(chosen, Sequence) else self.items[chosen]

    def _read(self, places: Sequence[int]) -> list[Any]:
        if not places:
            return []
        some = self.items[places[0] : places[-1] + 1]
        return [some[place - places[0]] for place in places]


@dataclass(frozen=True)
class Piece:
    """Some queries of one part: all of them, or those at ``places`` that are tried again."""

    index: int
    items: Sequence[Any]
    places: Sequence[int] | None = None
    start: int = 0  # of the part's first item among all


class Maker(Protocol):
    """Makes parts of pieces; one in each process that works on a stage."""

    def make(self, piece: Piece) -> Part: ...

    def told(self) -> dict[str, Any]:
        """What is to be known beside the parts made so far: of a service, in JSON's types."""
        ...

    def close(self) -> None: ...


def part_size(n_items: int, batch: int) -> int:
    """Items a part: a batch, and in a long run as many batches as keep the parts countable."""
    size = batch
    while n_items > MOST_PARTS * size and size < LARGEST:
        size += batch
    return size


def cut(n_items: int, size: int, breaks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """(start, stop) of each part: by position, and none goes across a break."""
    found = []
    for start, stop in zip([0, *breaks], [*breaks, n_items], strict=True):
        found += [(first, min(first + size, stop)) for first in range(start, stop, size)]
    return found


def open_pieces(
    parts: Parts,
    items: Sequence[Any],
    size: int,
    again: str = NEVER,
    breaks: Sequence[int] = (),
    settled: int = 0,
) -> list[Piece]:
    """What is left to do, in order.

    Parts are cut by position, in the size in which the first of them was cut, so that a run that
    goes on has the layout of an uninterrupted one, also with another ``size``. What failed among
    the first ``settled`` items is not tried again.
    """
    size = parts.size or size
    found = []
    for index, (start, stop) in enumerate(cut(len(items), size, breaks)):
        some = Span(items, range(start, stop))
        if index not in parts:
            found.append(Piece(index, some, start=start))
        elif again != NEVER and start >= settled:
            places = _failed(parts, index, some, again)
            if places:
                own = Span(items, [start + k for k in places])
                found.append(Piece(index, own, places, start))
    return found


def fill(
    parts: Parts,
    pieces: Sequence[Piece],
    n_items: int,
    size: int,
    maker: Maker,
    *,
    progress: Progress = lambda *_: None,
    noted: Callable[[int | None, dict[str, Any]], str] = lambda index, told: "",
) -> None:
    """Make the pieces, one after the other.

    ``noted`` is told the number of each part that was written (before the first: None) with what
    the maker tells; what it answers goes with the progress.
    """
    done = n_items - sum(len(piece.items) for piece in pieces)
    noted(None, maker.told())
    progress(done, n_items)
    for piece in pieces:
        keep(parts, piece, maker.make(piece), size)
        words = noted(piece.index, maker.told())
        done += len(piece.items)
        progress(done, n_items, *filter(None, [words]))


def keep(parts: Parts, piece: Piece, made: Part, size: int) -> None:
    """Write what was made of a piece, and count it."""
    if keep_piece(parts.place, parts.kind, piece, made, parts.size or size):
        parts.note(piece.index)


def keep_piece(place: Place, kind: str, piece: Piece, made: Part, size: int) -> bool:
    """Write what was made of a piece; whether anything was: a row that fails as before changes
    nothing.
    """
    if piece.places is None:
        facts = {**made.facts, "size": size}
        write_part(place, kind, piece.index, replace(made, facts=facts))
        return True
    old = read_part(place, kind, piece.index)
    if [old.rows["error"][k] for k in piece.places] == list(made.rows["error"]):
        return False
    new = merged(old, made, piece.places)
    new = replace(new, facts={**old.facts, **count_rows(new.rows)})
    write_part(place, kind, piece.index, new)
    return True


def _failed(parts: Parts, index: int, items: Sequence[Any], again: str) -> list[int]:
    """Places of the rows of a part that are to be tried again."""
    if not parts.fact(index, "failed" if again == ALL else "passing"):
        return []
    rows = parts.rows(index)
    return [k for k, item in enumerate(items) if _try_again(rows, k, item, again)]


def _try_again(rows: Mapping[str, Sequence[Any]], k: int, item: Any, again: str) -> bool:
    """Whether a row failed for a reason that is to be tried, and may be gone."""
    if rows["error"][k] is None:
        return False
    return again == ALL or bool(rows["passing"][k] and _there(item))


def _there(item: Any) -> bool:
    """Whether all files of a query exist; those of the reason may be back."""
    paths = [p for p in item.images if isinstance(p, str | Path)] if isinstance(item, Query) else []
    return all(os.path.isfile(path) for path in paths)  # of any name, also one too long
