"""Stage data: the queries of each split as one table; pictures that exist nowhere else as PNG."""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, overload

from fusevlm.checks import whole_text
from fusevlm.data.images import Refused, load_image, located
from fusevlm.data.tables import QueryTable
from fusevlm.data.units import unit_of
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.run import Work
from fusevlm.settings import OFFICIAL, Config, DataConfig
from fusevlm.store import save
from fusevlm.store.runs import read_run, require
from fusevlm.store.tables import GROUP, StoredTable, TableWriter
from fusevlm.types import Query

logger = logging.getLogger(__name__)

QUERIES, IMAGES = "queries.parquet", "images"
CALIBRATION, TEST = "calibration", "test"
JUDGED = (CALIBRATION, TEST)  # the splits that are sampled and scored
SPARE = 64  # queries drawn beyond the wanted, for those an image on the border costs


def inputs(config: Config) -> dict[str, Path]:
    """The tables of queries."""
    if config.data.source == EMBEDDED:
        return {}
    if config.data.source in OFFICIAL:
        from fusevlm.data.catalogue import official_files

        return official_files(config.data.source, config.data.folder, config.data.split)
    found = {f"data.{name}": Path(path) for name, path in _files(config.data).items()}
    for name, path in found.items():
        if not path.is_file():
            raise InputError(f"{name} is {path}, which is no file.")
    return found


def make(work: Work) -> dict[str, int]:
    """Write the queries, some at a time."""
    splits = load_splits(work.config.data)
    for queries in splits.values():
        if isinstance(queries, QueryTable):
            queries.refuse_twice()
    unit, roots = work.config.data.unit, image_roots(work.config.data)
    total = sum(len(queries) for queries in splits.values())
    overlap, done = Overlap(), 0
    with TableWriter(work.folder("data") / QUERIES, _COLUMNS) as writer:
        for split, queries in splits.items():
            for start, some in _cut(queries, GROUP):
                rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
                for number, query in enumerate(some, start):
                    images, own = _keep_images(
                        work.folder("data"), roots[split], split, number, query
                    )
                    name = unit_of(query, unit, split, queries)
                    overlap.see(split, query, name)
                    for column, value in _row(split, query, images, own, name).items():
                        rows[column].append(value)
                    done += 1
                    work.progress(done, total)
                writer.write(rows)
        overlap.refuse()
    return {split: len(queries) for split, queries in splits.items()}


def _cut(queries: Iterable[Query], size: int) -> Iterator[tuple[int, list[Query]]]:
    """Some queries at a time, with the number of the first."""
    start, rest = 0, iter(queries)
    while some := list(islice(rest, size)):
        yield start, some
        start += len(some)


def load_splits(data: DataConfig) -> dict[str, Sequence[Query]]:
    """The queries of each split, cut to the wanted numbers; those of tables are not kept."""
    limits = {"calibration": data.n_calibration or None, "test": data.n_test or None}
    if data.source == EMBEDDED:
        from fusevlm.data.questions import queries

        named = {CALIBRATION: CALIBRATION, TEST: data.test or TEST}
        return {split: queries(name, limit=limits[split]) for split, name in named.items()}
    if data.source in OFFICIAL:
        return draw_official(data)
    return {
        split: QueryTable(path, data.images or None, limit=limits[split], outside=data.outside)
        for split, path in _files(data).items()
    }


def image_roots(data: DataConfig) -> dict[str, Path]:
    """The folder in which the pictures of each split are named."""
    if data.images or data.source != "files":
        return dict.fromkeys(JUDGED, Path(data.images or data.folder or "."))
    return {split: Path(path).parent for split, path in _files(data).items()}


def refuse_overlap(splits: Mapping[str, Iterable[Query]]) -> None:
    """No query may be in calibration and test."""
    overlap = Overlap()
    for split in JUDGED:
        for query in splits.get(split, ()):
            overlap.see(split, query)
    overlap.refuse()


