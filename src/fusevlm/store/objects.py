"""Fitted objects as folders: JSON for facts, safetensors for arrays.

A stored object is a folder. Arrays are written first, then the JSON manifest that names their
checksum; each under a temporary name, synced, then renamed. So a folder with a manifest is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError
from fusevlm.store.files import digest, json_bytes, save

ARRAYS = "arrays.safetensors"

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def save_object(
    folder: str | os.PathLike[str], manifest: str, kind: str, version: int, value: Any
) -> None:
    """Write ``value`` (dataclasses, containers, numbers, arrays) as a folder."""
    from safetensors.numpy import save as packed

    target = Path(folder)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = pack(value, arrays)
    payload = packed({name: np.ascontiguousarray(a) for name, a in arrays.items()})
    head = {
        "kind": kind,
        "schema_version": version,
        "arrays_sha256": digest(payload),
        "content": tree,
    }
    save(target / ARRAYS, payload)
    save(target / manifest, json_bytes(head))


def load_object(
    folder: str | os.PathLike[str],
    manifest: str,
    kind: str,
    version: int,
    classes: Mapping[str, type],
    migrations: Mapping[int, Migration],
) -> Any:
    """Read what :func:`save_object` wrote, migrating older schemas and refusing anything else.

    ``migrations[v]`` turns the manifest of schema v into that of v + 1.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    source = Path(folder)
    try:
        head = json.loads((source / manifest).read_bytes())
        payload = (source / ARRAYS).read_bytes()
    except FileNotFoundError as error:
        raise ArtefactError(
            f"{source} holds no complete {kind}: {Path(error.filename).name} is missing. "
            f"Save it again."
        ) from error
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{source / manifest} cannot be read: {error}.") from error
    if not isinstance(head, dict) or head.get("kind") != kind:
        raise ArtefactError(f"{source / manifest} is not a {kind} saved by fusevlm.")
    found = head.get("schema_version")
    while isinstance(found, int) and found < version and found in migrations:
        head = migrations[found](head)
        found = head.get("schema_version")
    if found != version:
        raise ArtefactError(
            f"{source} has schema version {found}; this fusevlm reads version {version}. "
            f"{'Upgrade fusevlm' if isinstance(found, int) and found > version else 'Refit'}."
        )
    if digest(payload) != head.get("arrays_sha256"):
        raise ArtefactError(
            f"{source / ARRAYS} does not match its manifest: truncated or replaced. Save it again."
        )
    try:
        return unpack(head["content"], load(payload), classes)
    except (KeyError, TypeError, SafetensorError) as error:
        raise ArtefactError(f"{source} is damaged: {error}.") from error


def pack(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """``value`` as a JSON tree; arrays go to ``arrays`` and leave a reference behind."""
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
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
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return arrays[tree["array"]]
    if "type" in tree:
        content = {k: unpack(v, arrays, classes) for k, v in tree["fields"].items()}
        return classes[tree["type"]](**content)
    if "map" in tree:
        return {k: unpack(v, arrays, classes) for k, v in tree["map"].items()}
    if "tuple" in tree:
        return tuple(unpack(item, arrays, classes) for item in tree["tuple"])
    return float(tree["float"])
