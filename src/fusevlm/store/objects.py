"""Fitted objects as folders: JSON for facts, safetensors for arrays.

A stored object is a folder. Its arrays are written first, then the JSON manifest that names their
file, their checksum and its own; each under a temporary name, synced, then renamed. So a folder
with a manifest is whole. Arrays are named after their content: of an object saved again the
manifest takes the place of the old one, and only then the old arrays go, so that a kill at any
moment leaves the old or the new object. An object that is made of others holds them in folders
named after their content in the same way (:func:`save_inner`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError, FuseError
from fusevlm.store.declared import built
from fusevlm.store.files import (
    checksum,
    digest,
    digest_file,
    make_folder,
    read_regular,
    remove,
    save,
    save_json,
    taken,
)

ARRAYS = "arrays.safetensors"  # the name they had before
NAME = re.compile(r"arrays(-[0-9a-f]{12})?\.safetensors")

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def save_object(
    folder: str | os.PathLike[str], manifest: str, kind: str, version: int, value: Any
) -> None:
    """Write ``value`` (dataclasses, containers, numbers, arrays) as a folder."""
    from safetensors.numpy import save as packed

    target = Path(folder)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = pack(value, arrays)
    payload = packed({name: np.asarray(a, order="C") for name, a in arrays.items()})
    total = digest(payload)
    name = f"arrays-{total[:12]}.safetensors"  # beside those of an older object, not in their place
    head = {
        "kind": kind,
        "schema_version": version,
        "arrays": name,
        "arrays_sha256": total,
        "content": tree,
    }
    make_folder(target)
    with taken(target):
        save(target / name, payload)
        save_json(target / manifest, {**head, "sha256": checksum(head)})
        for path in target.iterdir():
            if NAME.fullmatch(path.name) and path.name != name:
                path.unlink(missing_ok=True)


def save_inner(folder: Path, name: str, save: Callable[[Path], None]) -> str:
    """Let an object ``save`` itself into a folder of ``folder`` that is named after its content.

    The name is returned, for the manifest of the object that it is part of; when that is written,
    :func:`keep_inner` removes the folders of before.
    """
    made = folder / f".{name}.{secrets.token_hex(4)}.tmp"
    save(made)
    target = folder / f"{name}-{_content(made)[:12]}"
    try:
        if target.exists() and _content(target) == _content(made):
            remove(made)
            return target.name
        if target.exists():  # of this name and not what it says: damaged
            remove(target)
        made.rename(target)
    except OSError as error:
        raise ArtefactError(f"cannot write {target}: {error}.") from error
    return target.name


def keep_inner(folder: Path, name: str, kept: str) -> None:
    """Remove all inner objects of this name but the one that is ``kept``, half saved ones too."""
    half = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}\.tmp")
    for path in folder.iterdir():
        own = _INNER.fullmatch(path.name)
        if half.fullmatch(path.name) or (own and own[1] == name and path.name != kept):
            remove(path)


def find_inner(folder: Path, name: str, kept: Any) -> Path:
    """The folder of an inner object, which must hold what its name says."""
    own = _INNER.fullmatch(kept) if isinstance(kept, str) else None
    if own is None or own[1] != name:
        raise ArtefactError(
            f"{folder} names {kept!r} as its {name}, which cannot be. Save it again."
        )
    found = folder / own[0]
    if not found.is_dir():
        raise ArtefactError(f"{folder} is not complete: {found.name} is missing. Save it again.")
    if _content(found)[:12] != own[2]:
        raise ArtefactError(f"{found} was changed since it was saved. Save it again.")
    return found


_INNER = re.compile(r"([a-z]+)-([0-9a-f]{12})")


def _content(folder: Path) -> str:
    """One digest of the files of an object."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return digest("".join(f"{path.name}\0{digest_file(path)}\0" for path in files).encode())


