"""Pairs to train the prior on: official caption and question files, and tables of queries.

A source is ``KIND:FOLDER`` or ``KIND/SPLIT:FOLDER`` of official files, or the path of a table. The
text of a pair is the caption, or the question without its answer (METHOD, row 26).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fusevlm import checks
from fusevlm.data.captions import ALL, Caption, read_captions
from fusevlm.data.catalogue import packed_or_not
from fusevlm.data.images import absent
from fusevlm.data.problems import Problems, Reading
from fusevlm.data.tables import read_queries
from fusevlm.data.vqa import SPLITS, official_split, read_vqa
from fusevlm.errors import FuseError, InputError
from fusevlm.types import Query

TABLE = "table"
NAMED = re.compile(r"([A-Za-z][\w-]+)(?:/([\w-]+))?:(.+)", re.DOTALL)


@dataclass(frozen=True)
class Captions:
    """The official files of a set of captions, the first that is there; ``{split}`` is filled in.

    ``folders`` may hold the images, under the source's own folder or under data.images.
    """

    files: tuple[tuple[str, str], ...]  # format of read_captions, name
    splits: tuple[str, ...]  # the first is the one that is meant where none is named
    folders: tuple[str, ...]
    lists: Mapping[str, str] = field(default_factory=dict)  # split: file that lists its images
    above: bool = False  # images are named with their folder


def _coco(year: int) -> Captions:
    name = f"captions_{{split}}{year}.json"
    return Captions(
        (("coco", f"annotations/{name}"), ("coco", name)), ("train", "val"), (f"{{split}}{year}",)
    )


FLICKR30K_IMAGES = ("flickr30k-images", "flickr30k_images", "Images", "images")
FLICKR8K_IMAGES = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")  # the first is it
KARPATHY = ("train", "val", "test")
CAPTIONS: dict[str, Captions] = {
    "coco": _coco(2014),
    "coco2017": _coco(2017),
    "coco-karpathy": Captions(
        (("karpathy", "dataset_coco.json"),), (*KARPATHY, "restval"), ("train2014", "val2014"),
        above=True,
    ),
    "flickr30k": Captions(
        (("tokens", "results_20130124.token"), ("table", "captions.txt")), (ALL,),
        FLICKR30K_IMAGES,
    ),
    "flickr30k-karpathy": Captions(
        (("karpathy", "dataset_flickr30k.json"),), KARPATHY, FLICKR30K_IMAGES
    ),
    "flickr8k": Captions(
        (("tokens", "Flickr8k.token.txt"),), ("train", "dev", "test"), FLICKR8K_IMAGES,
        {name: f"Flickr_8k.{name}Images.txt" for name in ("train", "dev", "test")},
    ),
    "flickr8k-karpathy": Captions(
        (("karpathy", "dataset_flickr8k.json"),), KARPATHY, FLICKR8K_IMAGES
    ),
}  # fmt: skip
QUESTIONS = ("vqav2", "okvqa")  # kinds with a train split of questions


@dataclass(frozen=True)
class Source:
    """Where pairs come from: a kind with a split and a folder, or a table and its path."""

    kind: str
    split: str
    folder: Path


def parse_source(text: str) -> Source:
    """``coco:FOLDER``, ``vqav2/val:FOLDER`` or the path of a table; an unknown name is refused."""
    named = NAMED.fullmatch(text)
    if named is None or os.path.exists(text):
        return Source(TABLE, "", Path(text))
    kind = checks.known(named[1], [*CAPTIONS, *QUESTIONS], f"data.train {text!r}: the kind")
    splits = CAPTIONS[kind].splits if kind in CAPTIONS else tuple(SPLITS[kind])
    split = named[2] or splits[0]
    checks.known(split, splits, f"data.train {text!r}: the split of {kind}")
    return Source(kind, split, Path(named[3]))


def source_files(source: Source) -> list[Path]:
    """The files a source is read from, or an error that names the missing one."""
    if source.kind == TABLE:
        if not os.path.isfile(source.folder):
            raise InputError(f"data.train names {source.folder}, which is no file.")
        return [source.folder]
    if source.kind in QUESTIONS:
        return [packed_or_not(source.folder, official_split(source.kind, source.split).questions)]
    known = CAPTIONS[source.kind]
    lists = [source.folder / name for name in known.lists.values()]
    for path in lists:
        if not path.is_file():
            raise InputError(f"data.train: {source.kind} needs {path}, which lists a split.")
    return [_captions_file(source)[1], *lists]


def _captions_file(source: Source) -> tuple[str, Path]:
    """Format and path of the first file that is there."""
    names = [(f, n.format(split=source.split)) for f, n in CAPTIONS[source.kind].files]
    for kind, name in names:
        for path in (source.folder / name, source.folder / f"{name}.gz"):
            if os.path.isfile(path):
                return kind, path
    listed = " nor ".join(name for _, name in names)
    raise InputError(
        f"data.train: {source.folder} holds {'neither' if len(names) > 1 else 'no'} {listed} of "
        f"{source.kind}. Unpack the dataset there."
    )


def _images(source: Source, images: str) -> Path:
    """The folder of the images: the source's own first, then under data.images."""
    if source.kind in QUESTIONS:
        folders: tuple[str, ...] = official_split(source.kind, source.split).folders
        above = True
    else:
        known = CAPTIONS[source.kind]
        folders = tuple(name.format(split=source.split) for name in known.folders)
        above = known.above
    for root in [source.folder, *([Path(images)] if images else [])]:
        for name in folders:
            if (root / name).is_dir():
                return root if above else root / name
    return source.folder


