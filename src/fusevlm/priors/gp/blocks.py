"""Embeddings of one modality in standardised units: in memory, or made block by block.

A table is a tensor [N, D], or :class:`Blocks` of the same shape whose rows are read and
standardised when they are asked for. What uses tables asks for chunks and for rows by number only,
so its memory does not depend on N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fusevlm.priors.gp.options import Options
from fusevlm.store.pairs import StoredRows

CHUNK = 4096  # pairs at a time: 4 MB of kernel at M = 250


@dataclass(frozen=True)
class Units:
    """Standardised = (embedding − shift)/scale: one scale per modality, so outputs stay comparable.

    The model sees an average output variance of 1; predictions are given in embedding units.
    """

    shift: Tensor  # [D], float64
    scale: Tensor  # [], float64


@dataclass(frozen=True)
class Blocks:
    """Some rows of a source, standardised on the way; without ``units`` as they are stored.

    The source is on disk, or a float16 tensor on the device: then no row passes through the CPU.
    """

    source: StoredRows | Tensor
    index: Tensor  # [N], int64, ascending; on the source's device
    dtype: torch.dtype
    device: torch.device
    units: Units | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), int(self.source.shape[1])

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, which: Tensor | slice) -> Tensor:
        """Rows by number, in the decoder's units."""
        wanted = self.index[which]
        if isinstance(self.source, Tensor):
            found = self.source[wanted]
        else:
            found = torch.as_tensor(self.source[wanted.numpy()]).to(self.device)
        found = found.to(self.dtype)
        if self.units is None:
            return found
        shift, scale = self.units.shift.to(self.dtype), self.units.scale.to(self.dtype)
        return found.sub_(shift).div_(scale)  # its own copy: in place

    def some(self, which: slice) -> Blocks:
        """The same of a part of the rows."""
        return replace(self, index=self.index[which])


Table = Tensor | Blocks


def chunks(table: Table, size: int = CHUNK) -> Iterator[Tensor]:
    """Consecutive rows, ``size`` at a time."""
    if isinstance(table, Tensor):
        yield from torch.split(table, size)
        return
    for start in range(0, len(table), size):
        yield table.rows(slice(start, start + size))


def rows_of(table: Table, which: Tensor | slice) -> Tensor:
    """Rows by number."""
    return table[which] if isinstance(table, Tensor) else table.rows(which)


def part_of(table: Table, which: slice) -> Table:
    """A table of its own with some of the rows."""
    return table[which].clone() if isinstance(table, Tensor) else table.some(which)


def standardise(Y: Tensor, u: Units, work: torch.dtype) -> Tensor:
    """Embeddings in the decoder's units."""
    return (Y.to(work) - u.shift.to(work)) / u.scale.to(work)


def stored_table(
    stored: StoredRows, index: np.ndarray[tuple[int], np.dtype[np.int64]], device: torch.device,
    work: torch.dtype,
) -> Blocks:  # fmt: skip
    """Stored rows as a table: left on disk for the CPU, held in half precision by any other."""
    if device.type == "cpu":
        return Blocks(stored, torch.as_tensor(index), work, device)
    half = torch.empty(*stored.shape, dtype=torch.float16, device=device)
    for start in range(0, len(stored), CHUNK):
        part = stored[start : start + CHUNK].astype(np.float16)  # as it is on disk
        half[start : start + len(part)] = torch.as_tensor(part).to(device)
    return Blocks(half, torch.as_tensor(index, device=device), work, device)


def work_type(options: Options) -> torch.dtype:
    """The type of data and kernels; "mixed" is float32 but for one product."""
    return torch.float64 if options.precision == "float64" else torch.float32
