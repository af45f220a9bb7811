"""A dataset from its configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.data.hub import read_hub
from fusevlm.data.tables import read_queries
from fusevlm.data.vqa import official_split, read_vqa
from fusevlm.errors import ArtefactError, InputError
from fusevlm.types import Query

_Config = Mapping[str, Any]


def open_dataset(config: _Config) -> Iterator[Query]:
    """Queries of the dataset that ``config`` names by its ``kind``.

    ``vqav2``, ``okvqa``, ``advqa``: ``folder`` of the official files; optionally ``split``
    (default val), ``images`` (default: the folder), ``answers`` (false reads a split without
    public answers), ``limit``, ``strict``. ``file``: ``path``; optionally ``images``, ``limit``.
    ``hub``: ``name``, ``split``; optionally ``columns``, ``limit``, ``strict``.
    """
    if "kind" not in config:
        raise InputError(f"the dataset has no 'kind'; expected one of {', '.join(KINDS)}.")
    kind = checks.known(str(config["kind"]), KINDS, "the kind of dataset")
    needed, optional, opener = KINDS[kind]
    given = {name: value for name, value in config.items() if name != "kind"}
    for name in given:
        checks.known(name, (*needed, *optional), f"the setting of a {kind} dataset")
    for name in needed:
        if name not in given:
            raise InputError(f"a {kind} dataset needs {name!r}; got {', '.join(config)}.")
    return opener(kind, given)


def _open_vqa(kind: str, given: _Config) -> Iterator[Query]:
    split, folder = given.get("split", "val"), Path(given["folder"])
    files = official_split(kind, split)
    annotations = None
    if given.get("answers", True):
        if files.annotations is None:
            raise InputError(
                f"the split {split!r} of {kind} has no public answers. Use 'val', or set "
                f"answers to false to read its questions alone."
            )
        annotations = packed_or_not(folder, files.annotations)
    return read_vqa(
        packed_or_not(folder, files.questions),
        annotations,
        given.get("images", folder),
        name=kind,
        split=split,
        limit=given.get("limit"),
        strict=given.get("strict", True),
    )


def official_files(kind: str, folder: str, split: str) -> dict[str, Path]:
    """The questions and, where they are public, the annotations of a split."""
    files = official_split(kind, split)
    named = {"questions": files.questions, "annotations": files.annotations}
    return {
        what: packed_or_not(Path(folder), name) for what, name in named.items() if name is not None
    }


def packed_or_not(folder: Path, name: str) -> Path:
    """The file of that name, or its gzipped form."""
    for path in (folder / name, folder / f"{name}.gz"):
        if os.path.isfile(path):
            return path
    raise ArtefactError(f"{folder} holds neither {name} nor {name}.gz. Unpack the dataset there.")


def _open_file(kind: str, given: _Config) -> Iterator[Query]:
    return iter(read_queries(**given))


def _open_hub(kind: str, given: _Config) -> Iterator[Query]:
    return read_hub(**given)


_VQA = (("folder",), ("split", "images", "answers", "limit", "strict"), _open_vqa)
# kind: needed settings, optional ones, what opens it
KINDS: dict[
    str, tuple[tuple[str, ...], tuple[str, ...], Callable[[str, _Config], Iterator[Query]]]
] = {
    "vqav2": _VQA,
    "okvqa": _VQA,
    "advqa": _VQA,
    "file": (("path",), ("images", "limit"), _open_file),
    "hub": (("name", "split"), ("columns", "limit", "strict"), _open_hub),
}
