"""Checkpoints of a training run: numbered folders, the newest whole one wins.

Each is written under its own name before older ones are removed, so that a process killed at any
moment leaves the last whole one. Whose task a checkpoint belongs to is for the caller to compare.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any, TypeVar

from fusevlm.errors import ArtefactError
from fusevlm.store.objects import load_object, save_object

MANIFEST = "checkpoint.json"
NUMBERED = re.compile(r"[0-9]{8,18}")

T = TypeVar("T")
log = logging.getLogger("fusevlm.store")


def save_numbered(
    home: Path, number: int, kind: str, version: int, value: Any, *, keep: int = 1
) -> None:
    """Write checkpoint ``number`` and leave the ``keep`` newest up to it."""
    _refuse_link(home)
    _refuse_link(home / f"{number:08d}")
    save_object(home / f"{number:08d}", MANIFEST, kind, version, value)
    places = _numbered(home)
    kept = [place for place in places if int(place.name) <= number][:keep]
    for place in places:
        if place not in kept:  # also a damaged one of a higher number, which was not gone on from
            shutil.rmtree(place, ignore_errors=True)


def load_newest(home: Path, kind: str, version: int, of: type[T]) -> T | None:
    """The newest whole checkpoint, a dataclass ``of`` flat fields; None if there is none.

    One without manifest was cut short while it was written and does not count. Damaged ones are
    skipped with a warning; if no other is left, the newest one's damage is raised.
    """
    damage: ArtefactError | None = None
    for place in _numbered(home):
        if not (place / MANIFEST).is_file():
            continue
        try:
            found: T = load_object(place, MANIFEST, kind, version, {of.__name__: of}, {}, of=of)
            return found
        except ArtefactError as error:
            damage = damage or error
            log.warning("skipped a checkpoint: %s", error)
    if damage is not None:
        raise damage
    return None


def remove_numbered(home: Path) -> None:
    """Forget all checkpoints of a run."""
    _refuse_link(home)
    shutil.rmtree(home, ignore_errors=True)


def _refuse_link(place: Path) -> None:
    if place.is_symlink():
        raise ArtefactError(
            f"{place} is a link, and checkpoints are written and removed there. Remove it."
        )


def _numbered(home: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not home.is_dir():
        return []
    places = (place for place in home.iterdir() if NUMBERED.fullmatch(place.name))
    return sorted(places, key=lambda place: int(place.name), reverse=True)
