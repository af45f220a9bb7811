"""Stage data: the queries of each split as one table; pictures that exist nowhere else as PNG."""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm.checks import whole_text
from fusevlm.data.images import Refused, load_image, located
from fusevlm.data.units import units_of
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.run import Work
from fusevlm.settings import OFFICIAL, Config, DataConfig
from fusevlm.store import read_parquet, save, save_parquet
from fusevlm.store.runs import read_run, require
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
    """Write the queries."""
    splits = load_splits(work.config.data)
    unit = work.config.data.unit
    units = {split: units_of(queries, unit, split) for split, queries in splits.items()}
    refuse_overlap(splits, units)
    total = sum(len(queries) for queries in splits.values())
    roots = image_roots(work.config.data)
    rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for split, queries in splits.items():
        for number, query in enumerate(queries):
            images, own = _keep_images(work.folder("data"), roots[split], split, number, query)
            for name, value in _row(split, query, images, own, units[split][number]).items():
                rows[name].append(value)
            work.progress(len(rows["query_id"]), total)
    save_parquet(work.folder("data") / QUERIES, rows)
    return {split: len(queries) for split, queries in splits.items()}


def load_splits(data: DataConfig) -> dict[str, list[Query]]:
    """The queries of each split, cut to the wanted numbers."""
    limits = {"calibration": data.n_calibration or None, "test": data.n_test or None}
    if data.source == EMBEDDED:
        from fusevlm.data.questions import queries

        named = {CALIBRATION: CALIBRATION, TEST: data.test or TEST}
        return {split: queries(name, limit=limits[split]) for split, name in named.items()}
    if data.source in OFFICIAL:
        return draw_official(data)
    from fusevlm.data.tables import read_queries

    return {
        split: read_queries(path, data.images or None, limit=limits[split], outside=data.outside)
        for split, path in _files(data).items()
    }


def image_roots(data: DataConfig) -> dict[str, Path]:
    """The folder in which the pictures of each split are named."""
    if data.images or data.source != "files":
        return dict.fromkeys(JUDGED, Path(data.images or data.folder or "."))
    return {split: Path(path).parent for split, path in _files(data).items()}


def refuse_overlap(
    splits: Mapping[str, Sequence[Query]], units: Mapping[str, Sequence[str]]
) -> None:
    """No query may be in calibration and test; a unit in both is said."""
    if not set(JUDGED) <= set(splits):
        return

    def key(query: Query) -> tuple[str, ...]:
        return (query.question, *map(str, query.history), *map(_picture, query.images))

    known = {key(query) for query in splits[CALIBRATION]}
    both = [query.id for query in splits[TEST] if key(query) in known]
    if both:
        raise InputError(
            f"{len(both)} of {len(splits[TEST])} test queries are calibration queries too (first "
            f"{both[0]!r}): figures on them would flatter and the guarantee would be void. Give "
            f"tables that share no query."
        )
    shared = set(units[CALIBRATION]) & set(units[TEST])
    if shared:
        logger.warning(
            "%d units (such as %s) are in calibration and in test: the two are not independent, "
            "and figures may flatter.",
            len(shared),
            min(shared),
        )


def _picture(image: Any) -> str:
    if isinstance(image, Refused):
        return image.name
    if isinstance(image, str | Path):
        return str(Path(image).resolve())
    return hashlib.sha256(image if isinstance(image, bytes) else image.tobytes()).hexdigest()


def draw_official(data: DataConfig) -> dict[str, list[Query]]:
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


_COLUMNS = (
    "query_id", "split", "unit", "question", "images", "own_images", "history", "references",
    "metadata",
)  # fmt: skip
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


def read_asked(run: Path, splits: Sequence[str] = JUDGED) -> list[Query]:
    """The stored queries of some splits, in order; ``metadata`` holds their split and unit too."""
    folder = require(run, "data")
    data = read_run(run).data
    roots, anywhere = image_roots(data), data.outside or data.source != "files"
    table = read_parquet(folder / QUERIES, REDO, columns=STORED)
    own = table.get("own_images", [True] * len(table["split"]))  # before: all as seen from here
    found = []
    for i, split in enumerate(table["split"]):
        if split in splits:
            root = folder if own[i] else roots.get(split, folder)
            outside = anywhere or (own[i] and "own_images" not in table)
            images = [located(root, name, outside=outside) for name in table["images"][i]]
            row = {name: values[i] for name, values in table.items()}
            try:
                found.append(_stored(row, images))
            except (ValueError, TypeError, RecursionError) as error:  # of JSON, of a query
                where = folder / QUERIES
                raise ArtefactError(f"{where}, row {i + 1} is damaged: {error}. {REDO}") from error
    return found


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
