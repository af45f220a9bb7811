"""What was paid for, kept at once: a file of lines that only grows, and survives a kill.

Each line is its checksum and a JSON list [key, value]. A line that a kill cut off, or that was
damaged, is passed over: what it held is asked for once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from fusevlm.errors import ArtefactError
from fusevlm.store.files import AnyPath, open_own, read_regular


class Journal:
    """Values by key, on disk before ``add`` returns; several threads may share one.

    ``beside`` are journals of other processes, of which what they hold now is found too.
    """

    def __init__(self, path: AnyPath, beside: Iterable[AnyPath] = ()) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._known: dict[str, Any] = {}
        for other in (*beside, self.path):
            self._known |= _read(Path(other))

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str) -> Any:
        """What was added under ``key``; None if nothing was."""
        with self._lock:
            return self._known.get(key)

    def add(self, key: str, value: Any) -> None:
        """Keep ``value``, which JSON can hold."""
        text = json.dumps([key, value], ensure_ascii=True).encode()
        line = b"%08x %s\n" % (crc32(text), text)
        with self._lock:
            self._append(line)
            self._known[key] = value

    def remove(self) -> None:
        """Forget everything, file included."""
        with self._lock:
            self._known = {}
            self.path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        append_line(self.path, line)


def append_line(path: AnyPath, line: bytes) -> None:
    """Add a line, with its end, to a file that only grows; on disk before this returns."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = open_own(target, os.O_WRONLY | os.O_APPEND)
        try:
            # after a kill the last line may lack its end
            _write_all(handle, b"\n" + line if _cut_off(target) else line)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise ArtefactError(
            f"cannot write to {target}: {error.strerror or error}. What was answered "
            f"before is kept; free space and give the same command again."
        ) from error


def _write_all(handle: int, data: bytes) -> None:
    """All of it or nothing: a disk that is nearly full takes a part, and half a line is none."""
    size = os.fstat(handle).st_size
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError:
        os.ftruncate(handle, size)
        raise


def gather(path: AnyPath, others: Iterable[Path]) -> None:
    """Add what other journals hold to that of ``path``, and remove them."""
    for other in others:
        found = _read(other)
        if found:
            journal = Journal(path)
            for key, value in found.items():
                if journal.find(key) != value:
                    journal.add(key, value)
        other.unlink(missing_ok=True)


def _cut_off(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    with path.open("rb") as handle:
        if handle.seek(0, os.SEEK_END) == 0:
            return False
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) != b"\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read: {error}. Delete it to ask again.") from error
    found: dict[str, Any] = {}
    for line in lines:
        mark, _, text = line.partition(b" ")
        if mark == b"%08x" % crc32(text):
            try:
                key, value = json.loads(text)
            except (ValueError, TypeError, RecursionError):
                continue
            found[str(key)] = value
    return found
