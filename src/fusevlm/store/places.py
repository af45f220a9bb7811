"""Where the parts of a stage lie: its own folder, or a bucket (``s3://``, ``gs://``).

A stage whose parts lie in a bucket has a small file that says so (:data:`POINTER`); all else of the
stage stays in its folder. Buckets are reached through pyarrow's file systems, with the credentials
of the environment, which are never written down. An object is whole or not there, as a file that is
written under another name first.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from fusevlm import checks
from fusevlm.errors import ArtefactError, InputError
from fusevlm.store.files import (
    AnyPath,
    digest,
    digest_file,
    read_json,
    read_regular,
    save,
    save_json,
    slug,
)

POINTER = "place.json"  # in a stage's folder: where its parts lie instead
SCHEMES = ("s3", "gs", "gcs")
SECRETS = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
AT_ONCE = 16  # objects of a bucket read side by side


class Place(Protocol):
    """Named files without folders among them."""

    def names(self) -> list[str]:
        """All of them, in order."""
        ...

    def where(self, name: str) -> str:
        """A file as people are told of it."""
        ...

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """OSError where it is not there."""
        ...

    def save(self, name: str, payload: bytes) -> None: ...

    def remove(self, name: str) -> None:
        """Nothing where it is gone already."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Of each file; that of nothing where there is none."""
        ...

    @property
    def name(self) -> str:
        """The last level: of parts, the stage they belong to."""
        ...

    @property
    def folder(self) -> Path | None:
        """Of files on this machine; None of others."""
        ...


class Folder:
    """Files in a folder."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)

    @property
    def folder(self) -> Path:
        return self.path

    @property
    def name(self) -> str:
        return self.path.name

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []

    def where(self, name: str) -> str:
        return str(self.path / name)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return read_regular(self.path / name)

    def save(self, name: str, payload: bytes) -> None:
        save(self.path / name, payload)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def rename(self, old: str, new: str) -> None:
        (self.path / old).rename(self.path / new)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        return {name: digest_file(self.path / name) for name in names}


class Bucket:
    """Objects below an address such as ``s3://bucket/some/where``.

    What stands behind a ``?`` is pyarrow's, such as ``?region=eu-central-1`` or, for another
    server than Amazon's, ``?scheme=http&endpoint_override=localhost:9000``.
    """

    folder = None

    def __init__(self, address: str) -> None:
        self.address = checked_address(address)
        files = checks.extra("pyarrow.fs", "parts in a bucket", "frames")
        arrow = checks.extra("pyarrow", "parts in a bucket", "frames")
        self._missing = files.FileType.NotFound
        self._errors = (OSError, arrow.ArrowException)
        self._selector = files.FileSelector
        try:
            self._files, base = files.FileSystem.from_uri(self.address)
        except (ValueError, *self._errors) as error:
            raise self._unusable(error) from error
        self._base = base.rstrip("/")

    @property
    def name(self) -> str:
        return str(self._base).rpartition("/")[2]

    def beside(self, name: str) -> str:
        """The address of another level beside this one."""
        head, mark, options = self.address.partition("?")
        return f"{head.rstrip('/').rpartition('/')[0]}/{name}{mark}{options}"

    def names(self) -> list[str]:
        found = self._tried(
            lambda: self._files.get_file_info(self._selector(self._base, allow_not_found=True))
        )
        return sorted(one.base_name for one in found if one.is_file)

    def where(self, name: str) -> str:
        return f"{self.address.partition('?')[0].rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        return bool(
            self._tried(lambda: self._files.get_file_info(self._at(name))).type != self._missing
        )

    def read(self, name: str) -> bytes:
        def whole() -> bytes:
            with self._files.open_input_stream(self._at(name)) as stream:
                found: bytes = stream.read()
            return found

        try:
            return whole()
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise self._unusable(error) from error

    def save(self, name: str, payload: bytes) -> None:
        def put() -> None:
            with self._files.open_output_stream(self._at(name)) as stream:
                stream.write(payload)

        self._tried(put)

    def remove(self, name: str) -> None:
        try:
            self._files.delete_file(self._at(name))
        except FileNotFoundError:
            return
        except self._errors as error:
            if self.has(name):
                raise self._unusable(error) from error

    def rename(self, old: str, new: str) -> None:
        self._tried(lambda: self._files.move(self._at(old), self._at(new)))

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        def one(name: str) -> str:
            try:
                return digest(self.read(name))
            except FileNotFoundError:
                return digest(b"")

        wanted = list(names)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _tried(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self._errors as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> ArtefactError:
        said = str(error).strip().split("\n")[0]
        return ArtefactError(
            f"{self.where('')} cannot be used: {said}. Correct the address, or the credentials in "
            f"the environment; what is finished is kept, and the same command goes on."
        )


def is_address(text: str) -> bool:
    """Whether a text names a bucket."""
    return urlsplit(text).scheme in SCHEMES


def checked_address(address: str) -> str:
    """An address of a bucket that can be written down: none with a secret in it."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise InputError(
            f"{address!r} is no bucket; expected s3://BUCKET/WHERE or gs://BUCKET/WHERE."
        )
    secret = [name for name, _ in parse_qsl(parts.query) if SECRETS.search(name)]
    if parts.username or parts.password or secret:
        raise InputError(
            "the address of the bucket holds a key or a password, which would be written down with "
            "the run. Put it into the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "GOOGLE_APPLICATION_CREDENTIALS) and give the bare address."
        )
    return address


def below(address: str, name: str) -> str:
    """The address with one more level."""
    head, mark, options = address.partition("?")
    return f"{head.rstrip('/')}/{name}{mark}{options}"


def place_of(folder: AnyPath) -> Place:
    """Where the parts of the stage in ``folder`` lie."""
    return point_of(folder) if (Path(folder) / POINTER).is_file() else Folder(folder)


def point_of(folder: AnyPath) -> Bucket:
    """The bucket that the pointer in a stage's folder names."""
    pointer = Path(folder) / POINTER
    address = read_json(pointer, "Make the stage again.").get("parts")
    if not isinstance(address, str):
        raise ArtefactError(f"{pointer} names no place. Make the stage again.")
    return Bucket(address)


def point_to(folder: AnyPath, address: str) -> None:
    """Have the parts of a stage in a bucket, at a level of their own below the address.

    A stage that was begun stays where it is.
    """
    home = Path(folder)
    if (home / POINTER).exists() or any(home.glob("part-*.json")):
        return
    own = below(checked_address(address), f"{slug(home.parent.name)}-{secrets.token_hex(4)}")
    save_json(home / POINTER, {"parts": below(own, home.name)})


def copy_out(place: Place, files: Mapping[str, Path]) -> None:
    """Put files of this machine into a place, those that are there in the same form left out."""
    known = place.digests(files)
    for name, path in files.items():
        if known[name] != digest_file(path):
            place.save(name, path.read_bytes())


def copy_in(place: Place, names: Iterable[str], folder: Path) -> None:
    """Files of a place into a folder of this machine; ``a%2Fb`` becomes b in the folder a."""
    for name in names:
        save(folder / name.replace("%2F", "/"), place.read(name))
