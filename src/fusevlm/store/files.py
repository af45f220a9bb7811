"""Files written whole or not at all, JSON, digests, and the one lock of a folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import local
from typing import Any, BinaryIO

from fusevlm.errors import ArtefactError

AnyPath = str | os.PathLike[str]
LOCK = ".lock"
SEAL = "seal"  # key of a JSON object: the checksum of all others
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # not on every system
SMALL = 16_000_000  # bytes; larger input files count by name and size only
PATIENCE = 60.0  # seconds to wait for a folder that somebody else writes to


def write_atomically(path: Path, payload: bytes) -> None:
    """Temporary name, fsync, rename: ``path`` is either the old file or the whole new one.

    A link at ``path`` is replaced, not followed, and nobody else's file is ever opened.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: AnyPath) -> Iterator[BinaryIO]:
    """A stream whose file is at ``path``, whole, when it is left; and not at all after an error."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666)
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritten(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unwritten(target: Path, error: OSError) -> ArtefactError:
    return ArtefactError(
        f"cannot write {target}: {error.strerror or error}. What is finished is kept; free "
        f"space or choose another folder, then give the same command again."
    )


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


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtefactError(
            f"cannot make {folder}: {error.strerror or error}. Mend that and give the same command "
            f"again, or choose another folder."
        ) from error


def save(path: AnyPath, payload: bytes) -> None:
    """Write a file and the folders above it, or say what to do when that is impossible."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, payload)
    except OSError as error:
        raise _unwritten(target, error) from error


