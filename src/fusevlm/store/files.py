"""Files written whole or not at all, JSON, digests, and the one lock of a folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusevlm.errors import ArtefactError

AnyPath = str | os.PathLike[str]
LOCK = ".lock"
SMALL = 16_000_000  # bytes; larger input files count by name and size only


def write_atomically(path: Path, payload: bytes) -> None:
    """Temporary name, fsync, rename: ``path`` is either the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; folders cannot be synced on every system."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: AnyPath, payload: bytes) -> None:
    """Write a file and the folders above it, or say what to do when that is impossible."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, payload)
    except OSError as error:
        raise ArtefactError(
            f"cannot write {target}: {error.strerror or error}. What is finished is kept; free "
            f"space or choose another folder, then give the same command again."
        ) from error


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline; NaN is refused."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def save_json(path: AnyPath, value: Any) -> None:
    """Write indented JSON."""
    save(path, json_bytes(value))


def read_json(path: AnyPath, cure: str) -> dict[str, Any]:
    """A JSON object, or an error that ends in ``cure``."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}. {cure}") from error
    if not isinstance(found, dict):
        raise ArtefactError(f"{path} holds no JSON object. {cure}")
    return found


def digest(payload: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file, read in blocks; of nothing where there is none."""
    total = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def digest_input(path: Path) -> str:
    """Digest of a file or folder that somebody else made."""
    total = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        size = file.stat().st_size
        total.update(f"{file.relative_to(path)}\0{size}\0".encode())
        if size <= SMALL:
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def size_of(folder: Path) -> int:
    """Bytes in a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def start_afresh(folder: AnyPath, mark: str) -> None:
    """Empty a folder that an earlier command marked as its own; refuse any other with content.

    ``mark`` is a file that says so, and is written at once.
    """
    home = Path(folder)
    try:
        if home.is_dir() and any(home.iterdir()):
            if not (home / mark).is_file():
                raise ArtefactError(
                    f"{home} is not empty and holds no {mark}: it is somebody else's. Choose "
                    f"another folder."
                )
            shutil.rmtree(home)
    except OSError as error:
        raise ArtefactError(f"cannot remove {home}: {error}.") from error
    save_json(home / mark, {})


@contextmanager
def hold(folder: AnyPath) -> Iterator[None]:
    """Keep other processes off a folder meanwhile."""
    home = Path(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / LOCK).open("a+")
    except OSError as error:
        raise ArtefactError(
            f"cannot write to {home}: {error.strerror or error}. Choose another folder."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise ArtefactError(
                f"{home} is in use by {holder}. Wait, or choose another folder."
            ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield
