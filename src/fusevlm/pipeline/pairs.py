"""Stage pairs: vectors of the adapter's training pairs, streamed from their files to parts.

Only where the adapter is trained. The sources are read twice: once to count and check them before
any model loads, once to embed. A pair's place in the parts follows from the files and the draw, so
an interrupted stage goes on where it stopped and ends with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.data.training import drawn_pairs, parse_source, source_files, survey
from fusevlm.models.registry import local_input
from fusevlm.pipeline.embed import PART, embedded, load_towers
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import new_adapter
from fusevlm.priors.gp.options import refuse_few
from fusevlm.settings import TRAIN, Config
from fusevlm.store.pairs import KIND, MODALITIES, write_pairs
from fusevlm.store.parts import Parts
from fusevlm.types import Query

BATCHES = 64  # of the towers in a part: 4,096 pairs, 13 MB at width 768


def inputs(config: Config) -> dict[str, Path]:
    """The official files or tables, and the towers' folder if it is one."""
    if config.adapter.source != TRAIN:
        return {}
    files = {
        f"data.train {number} {path.name}": path
        for number, text in enumerate(config.data.train)
        for path in source_files(parse_source(text))
    }
    return files | local_input("embed.towers", config.embed.towers, PART)


def make(work: Work) -> dict[str, int]:
    """Check and count the sources, then embed, or go on embedding."""
    data, batch = work.config.data, work.config.embed.batch
    found = survey(data.train, data.images, data.n_train, data.seed)
    refuse_few(found.n_pairs, new_adapter(work.config.adapter).options)
    parts = Parts(work.folder("pairs"), KIND)
    stream = drawn_pairs(data.train, data.images, data.seed, found)
    towers: Any = None
    work.progress(parts.total("queries"), found.n_pairs)
    size = parts.size or batch * BATCHES
    for index, some in _cut(stream, size):
        if index in parts:
            continue
        towers = towers or load_towers(work.config.embed)
        rows, arrays = _embedded(towers, some, batch)
        write_pairs(parts, index, rows, arrays, size)
        work.progress(parts.total("queries"), found.n_pairs)
    return {"pairs": parts.total("pairs"), "failed": parts.total("failed")}


def _cut(stream: Iterator[Query], size: int) -> Iterator[tuple[int, list[Query]]]:
    """Numbered runs of ``size`` pairs."""
    index = 0
    while some := list(islice(stream, size)):
        yield index, some
        index += 1


def _embedded(
    towers: Any, pairs: list[Query], batch: int
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Rows and vectors of a part, a batch of the towers at a time."""
    found = [embedded(towers, pairs[i : i + batch]) for i in range(0, len(pairs), batch)]
    rows = {name: [value for part, _ in found for value in part[name]] for name in found[0][0]}
    return rows, {name: np.concatenate([a[name] for _, a in found]) for name in MODALITIES}