def open_own(path: Path, flags: int) -> int:
    """Open a file that is written in its place, and made where it is not there.

    A link is refused, and so is a file that has a second name: both would be written elsewhere too.
    """
    handle = os.open(path, flags | os.O_CREAT | NO_LINK | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        refuse_shared(path, os.fstat(handle))
    except ArtefactError:
        os.close(handle)
        raise
    return handle


def refuse_shared(path: Path, known: os.stat_result) -> None:
    """Refuse what is no regular file, or one that lies somewhere else too."""
    if not stat.S_ISREG(known.st_mode) or known.st_nlink > 1:
        what = "has a second name" if stat.S_ISREG(known.st_mode) else "is no regular file"
        raise ArtefactError(f"{path} {what}, and would be written to. Remove it.")


def open_log(path: AnyPath) -> BinaryIO:
    """A file that another process writes its words to, at its end."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(open_own(target, os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as error:
        raise _unwritten(target, error) from error


def read_regular(path: AnyPath, most: int | None = None) -> bytes:
    """The bytes of a regular file, at most so many; a pipe or a device would never end.

    OSError where there is none, ArtefactError where it is something else.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if most is not None and size > most:
            raise ArtefactError(
                f"{path} has {size / 1e6:.0f} MB; at most {most / 1e6:.0f} are taken."
            )
        return stream.read()


def open_regular(path: AnyPath) -> BinaryIO:
    """A regular file to read from, as :func:`read_regular` reads it."""
    # opened first and looked at then, so that it cannot be exchanged in between
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    stream = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        stream.close()
        raise ArtefactError(f"{path} is no regular file.")
    return stream


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline; NaN is refused."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def save_json(path: AnyPath, value: Any) -> None:
    """Write indented JSON."""
    save(path, json_bytes(value))


def read_json(path: AnyPath, cure: str) -> dict[str, Any]:
    """A JSON object, or an error that ends in ``cure``."""
    try:
        payload = read_regular(path)
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read: {error}. {cure}") from error
    return parse_json(payload, str(path), cure)


def parse_json(payload: bytes, where: str, cure: str) -> dict[str, Any]:
    """The JSON object that was read from ``where``, or an error that ends in ``cure``."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{where} cannot be read: {error}. {cure}") from error
    if not isinstance(found, dict):
        raise ArtefactError(f"{where} holds no JSON object. {cure}")
    return found


def save_sealed(path: AnyPath, value: Mapping[str, Any]) -> None:
    """Write a JSON object, whose keys are strings, with a checksum of all it holds."""
    save(path, sealed_bytes(value))


def sealed_bytes(value: Mapping[str, Any]) -> bytes:
    """What :func:`save_sealed` writes."""
    return json_bytes({**value, SEAL: checksum(value)})


def read_sealed(path: AnyPath, cure: str) -> dict[str, Any]:
    """What :func:`save_sealed` wrote, or an error that ends in ``cure``.

    A file of before has no seal.
    """
    return unsealed(read_json(path, cure), str(path), cure)


def unsealed(found: dict[str, Any], where: str, cure: str) -> dict[str, Any]:
    """A JSON object without its seal, which is compared."""
    if found.pop(SEAL, None) not in (None, checksum(found)):
        raise ArtefactError(f"{where} was changed since it was written. {cure}")
    return found


def checksum(value: Mapping[str, Any]) -> str:
    """Of a JSON object, whatever its layout."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


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


def remove(path: Path) -> None:
    """Delete a file, or a folder with all that is in it; links are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise ArtefactError(f"cannot remove {path}: {error}.") from error


def refuse_links(home: Path) -> None:
    """Refuse a folder in which links lead elsewhere: a run that was sent may hold any.

    Files of ``home`` itself are replaced when they are written; a link there leads nobody away.
    """
    for place in [home, *folders_in(home)]:
        for entry in _entries(place):
            if entry.is_symlink() and (entry.is_dir() or place != home):
                raise ArtefactError(
                    f"{entry.path} is a link, and a run folder must hold what is in it. Put a copy "
                    f"in its place, or remove it."
                )


def folders_in(home: Path) -> list[Path]:
    """All folders below ``home``, without those that links lead to."""
    found: list[Path] = []
    for entry in _entries(home):
        if entry.is_dir(follow_symlinks=False):
            found += [Path(entry.path), *folders_in(Path(entry.path))]
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed with all that was put into it."""
    with tempfile.TemporaryDirectory(prefix="fusevlm-") as folder:
        yield Path(folder)


def slug(name: str) -> str:
    """A folder name, never hidden and never a way out of the folder it is in."""
    plain = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
    return f"_{plain[1:]}" if plain.startswith(".") else plain


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


_MINE = local()  # folders that this thread has taken, and how often


@contextmanager
def taken(folder: AnyPath, *, shared: bool = False) -> Iterator[None]:
    """Wait until nobody else, of this process or another, writes to a folder; then be the one.

    ``shared``: to read, beside others who read. Nothing is written for it: the folder itself is
    locked, where its file system can do that. Who has taken a folder may take it again.
    """
    home = Path(folder).absolute()
    own: dict[Path, int] = _MINE.__dict__.setdefault("folders", {})
    if home in own:
        yield
        return
    handle = os.open(home, os.O_RDONLY)
    try:
        _wait_for(handle, home, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        own[home] = handle
        yield
    finally:
        own.pop(home, None)
        os.close(handle)


def _wait_for(handle: int, home: Path, how: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise ArtefactError(
                    f"{home} has been in use for {PATIENCE:g} s. Wait, or choose another folder."
                ) from error
            time.sleep(0.01)
        except OSError:  # not on every file system
            return None


def refuse_held(folder: Path) -> None:
    """Refuse a folder that another process holds now; nothing is written."""
    path = folder / LOCK
    if path.is_symlink() or not path.is_file():
        return
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            holder = lock.read().strip() or "another process"
            raise ArtefactError(
                f"{folder} is in use by {holder}. Wait, or choose another folder."
            ) from error


@contextmanager
def hold(folder: AnyPath) -> Iterator[None]:
    """Keep other processes off a folder meanwhile."""
    home = Path(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(open_own(home / LOCK, os.O_RDWR), "r+")
    except OSError as error:
        linked = " its lock is a link." if (home / LOCK).is_symlink() else ""
        raise ArtefactError(
            f"cannot write to {home}:{linked} {error.strerror or error}. Choose another folder."
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
        lock.seek(0)
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield
