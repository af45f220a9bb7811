"""A run folder: numbered parts of rows and arrays, resumable after a crash at any point.

    RUN/manifest.json            what made the run, and whether it is complete
    RUN/part-00007.parquet       rows
    RUN/part-00007.safetensors   arrays
    RUN/part-00007.json          the part's own manifest: facts and checksums
    RUN/.lock                    held while a process writes

A part's files are written first (temporary name, fsync, rename), its manifest last. A part without
one was interrupted, and is removed on the next start. Cost per part does not grow with the run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError
from fusevlm.store.objects import write_atomically

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


class PartStore:
    """Write access to a run folder; one process at a time."""

    def __init__(self, folder: str | os.PathLike[str], kind: str, settings: Mapping[str, Any]):
        self.folder, self.kind = Path(folder), kind
        self.settings = json.loads(json.dumps(settings, sort_keys=True))
        self._lock: Any = None
        self._parts: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> PartStore:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("a+")
        except OSError as error:
            raise ArtefactError(f"cannot write to {self.folder}: {error}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise ArtefactError(
                f"{self.folder} is being written by {holder}. Wait for it, or use another folder."
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()
        try:
            self._resume()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def __contains__(self, index: int) -> bool:
        return index in self._parts

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the manifest says of each finished part, in order."""
        return [self._parts[index] for index in sorted(self._parts)]

    def write(
        self,
        index: int,
        rows: Mapping[str, Sequence[Any]],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        facts: Mapping[str, Any],
    ) -> None:
        """Add part ``index``: columns of rows, named arrays, and facts for the manifest."""
        from safetensors.numpy import save

        pa = extra("pyarrow", "writing a run", "frames")
        parquet = extra("pyarrow.parquet", "writing a run", "frames")
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table(dict(rows)), sink)
        payloads = {
            "parquet": sink.getvalue().to_pybytes(),
            "safetensors": save({k: np.ascontiguousarray(v) for k, v in arrays.items()}),
        }
        try:
            for ending, payload in payloads.items():
                write_atomically(self._path(index, ending), payload)
            digests = {k: hashlib.sha256(v).hexdigest() for k, v in payloads.items()}
            part = {"index": index, **facts, "sha256": digests}
            write_atomically(self._path(index, "json"), json.dumps(part).encode())
            self._parts[index] = part
        except OSError as error:
            raise ArtefactError(
                f"cannot write part {index} of {self.folder}: {error.strerror or error}. Finished "
                f"parts are kept; free space and run the same command again to go on."
            ) from error

    def finish(self) -> None:
        """Say that no part is missing."""
        self._write_manifest(complete=True)

    def _resume(self) -> None:
        if (self.folder / MANIFEST).exists():
            head = read_manifest(self.folder, self.kind)
            changed = [
                name
                for name in sorted({*head["settings"], *self.settings})
                if head["settings"].get(name) != self.settings.get(name)
            ]
            if changed:
                name = changed[0]
                raise ArtefactError(
                    f"{self.folder} belongs to another run: {name} was "
                    f"{head['settings'].get(name)!r} and is now {self.settings.get(name)!r}. "
                    f"Use the old value, or another folder."
                )
        else:
            self._write_manifest(complete=False)
        self._parts = {part["index"]: part for part in _finished(self.folder)}
        for path in self.folder.iterdir():
            number = path.name.removeprefix("part-").partition(".")[0]
            left_over = path.name.startswith("part-") and int(number) not in self._parts
            if left_over or path.name.endswith(".tmp"):
                path.unlink()

    def _write_manifest(self, *, complete: bool) -> None:
        head = {
            "kind": self.kind,
            "schema_version": SCHEMA_VERSION,
            "complete": complete,
            "settings": self.settings,
        }
        write_atomically(self.folder / MANIFEST, json.dumps(head, indent=1).encode())

    def _path(self, index: int, ending: str) -> Path:
        return self.folder / f"part-{index:05d}.{ending}"


def read_manifest(folder: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The manifest of a run folder of this kind, or an error that says what the folder is."""
    path = Path(folder) / MANIFEST
    try:
        head = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtefactError(f"{folder} holds no run: {MANIFEST} is missing.") from error
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}.") from error
    if not isinstance(head, dict) or head.get("kind") != kind:
        found = head.get("kind") if isinstance(head, dict) else None
        raise ArtefactError(f"{folder} holds {found!r}, not {kind!r}.")
    if head.get("schema_version") != SCHEMA_VERSION:
        raise ArtefactError(
            f"{folder} has schema version {head.get('schema_version')}; this fusevlm reads "
            f"{SCHEMA_VERSION}. Make the run again, or use the fusevlm that made it."
        )
    return head


def read_parts(
    folder: str | os.PathLike[str], kind: str
) -> Iterator[tuple[dict[str, list[Any]], dict[str, np.ndarray[Any, Any]]]]:
    """Rows and arrays of each finished part, in order, one part in memory at a time."""
    from safetensors.numpy import load

    parquet = extra("pyarrow.parquet", "reading a run", "frames")
    pa = extra("pyarrow", "reading a run", "frames")
    read_manifest(folder, kind)
    for part in sorted(_finished(Path(folder)), key=lambda p: int(p["index"])):
        payload = {}
        for ending, digest in part["sha256"].items():
            path = Path(folder) / f"part-{part['index']:05d}.{ending}"
            payload[ending] = path.read_bytes() if path.exists() else b""
            if hashlib.sha256(payload[ending]).hexdigest() != digest:
                raise ArtefactError(
                    f"{path} is missing or damaged. Delete part-{part['index']:05d}.json and run "
                    f"the same command again: it makes that part anew."
                )
        table = parquet.read_table(pa.BufferReader(payload["parquet"]))
        yield table.to_pydict(), load(payload["safetensors"])


def _finished(folder: Path) -> list[dict[str, Any]]:
    """The manifests of all finished parts."""
    found = []
    for path in folder.glob("part-*.json"):
        try:
            found.append(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ArtefactError(f"{path} cannot be read: {error}. Delete it to redo it.") from error
    return found
