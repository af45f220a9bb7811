"""Paired embeddings from files or from a run of ``fusevlm embed``. No torch here."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from fusevlm.checks import extra
from fusevlm.errors import ArtefactError, InputError
from fusevlm.store import read_json
from fusevlm.store.files import read_regular
from fusevlm.store.generations import read_embeddings
from fusevlm.store.pairs import open_pairs
from fusevlm.store.runs import STAGE, require_whole

MANIFEST = "adapter.json"
LAYOUTS = (
    "run folder, .parquet (columns image and text, lists of numbers), "
    ".safetensors (image, text) or .npy ([2, N, D])"
)


def read_pairs(
    path: str | os.PathLike[str] | None = None,
    *,
    image: str | os.PathLike[str] | None = None,
    text: str | os.PathLike[str] | None = None,
    training: bool = False,
) -> dict[str, Any]:
    """``{"image": [N, D_I], "text": [N, D_T]}`` from one file, or from a npy file each.

    One of the two may be missing from the file, or not be given. A run folder (or its ``embed``)
    adds ``query_id``; for ``training`` its own training pairs are taken where it has some, and stay
    on disk.
    """
    if path is None:
        files = {"image": image, "text": text}
        given = {name: _read_npy(Path(file)) for name, file in files.items() if file is not None}
        if not given:
            raise InputError(f"no embeddings were named. Give a {LAYOUTS}, or --image and --text.")
        return given
    if image is not None or text is not None:
        raise InputError("give one file of pairs, or --image and --text, not both.")
    source = Path(path)
    if source.is_dir():
        own = [source / name for name in (("pairs", "embed") if training else ("embed",))]
        folder = next((path for path in own if path.is_dir()), source)
        if (folder / STAGE).exists():  # of a run, of which nothing may be missing
            require_whole(folder.parent, folder.name)
        if folder.name == "pairs":
            return dict(open_pairs(folder))
        ids, found = read_embeddings(folder)
        return {**found, "query_id": ids}
    readers = {".parquet": _read_parquet, ".safetensors": _read_safetensors, ".npy": _read_stack}
    if source.suffix not in readers:
        raise InputError(f"{source} has the suffix {source.suffix!r}; expected {LAYOUTS}.")
    if not source.is_file():
        raise ArtefactError(f"cannot read {source}: no such file.")
    found = readers[source.suffix](source)
    if not found:
        raise ArtefactError(f"{source} has neither image nor text; expected {LAYOUTS}.")
    return found


def saved_widths(folder: str | os.PathLike[str]) -> dict[str, int]:
    """The widths of a saved adapter by modality, without loading it; none where it is not local."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        return {}
    try:
        found = read_json(path, "Save the adapter again.")["content"]["fields"]["widths"]["map"]
        return {str(name): int(width) for name, width in found.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArtefactError(f"{path} is no adapter's: {error!r}. Save it again.") from error


def _read_npy(source: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a header as Python 2 wrote it
            # not np.load, which takes archives too
            return np.lib.format.read_array(io.BytesIO(read_regular(source)), allow_pickle=False)
    # the header is Python's, and may be of any size
    except (OSError, ValueError, TypeError, EOFError, TokenError, MemoryError) as error:
        raise ArtefactError(f"cannot read {source}: {error}.") from error


def _read_stack(source: Path) -> dict[str, Any]:
    stack = _read_npy(source)
    if stack.ndim != 3 or len(stack) != 2:
        raise InputError(
            f"{source} has shape {stack.shape}; expected [2, N, D], image then text. For one npy "
            f"file a modality use --image and --text."
        )
    return {"image": stack[0], "text": stack[1]}


def _read_safetensors(source: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(source)
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"cannot read {source}: {error}. Truncated or foreign?") from error
    return {name: arrays[name] for name in ("image", "text") if name in arrays}


def _read_parquet(source: Path) -> dict[str, Any]:
    parquet = extra("pyarrow.parquet", "reading Parquet", "frames")
    lib = extra("pyarrow", "reading Parquet", "frames")
    try:
        names = [n for n in ("image", "text") if n in parquet.read_schema(source).names]
        table = parquet.read_table(source, columns=names).combine_chunks()
    except (OSError, lib.ArrowException, ValueError) as error:
        raise ArtefactError(f"cannot read {source}: {error}.") from error
    return {name: _rows(table.column(name).combine_chunks(), name, source) for name in names}


def _rows(column: Any, name: str, source: Path) -> Any:
    """A list column as [N, D]; ragged or missing rows are named."""
    kinds = extra("pyarrow.types", "reading Parquet", "frames")
    listed = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    numbers = (kinds.is_floating, kinds.is_integer)
    if not any(of(column.type) for of in listed) or not any(
        of(column.type.value_type) for of in numbers
    ):
        raise InputError(f"{source}, column {name} is of {column.type}; expected lists of numbers.")
    widths = np.array([len(row) if row.is_valid else -1 for row in column])
    odd = np.flatnonzero(widths != (widths[0] if len(widths) else 0))
    if len(widths) == 0 or widths[0] < 1 or len(odd):
        row = int(odd[0]) if len(odd) else 0
        raise InputError(
            f"{source}, column {name}: row {row} has not the width of the first. Expected lists of "
            f"one length in every row."
        )
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.array(flat).reshape(len(widths), int(widths[0]))  # a copy: Arrow's is read-only