class Overlap:
    """What calibration and test share; of the test queries nothing else is kept in memory."""

    def __init__(self) -> None:
        self.known: set[tuple[str, ...]] = set()
        self.units: set[str | None] = set()
        self.shared: set[str] = set()
        self.n_test, self.n_both, self.first = 0, 0, ""

    def see(self, split: str, query: Query, unit: str | None = None) -> None:
        """Look at a query, and at its unit where it is known; calibration comes first."""
        key = (query.question, *map(str, query.history), *map(_picture, query.images))
        if split == CALIBRATION:
            self.known.add(key)
            self.units |= {unit} - {None}
        elif split == TEST:
            self.n_test += 1
            if key in self.known:
                self.first = self.first or query.id
                self.n_both += 1
            if unit is not None and unit in self.units:
                self.shared.add(unit)

    def refuse(self) -> None:
        """Refuse a query in both; say that a unit is."""
        if self.n_both:
            raise InputError(
                f"{self.n_both} of {self.n_test} test queries are calibration queries too (first "
                f"{self.first!r}): figures on them would flatter and the guarantee would be void. "
                f"Give tables that share no query."
            )
        if self.shared:
            logger.warning(
                "%d units (such as %s) are in calibration and in test: the two are not "
                "independent, and figures may flatter.",
                len(self.shared),
                min(self.shared),
            )


def _picture(image: Any) -> str:
    if isinstance(image, Refused):
        return image.name
    if isinstance(image, str | Path):
        return str(Path(image).resolve())
    return hashlib.sha256(image if isinstance(image, bytes) else image.tobytes()).hexdigest()


def draw_official(data: DataConfig) -> dict[str, Sequence[Query]]:
    """Calibration and test queries drawn from an official dataset, no image in both.

    Images come in an order that depends on the seed and their id only. The dataset is streamed and
    little more queries are held than are wanted. Calibration has the first; an image on the border
    is calibration's, its remaining queries belong to neither, and test goes on with the next image.
    """
    from fusevlm.data.catalogue import open_dataset

    settings = {"kind": data.source, "folder": data.folder, "split": data.split}
    if data.images:
        settings["images"] = data.images
    wanted = data.n_calibration + data.n_test

    def place(query: Query) -> tuple[bytes, str]:
        image = f"{data.seed}/{query.metadata['image_id']}"
        return hashlib.sha256(image.encode()).digest(), query.id

    spare = SPARE
    while True:
        drawn = heapq.nsmallest(wanted + spare, open_dataset(settings), key=place)
        if len(drawn) < wanted:
            raise InputError(
                f"{data.folder} has {len(drawn)} queries in the split {data.split}; n_calibration "
                f"and n_test ask for {wanted}. Ask for fewer."
            )
        first, rest = drawn[: data.n_calibration], drawn[data.n_calibration :]
        border = first[-1].metadata["image_id"]
        rest = [query for query in rest if query.metadata["image_id"] != border]
        if len(rest) >= data.n_test or len(drawn) < wanted + spare:  # enough, or all there are
            return {CALIBRATION: first, TEST: rest[: data.n_test]}
        spare *= 4


def _files(data: DataConfig) -> dict[str, str]:
    named = {"calibration": data.calibration, "test": data.test}
    return {split: path for split, path in named.items() if path}


# column: its type
_COLUMNS = {
    "query_id": "string", "split": "string", "unit": "string", "question": "string",
    "images": "list string", "own_images": "bool", "history": "string",
    "references": "list string", "metadata": "string",
}  # fmt: skip
# what their cells are, but of own_images, which runs of before lack
STORED: dict[str, Any] = {
    "query_id": str, "split": str, "unit": str, "question": str, "images": list[str],
    "history": str, "references": list[str], "metadata": str,
}  # fmt: skip
REDO = "Make it again: --redo data."


def _row(split: str, query: Query, images: Sequence[str], own: bool, unit: str) -> dict[str, Any]:
    return {
        "query_id": f"{split}/{query.id}",
        "split": split,
        "unit": unit,
        "question": query.question,
        "images": list(images),
        "own_images": own,
        "history": json.dumps([list(turn) for turn in query.history]),
        "references": list(query.references),
        "metadata": json.dumps(dict(query.metadata), default=str),
    }