def read_source(source: Source, images: str = "", *, strict: bool = True) -> Reading[Query]:
    """The pairs of a source as queries, one by one; ``problems`` counts what is wrong with it."""
    if source.kind == TABLE:
        problems = Problems(strict=False)
        return Reading(_table(source, images, problems), problems)
    name, root = f"{source.kind}/{source.split}", _images(source, images)
    if source.kind in QUESTIONS:
        asked = read_vqa(
            source_files(source)[0], None, root, name=source.kind, split=source.split,
            strict=strict,
        )  # fmt: skip
        return Reading((Query(f"{name}/{q.id}", q.question, q.images) for q in asked.records),
                       asked.problems)  # fmt: skip
    kind, path = _captions_file(source)
    lists = {k: source.folder / v for k, v in CAPTIONS[source.kind].lists.items()}
    split = None if source.split == ALL else source.split
    found = read_captions(
        path, root, format=kind, split=split, split_lists=lists or None, strict=strict
    )
    return Reading(_captioned(found.records, name), found.problems)


def _captioned(captions: Iterator[Caption], name: str) -> Iterator[Query]:
    for number, one in enumerate(captions):
        yield Query(f"{name}/{number}", one.caption, (one.image,))


def _table(source: Source, images: str, problems: Problems) -> Iterator[Query]:
    """A table's queries; a picture that is not there is counted, and fails when it is embedded."""
    for query in read_queries(source.folder, images or None):
        gone = [why for why in map(absent, query.images) if why]
        if gone:
            problems.found("missing image", f"{source.folder}: {gone[0]}")
        yield query


@dataclass(frozen=True)
class Survey:
    """What a look at all sources found."""

    n_pairs: int
    limit: int | None  # pairs with a larger key are not drawn; None for all of them


def survey(texts: Sequence[str], images: str, n: int, seed: int) -> Survey:
    """Count the pairs and settle the draw of ``n`` of them (0: all); the first fault is raised.

    Each pair has a key that depends on the seed, its source and its id alone; those with the
    smallest keys are drawn. Memory is 8 bytes a pair.
    """
    keys = np.fromiter((key for _, key in _all_pairs(texts, images, seed)), dtype=np.uint64)
    if n > len(keys):
        raise InputError(
            f"data.n_train asks for {n} pairs; data.train holds {len(keys)}. Ask for fewer."
        )
    if len(keys) == 0:
        raise InputError(f"data.train holds no pair: {', '.join(texts)}.")
    if n in (0, len(keys)):
        return Survey(len(keys), None)
    return Survey(n, int(np.partition(keys, n - 1)[n - 1]))


def drawn_pairs(texts: Sequence[str], images: str, seed: int, found: Survey) -> Iterator[Query]:
    """The pairs that a survey settled on, in the order of the sources, one at a time."""
    kept = (
        pair
        for pair, key in _all_pairs(texts, images, seed)
        if found.limit is None or key <= found.limit
    )
    return itertools.islice(kept, found.n_pairs)


def _all_pairs(texts: Sequence[str], images: str, seed: int) -> Iterator[tuple[Query, int]]:
    """Every pair with its key."""
    for number, text in enumerate(texts):
        for pair in read_source(parse_source(text), images):
            name = f"{seed}/{number}/{pair.id}"
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            yield pair, int.from_bytes(digest, "little")


def faults(texts: Sequence[str], images: str, n: int) -> tuple[int, list[str]]:
    """How many pairs there would be, and everything that is wrong with the sources."""
    total, found = 0, []
    for text in texts:
        try:
            source = parse_source(text)
            source_files(source)
            reading = read_source(source, images, strict=False)
            total += sum(1 for _ in reading)
        except FuseError as error:
            found.append(str(error))
            continue
        for kind, count in reading.problems.counts.items():
            first = next(iter(reading.problems.first), "")
            found.append(f"data.train {text!r}: {count} × {kind}, such as {first}")
    if not found and n > total:
        found.append(f"data.n_train asks for {n} pairs; data.train holds {total}. Ask for fewer.")
    return min(n or total, total), found
