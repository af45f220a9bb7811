"""Work done part by part: what is missing is made, and what failed is tried again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusevlm.store.generations import count_rows
from fusevlm.store.parts import Part, Parts, merged
from fusevlm.types import Query

NEVER, PASSING, ALL = "never", "passing", "all"  # failed rows to try again
Progress = Callable[..., None]  # done, in all, and perhaps a note


@dataclass(frozen=True)
class Piece:
    """Some queries of one part: all of them, or those at ``places`` that are tried again."""

    index: int
    items: Sequence[Any]
    places: Sequence[int] | None = None


Make = Callable[[Piece], Part]


def open_pieces(parts: Parts, items: Sequence[Any], size: int, again: str = NEVER) -> list[Piece]:
    """What is left to do, in order.

    Parts are cut by position, in the size in which the first of them was cut, so that a run that
    goes on has the layout of an uninterrupted one, also with another ``size``.
    """
    size = parts.size or size
    found = []
    for index, start in enumerate(range(0, len(items), size)):
        some = items[start : start + size]
        if index not in parts:
            found.append(Piece(index, some))
        elif again != NEVER:
            places = _failed(parts, index, some, again)
            if places:
                found.append(Piece(index, [some[k] for k in places], places))
    return found


def fill(
    parts: Parts,
    items: Sequence[Any],
    size: int,
    make: Make,
    *,
    again: str = NEVER,
    progress: Progress = lambda *_: None,
    kept: Callable[[int], None] = lambda index: None,
    note: Callable[[], str] = lambda: "",
) -> None:
    """Make every part that is missing, and the failed rows that are to be tried again.

    ``kept`` is told the number of each part that was written; ``note`` goes with the progress.
    """
    left = open_pieces(parts, items, size, again)
    done = len(items) - sum(len(piece.items) for piece in left)
    progress(done, len(items))
    for piece in left:
        keep(parts, piece, make(piece), size)
        kept(piece.index)
        done += len(piece.items)
        progress(done, len(items), *filter(None, [note()]))


def keep(parts: Parts, piece: Piece, made: Part, size: int) -> None:
    """Write what was made of a piece; a row that fails as it did before changes nothing."""
    size = parts.size or size
    if piece.places is None:
        parts.write(piece.index, made.rows, made.arrays, {**made.facts, "size": size})
        return
    old = parts.read(piece.index)
    if [old.rows["error"][k] for k in piece.places] == list(made.rows["error"]):
        return
    new = merged(old, made, piece.places)
    new = replace(new, facts={**old.facts, **count_rows(new.rows)})
    parts.write(piece.index, new.rows, new.arrays, new.facts)


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