def _keep_images(
    folder: Path, root: Path, split: str, number: int, query: Query
) -> tuple[list[str], bool]:
    """Names in the folder of images; pictures in memory become files of the run (own)."""
    if all(isinstance(image, str | Path | Refused) for image in query.images):
        return [_named(image, root) for image in query.images], False
    kept = []
    for k, image in enumerate(query.images):
        kept.append(f"{IMAGES}/{split}-{number:05d}-{k}.png")
        buffer = io.BytesIO()
        load_image(image).save(buffer, format="PNG")
        save(folder / kept[-1], buffer.getvalue())
    return kept, True


def _named(image: Any, root: Path) -> str:
    """A picture's name in its folder, so that both can be moved; its path where it is elsewhere."""
    if isinstance(image, Refused):
        return image.name
    path, home = Path(image), root.resolve()
    whole = path if path.is_absolute() else Path.cwd() / path
    for base in (home, root.absolute()):
        if whole.is_relative_to(base):
            return whole.relative_to(base).as_posix()
    return whole_text(str(whole))


def read_asked(run: Path, splits: Sequence[str] = JUDGED) -> Asked:
    """The stored queries of some splits, in order; ``metadata`` holds their split and unit too."""
    return Asked(run, splits)


class Asked(Sequence[Query]):
    """Stored queries, read from their table when they are looked at: few are in memory."""

    def __init__(self, run: Path, splits: Sequence[str] = JUDGED) -> None:
        self._folder = require(run, "data")
        data = read_run(run).data
        self._roots = image_roots(data)
        self._anywhere = data.outside or data.source != "files"
        self._table = StoredTable(self._folder / QUERIES, REDO, columns=STORED)
        counts = self._counted()
        self.n_calibration = counts.get(CALIBRATION, 0)
        starts = dict(zip(counts, accumulate([0, *counts.values()]), strict=False))
        wanted = [name for name in counts if name in splits]
        self._start = starts[wanted[0]] if wanted else 0
        self._size = sum(counts[name] for name in wanted)

    def _counted(self) -> dict[str, int]:
        """How many queries each split has; each stands in one piece, calibration first."""
        found: dict[str, int] = {}
        last = None
        for block in self._table.blocks(GROUP, ["split"]):
            for split, own in groupby(block["split"]):
                if split != last and split in found:
                    raise ArtefactError(
                        f"{self._table.path} holds the split {split} in two pieces. {REDO}"
                    )
                last = split
                found[split] = found.get(split, 0) + len(list(own))
        return found

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Query: ...

    @overload
    def __getitem__(self, index: slice) -> list[Query]: ...

    def __getitem__(self, index: int | slice) -> Query | list[Query]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._read(start, max(start, stop))[::step]
        place = range(len(self))[index]
        return self._read(place, place + 1)[0]

    def __iter__(self) -> Iterator[Query]:
        for start in range(0, len(self), GROUP):
            yield from self._read(start, min(len(self), start + GROUP))

    def _read(self, start: int, stop: int) -> list[Query]:
        table = self._table.rows(self._start + start, self._start + stop)
        size = len(table["split"])
        own = table.get("own_images", [True] * size)  # before: all as seen from here
        found = []
        for i, split in enumerate(table["split"]):
            root = self._folder if own[i] else self._roots.get(split, self._folder)
            outside = self._anywhere or (own[i] and "own_images" not in table)
            images = [located(root, name, outside=outside) for name in table["images"][i]]
            try:
                found.append(_stored({n: values[i] for n, values in table.items()}, images))
            except (ValueError, TypeError, RecursionError) as error:  # of JSON, of a query
                where = f"{self._table.path}, row {self._start + start + i + 1}"
                raise ArtefactError(f"{where} is damaged: {error}. {REDO}") from error
        return found

    def column(self, name: str, start: int, stop: int) -> list[Any]:
        """One column of the table as it is stored, without the rest."""
        return self._table.rows(self._start + start, self._start + stop, [name])[name]


def _stored(row: Mapping[str, Any], images: Sequence[Any]) -> Query:
    """The query of a stored row."""
    return Query(
        id=row["query_id"],
        question=row["question"],
        images=images,
        history=[(role, text) for role, text in json.loads(row["history"])],
        references=row["references"],
        metadata={**json.loads(row["metadata"]), "split": row["split"], "unit": row["unit"]},
    )