def load_object(
    folder: str | os.PathLike[str],
    manifest: str,
    kind: str,
    version: int,
    classes: Mapping[str, type],
    migrations: Mapping[int, Migration],
    *,
    of: type = object,
) -> Any:
    """Read what :func:`save_object` wrote, migrating older schemas and refusing anything else.

    ``migrations[v]`` turns the manifest of schema v into that of v + 1; ``of`` is what it must be.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    source = Path(folder)
    if not source.is_dir():
        raise _incomplete(source / manifest, kind)
    with taken(source, shared=True):
        head = _manifest(source / manifest, kind)
        found = head.get("schema_version")
        if not (isinstance(found, int) and found > version):
            _check(source / manifest, head)
        payload = _payload(source, head, kind)
    while isinstance(found, int) and found < version and found in migrations:
        head = migrations[found](head)
        found = head.get("schema_version")
    if found != version:
        raise ArtefactError(
            f"{source} has schema version {found}; this fusevlm reads version {version}. "
            f"{'Upgrade fusevlm' if isinstance(found, int) and found > version else 'Refit'}."
        )
    try:
        value = unpack(head["content"], load(payload), classes)
    except FuseError as error:
        raise ArtefactError(f"{source} is damaged: {error} Save it again.") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
            SafetensorError) as error:  # fmt: skip
        raise ArtefactError(f"{source} is damaged: {error}. Save it again.") from error
    if not isinstance(value, of):
        raise ArtefactError(f"{source} is damaged: it holds no {of.__name__}. Save it again.")
    return value


def _manifest(path: Path, kind: str) -> dict[str, Any]:
    """A manifest of the right kind."""
    try:
        head = json.loads(read_regular(path))
    except FileNotFoundError as error:
        raise _incomplete(path, kind) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}.") from error
    if not isinstance(head, dict) or head.get("kind") != kind:
        raise ArtefactError(f"{path} is not a {kind} saved by fusevlm.")
    return head


def _check(path: Path, head: Mapping[str, Any]) -> None:
    """Compare a manifest with its checksum; those of before have none."""
    held = {name: value for name, value in head.items() if name != "sha256"}
    if "sha256" in head and head["sha256"] != checksum(held):
        raise ArtefactError(
            f"{path} does not match its checksum: damaged or edited. Save it again."
        )


def _payload(source: Path, head: Mapping[str, Any], kind: str) -> bytes:
    """The arrays that a manifest names."""
    name = head.get("arrays", ARRAYS)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ArtefactError(
            f"{source} names {name!r} as its arrays, which cannot be. It is damaged."
        )
    try:
        payload = read_regular(source / name)
    except FileNotFoundError as error:
        raise _incomplete(source / name, kind) from error
    except OSError as error:
        raise ArtefactError(f"{source / name} cannot be read: {error}.") from error
    if digest(payload) != head.get("arrays_sha256"):
        raise ArtefactError(
            f"{source / name} does not match its manifest: truncated or replaced. Save it again."
        )
    return payload


def _incomplete(path: Path, kind: str) -> ArtefactError:
    return ArtefactError(
        f"{path.parent} holds no complete {kind}: {path.name} is missing. Is it the right folder? "
        f"Else save it again."
    )


def pack(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """``value`` as a JSON tree; arrays go to ``arrays`` and leave a reference behind.

    They are named after their content: what occurs twice is stored once.
    """
    if isinstance(value, np.ndarray):
        kind = f"{value.dtype.str}{value.shape}".encode()
        name = digest(kind + np.ascontiguousarray(value).tobytes())[:20]
        arrays[name] = value
        return {"array": name, **({"gaps": True} if _gaps(value) else {})}
    if is_dataclass(value) and not isinstance(value, type):
        content = {f.name: pack(getattr(value, f.name), arrays) for f in fields(value)}
        return {"type": type(value).__name__, "fields": content}
    if isinstance(value, Mapping):
        return {"map": {str(k): pack(v, arrays) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        items = [pack(v, arrays) for v in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"cannot store a {type(value).__name__}")


def unpack(tree: Any, arrays: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    """The inverse of :func:`pack`; only the named ``classes`` are ever built."""
    if isinstance(tree, list):
        return [unpack(item, arrays, classes) for item in tree]
    if isinstance(tree, float) and not np.isfinite(tree):  # such are stored as a "float"
        raise ArtefactError(f"it holds the number {tree}.")
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        found = arrays[tree["array"]]
        if _gaps(found) and not tree.get("gaps"):
            raise ArtefactError("an array holds NaN or infinity that it was not saved with.")
        return found
    if "type" in tree:
        content = {k: unpack(v, arrays, classes) for k, v in tree["fields"].items()}
        return built(classes[tree["type"]], content)
    if "map" in tree:
        return {k: unpack(v, arrays, classes) for k, v in tree["map"].items()}
    if "tuple" in tree:
        return tuple(unpack(item, arrays, classes) for item in tree["tuple"])
    return float(tree["float"])


def _gaps(array: Any) -> bool:
    """Whether some entries are no finite numbers."""
    return bool(np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all())
