"""Training pairs as parts in half precision, read block by block: memory does not grow with N."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fusevlm.errors import ArtefactError
from fusevlm.store.files import AnyPath
from fusevlm.store.parts import Parts, part_files

KIND, MODALITIES = "fusevlm.pairs", ("image", "text")
HALF = np.dtype("<f2")
Rows = npt.NDArray[np.float32]


def write_pairs(
    parts: Parts,
    index: int,
    rows: Mapping[str, Sequence[Any]],
    arrays: Mapping[str, Any],
    size: int | None = None,
) -> None:
    """One part: a row per pair (failed ones too), and float16 vectors of those without an error.

    ``size`` is that in which parts are cut.
    """
    good = np.array([error is None for error in rows["error"]], dtype=bool)
    kept = {name: np.asarray(arrays[name])[good].astype(HALF) for name in MODALITIES}
    facts = {"queries": len(good), "failed": int((~good).sum()), "pairs": int(good.sum())}
    facts |= {} if size is None else {"size": size}
    parts.write(index, rows, kept, facts)


@dataclass(frozen=True)
class _Block:
    """Where the rows of one part lie."""

    path: Path
    offset: int  # bytes
    size: int  # rows


class StoredRows:
    """One modality [N, D] of stored pairs; a slice or row numbers are read from disk as float32.

    Nothing is kept in memory but where the parts lie: reading is the file system's business, and
    its cache. The parts' checksums are compared once, when it is opened.
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, folder: AnyPath, name: str) -> None:
        self.name, self._blocks = name, []
        widths, total = set(), hashlib.sha256()
        for path, digest in part_files(folder, KIND, "safetensors"):
            offset, shape = _header(path, name)
            self._blocks.append(_Block(path, offset, shape[0]))
            widths.add(shape[1])
            _refuse_gaps(path, offset, shape)
            total.update(digest.encode())
        ends = np.cumsum([block.size for block in self._blocks], dtype=np.int64)
        if not len(ends) or ends[-1] == 0:
            raise ArtefactError(f"{folder} holds no embedded pair. Make it again: --redo pairs.")
        if len(widths) > 1:
            raise ArtefactError(
                f"{folder} holds {name} vectors of widths {sorted(widths)}. Make it again: "
                f"--redo pairs."
            )
        self._ends = ends
        self.shape = (int(ends[-1]), int(widths.pop()))
        self.fingerprint = total.hexdigest()  # of the contents

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | npt.NDArray[np.integer[Any]]) -> Rows:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("stored rows are read in their order, without gaps.")
            return self._span(start, max(start, stop))
        index = np.asarray(rows, dtype=np.int64)
        if len(index) == 0:
            return np.empty((0, self.shape[1]), np.float32)
        low, high = int(index.min()), int(index.max()) + 1
        if low < 0 or high > len(self):
            raise IndexError(f"rows {low} to {high - 1} of {len(self)}.")
        if high - low <= 2 * len(index):  # nearly all of a span: one read
            return self._span(low, high)[index - low]
        return np.concatenate([self._span(int(i), int(i) + 1) for i in index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        whole = self._span(0, len(self))
        return whole if dtype is None else whole.astype(dtype)

    def _span(self, start: int, stop: int) -> Rows:
        found = np.empty((stop - start, self.shape[1]), np.float32)
        at, number = start, int(np.searchsorted(self._ends, start, side="right"))
        while at < stop:
            block, end = self._blocks[number], int(self._ends[number])
            until = min(stop, end)
            first = at - (end - block.size)
            found[at - start : until - start] = self._read(block, first, until - at)
            at, number = until, number + 1
        return found

    def _read(self, block: _Block, first: int, size: int) -> npt.NDArray[np.float16]:
        width = self.shape[1]
        try:
            with block.path.open("rb") as stream:
                stream.seek(block.offset + first * width * HALF.itemsize)
                flat = np.fromfile(stream, HALF, size * width)
        except OSError as error:
            raise ArtefactError(f"cannot read {block.path}: {error}. --redo pairs.") from error
        if len(flat) != size * width:
            raise ArtefactError(f"{block.path} was cut short. Make it again: --redo pairs.")
        return flat.reshape(size, width)


def _refuse_gaps(path: Path, offset: int, shape: tuple[int, int]) -> None:
    """Refuse vectors that are no numbers, a million entries at a time."""
    left = shape[0] * shape[1]
    if offset + left * HALF.itemsize > path.stat().st_size:
        raise ArtefactError(f"{path} was cut short. Make it again: --redo pairs.")
    with path.open("rb") as stream:
        stream.seek(offset)
        while left > 0:
            flat = np.fromfile(stream, HALF, min(left, 1 << 20))
            if not len(flat):
                raise ArtefactError(f"{path} was cut short. Make it again: --redo pairs.")
            if not np.isfinite(flat).all():
                raise ArtefactError(f"{path} holds NaN or infinity. Make it again: --redo pairs.")
            left -= len(flat)


def open_pairs(folder: AnyPath) -> dict[str, StoredRows]:
    """The stored pairs of a folder by modality."""
    return {name: StoredRows(folder, name) for name in MODALITIES}


def _header(path: Path, name: str) -> tuple[int, tuple[int, int]]:
    """Byte offset and shape of an array in a safetensors file (length, JSON header, data)."""
    try:
        whole = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > whole:
                raise ValueError("its header is longer than it is")
            entry = json.loads(stream.read(length))[name]
        if entry["dtype"] != "F16":
            raise ValueError(f"{name} is {entry['dtype']}, expected F16")
        rows, width = map(int, entry["shape"])
        start, end = map(int, entry["data_offsets"])
        if min(rows, width, start) < 0 or end - start != rows * width * HALF.itemsize:
            raise ValueError(f"{name} is not where its header says")
        return 8 + length + start, (rows, width)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}. --redo pairs.") from error
