"""Image–caption pairs: COCO, Karpathy's JSON, and the files of Flickr8k and Flickr30k."""

from __future__ import annotations

import csv
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fusevlm import checks
from fusevlm.data.json_stream import must_exist, open_text, records
from fusevlm.data.problems import Problems, Reading
from fusevlm.errors import ArtefactError, InputError

AnyPath = str | os.PathLike[str]
LISTED = ("tokens", "table")  # formats whose splits are in files of their own
ALL = "all"  # the split of files that name none


class Caption(NamedTuple):
    """One caption of one image."""

    image: Path
    caption: str
    split: str


def read_captions(
    path: AnyPath,
    images: AnyPath,
    *,
    format: str,  # noqa: A002
    split: str | None = None,
    split_lists: Mapping[str, AnyPath] | None = None,
    limit: int | None = None,
    strict: bool = True,
) -> Reading[Caption]:
    """Captions one by one, those of ``split`` only if it is given.

    ``format`` is one of

    - ``coco``: captions_val2014.json and the like; the split is in the file's name
    - ``karpathy``: dataset_flickr30k.json, dataset_flickr8k.json, dataset_coco.json; the split is
      in the file, and COCO's ``restval`` is a split of its own
    - ``tokens``: Flickr8k.token.txt, results_20130124.token: ``image.jpg#0<tab>caption``
    - ``table``: captions.txt with the columns ``image,caption``

    ``split_lists`` names the files that list the images of each split, one per line, for the last
    two (Flickr_8k.trainImages.txt …); without it their split is "all". Files may be gzipped.
    """
    reader = FORMATS[checks.known(format, FORMATS, "the format")]
    if split_lists and format not in LISTED:
        raise InputError(f"{format} files name their splits themselves; leave split_lists out.")
    must_exist(path, *(split_lists or {}).values())
    if limit is not None:
        limit = checks.count(limit, "limit")
    problems = Problems(strict)
    found = reader(Path(path), _split_of(split_lists, split), problems)
    return Reading(_kept(found, Path(images), split, limit, problems), problems)


# (where, image's name, caption, split) of each caption, nothing checked
_Raw = tuple[str, Any, Any, str]
_SplitOf = Callable[[str], str | None]


def _kept(
    found: Iterator[_Raw], images: Path, split: str | None, limit: int | None, problems: Problems
) -> Iterator[Caption]:
    n = 0
    try:
        for where, name, caption, own in found:
            if split is not None and own != split:
                continue
            if not isinstance(name, str) or not isinstance(caption, str) or not caption.strip():
                problems.found(
                    "unreadable caption",
                    f"{where}: image {name!r} has the caption {caption!r}; expected two texts.",
                )
                continue
            if name.startswith("/") or ".." in name.split("/"):
                problems.found("image elsewhere", f"{where}: {name!r} is not in {images}.")
                continue
            if not os.path.isfile(images / name):
                problems.found(
                    "missing image", f"{where}: {images / name} does not exist. Unpack the images."
                )
                continue
            yield Caption(images / name, caption.strip(), own)
            n += 1
            if n == limit:
                return
    except ArtefactError as error:
        problems.found("damaged file", error)


def _split_of(lists: Mapping[str, AnyPath] | None, asked: str | None) -> _SplitOf:
    """A function from an image's name to its split; None for an image in no list.

    Where one split is asked for, an image in no list is simply not of it (Flickr8k has 91).
    """
    if not lists:
        return lambda name: ALL
    where: dict[str, str] = {}
    for split, path in lists.items():
        for number, line in _lines(Path(path)):
            name = line.strip()
            if where.setdefault(name, split) != split:
                raise InputError(
                    f"{path}, line {number}: {name} is in the list of {where[name]!r} too."
                )
    return where.get if asked is None else lambda name: where.get(name, "")


def _coco(path: Path, split_of: _SplitOf, problems: Problems) -> Iterator[_Raw]:
    in_name = re.search(r"_(train|val|test)\d", path.name)
    split = in_name.group(1) if in_name else ALL
    names: dict[Any, Any] = {}
    for number, row in _objects(path, "images", problems):
        if not isinstance(row.get("id"), int | str):
            where = f"{path}, record {number} of 'images'"
            problems.found("unreadable record", f"{where}: its id is {row.get('id')!r}.")
            continue
        names[row["id"]] = row.get("file_name")
    for number, row in _objects(path, "annotations", problems):
        where, key = f"{path}, record {number} of 'annotations'", row.get("image_id")
        if not isinstance(key, int | str) or key not in names:
            problems.found(
                "caption without image",
                f"{where}: image_id {key!r} is not among the file's images.",
            )
            continue
        yield where, names[key], row.get("caption"), split


def _karpathy(path: Path, split_of: _SplitOf, problems: Problems) -> Iterator[_Raw]:
    for number, row in _objects(path, "images", problems):
        folder, name = row.get("filepath"), row.get("filename")
        image = f"{folder}/{name}" if folder else name
        where, sentences = f"{path}, record {number} of 'images'", row.get("sentences", [])
        if not isinstance(sentences, list):
            problems.found("unreadable record", f"{where}: its sentences are {sentences!r}.")
            continue
        for sentence in sentences:
            caption = sentence.get("raw") if isinstance(sentence, dict) else None
            yield where, image, caption, str(row.get("split", ALL))


def _objects(path: Path, key: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in records(path, key):
        if isinstance(row, dict):
            yield number, row
        else:
            problems.found(
                "unreadable record", f"{path}, record {number} of {key!r}: expected an object."
            )


def _tokens(path: Path, split_of: _SplitOf, problems: Problems) -> Iterator[_Raw]:
    for number, line in _lines(path):
        name, tab, caption = line.rstrip("\r\n").partition("\t")
        if not tab:
            problems.found(
                "unreadable caption", f"{path}, line {number}: expected image.jpg#0<tab>caption."
            )
            continue
        name = name.rpartition("#")[0] or name
        yield from _listed(f"{path}, line {number}", name, caption, split_of, problems)


def _table(path: Path, split_of: _SplitOf, problems: Problems) -> Iterator[_Raw]:
    rows = csv.DictReader(line for _, line in _lines(path))
    if not {"image", "caption"} <= set(rows.fieldnames or ()):
        raise ArtefactError(
            f"{path} has the columns {', '.join(rows.fieldnames or ())}; expected image,caption."
        )
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        yield from _listed(where, row["image"], row["caption"], split_of, problems)


def _listed(
    where: str, name: str, caption: str, split_of: _SplitOf, problems: Problems
) -> Iterator[_Raw]:
    split = split_of(name)
    if split is None:
        problems.found("image in no split", f"{where}: {name} is in none of the split lists.")
    else:
        yield where, name, caption, split


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with open_text(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: damaged after line {number} ({error}).") from error


FORMATS: dict[str, Callable[[Path, _SplitOf, Problems], Iterator[_Raw]]] = {
    "coco": _coco,
    "karpathy": _karpathy,
    "tokens": _tokens,
    "table": _table,
}
