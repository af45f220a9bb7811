"""VQAv2, OK-VQA and AdVQA in their official files: questions joined with ten answers each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.data.json_stream import must_exist, records
from fusevlm.data.problems import Problems, Reading
from fusevlm.errors import ArtefactError, InputError
from fusevlm.types import Query

N_ANSWERS = 10
TYPES: tuple[str, ...] = ("answer_type", "question_type")
AnyPath = str | os.PathLike[str]
Id = int | str


@dataclass(frozen=True)
class Split:
    """The official file names of one split, and the COCO folders that may hold its images."""

    questions: str
    annotations: str | None  # None: the answers are not public
    folders: tuple[str, ...]


SPLITS: dict[str, dict[str, Split]] = {
    "vqav2": {
        "train": Split(
            "v2_OpenEnded_mscoco_train2014_questions.json",
            "v2_mscoco_train2014_annotations.json",
            ("train2014",),
        ),
        "val": Split(
            "v2_OpenEnded_mscoco_val2014_questions.json",
            "v2_mscoco_val2014_annotations.json",
            ("val2014",),
        ),
        "test-dev": Split("v2_OpenEnded_mscoco_test-dev2015_questions.json", None, ("test2015",)),
        "test": Split("v2_OpenEnded_mscoco_test2015_questions.json", None, ("test2015",)),
    },
    "okvqa": {
        "train": Split(
            "OpenEnded_mscoco_train2014_questions.json",
            "mscoco_train2014_annotations.json",
            ("train2014",),
        ),
        "val": Split(
            "OpenEnded_mscoco_val2014_questions.json",
            "mscoco_val2014_annotations.json",
            ("val2014",),
        ),
    },
    "advqa": {
        # the questions were asked about val2017, whose images are part of val2014
        "val": Split(
            "v1_OpenEnded_mscoco_val2017_advqa_questions.json",
            "v1_mscoco_val2017_advqa_annotations.json",
            ("val2017", "val2014"),
        ),
        "test-dev": Split(
            "v1_OpenEnded_mscoco_testdev2015_advqa_questions.json", None, ("test2015",)
        ),
    },
}


def read_vqa(
    questions: AnyPath,
    annotations: AnyPath | None,
    images: AnyPath | None,
    *,
    name: str = "vqav2",
    split: str = "val",
    limit: int | None = None,
    strict: bool = True,
) -> Reading[Query]:
    """Queries of official question and annotation files (``.json`` or ``.json.gz``).

    Both files are streamed. While they list the questions in the same order, as the official ones
    mostly do, memory holds one record of each and the ids seen (to find duplicates). An annotation
    that comes before its question waits as about 200 packed bytes, however long that takes.

    ``images`` is the folder of the split, or the one above it; without it queries have no image
    and none is looked for. Without ``annotations`` they have no references. With ``limit`` reading
    stops after that many queries, so what is wrong further on is not found.
    """
    wanted = official_split(name, split)
    must_exist(questions, *([] if annotations is None else [annotations]))
    if limit is not None:
        limit = checks.count(limit, "limit")
    candidates = [] if images is None else image_names(Path(images), wanted.folders)
    problems = Problems(strict)
    joined = _join(Path(questions), annotations, candidates, {"dataset": name, "split": split},
                   limit, problems)  # fmt: skip
    return Reading(joined, problems)


def official_split(name: str, split: str) -> Split:
    """The files of a split by the names of its dataset and itself."""
    splits = SPLITS[checks.known(name, SPLITS, "the dataset")]
    return splits[checks.known(split, splits, f"the split of {name}")]


def image_names(images: Path, folders: tuple[str, ...]) -> list[str]:
    """Patterns of the paths an image id may have, COCO 2014 and 2017 style, most likely first."""
    found = []
    for folder in folders:
        root = images / folder if (images / folder).is_dir() else images
        prefix = "" if folder.endswith("2017") else f"COCO_{folder}_"
        found.append(f"{str(root).replace('{', '{{').replace('}', '}}')}/{prefix}{{:012d}}.jpg")
    return found


def _join(
    questions: Path,
    annotations: AnyPath | None,
    candidates: list[str],
    metadata: dict[str, Any],
    limit: int | None,
    problems: Problems,
) -> Iterator[Query]:
    seen: set[Id] = set()
    labels = None if annotations is None else _Annotations(Path(annotations), seen, problems)
    n = 0
    for where, row in _rows(questions, "questions", problems):
        try:
            key, text, image_id = _fields(row)
        except InputError as error:
            problems.found("unreadable question", f"{where}: {error}")
            continue
        if key in seen:
            problems.found(
                "duplicate question", f"{where}: question_id {key} occurs a second time."
            )
            continue
        label = labels.take(key, where) if labels else _Label(image_id, {}, ())
        seen.add(key)
        if label is None:
            continue
        if label.image_id not in (None, image_id):
            problems.found(
                "other image",
                f"{where}: question_id {key} is about image {image_id}, its annotation about "
                f"{label.image_id}. The two files belong to different releases.",
            )
            continue
        paths = [name.format(image_id) for name in candidates]
        image = next((path for path in paths if os.path.isfile(path)), None)
        if paths and image is None:
            problems.found(
                "missing image",
                f"{where}: question_id {key} needs {' or '.join(paths)}, which does not exist. "
                f"Unpack the COCO images of this split there.",
            )
            continue
        yield Query(
            id=str(key),
            question=text,
            images=() if image is None else (Path(image),),
            references=label.answers,
            metadata=metadata | {"image_id": image_id} | label.types,
        )
        n += 1
        if n == limit:
            return
    if labels:
        labels.finish()


def _rows(path: Path, key: str, problems: Problems) -> Iterator[tuple[str, Any]]:
    """(where, record); damage ends the list, because what follows it cannot be found."""
    try:
        for number, row in records(path, key):
            yield f"{path}, record {number}", row
    except ArtefactError as error:
        problems.found("damaged file", error)


def _fields(row: Any) -> tuple[Id, str, int]:
    """question_id, question and image_id of a question."""
    key, text, image_id = _key(row), row.get("question"), row.get("image_id")
    if not isinstance(text, str) or not isinstance(image_id, int):
        raise InputError(
            f"question_id {key} has question {text!r} and image_id {image_id!r}; expected a text "
            f"and a whole number."
        )
    return key, text, image_id


def _key(row: Any) -> Id:
    key = row.get("question_id") if isinstance(row, dict) else None
    if not isinstance(key, int | str):
        raise InputError(f"expected an object with a question_id, got {str(row)[:60]!r}.")
    return key


@dataclass(frozen=True)
class _Label:
    """What an annotation says about a question."""

    image_id: Any
    types: dict[str, Any]
    answers: tuple[str, ...]

    def pack(self) -> bytes:
        return json.dumps([self.image_id, self.types, self.answers]).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> _Label:
        image_id, types, answers = json.loads(packed)
        return cls(image_id, types, tuple(answers))


class _Annotations:
    """Annotations by question id, read no further than needed."""

    def __init__(self, path: Path, seen: set[Id], problems: Problems) -> None:
        self.path, self.seen, self.problems = path, seen, problems
        self.rows = _rows(path, "annotations", problems)
        self.waiting: dict[Id, bytes | None] = {}  # None: bad and already counted

    def take(self, key: Id, where: str) -> _Label | None:
        """The label of a question, or None when it has no usable one."""
        if key in self.waiting:
            packed = self.waiting.pop(key)
            return None if packed is None else _Label.unpack(packed)
        for found, label in self.fresh():
            if found == key:
                return label
            self.waiting[found] = None if label is None else label.pack()
        self.problems.found(
            "question without annotation",
            f"{where}: question_id {key} has no annotation in {self.path}.",
        )
        return None

    def fresh(self) -> Iterator[tuple[Id, _Label | None]]:
        for where, row in self.rows:
            try:
                key = _key(row)
            except InputError as error:
                self.problems.found("unreadable annotation", f"{where}: {error}")
                continue
            if key in self.seen or key in self.waiting:
                self.problems.found(
                    "duplicate annotation", f"{where}: question_id {key} occurs a second time."
                )
                continue
            try:
                yield key, _label(row)
            except InputError as error:
                kind = "not ten answers" if row.get("answers") else "no answers"
                self.problems.found(kind, f"{where}: {error}")
                yield key, None

    def finish(self) -> None:
        """Count the annotations that no question asked for."""
        for key in self.waiting:
            self._unasked(key)
        for key, _ in self.fresh():
            self._unasked(key)

    def _unasked(self, key: Id) -> None:
        self.problems.found(
            "annotation without question",
            f"{self.path}: question_id {key} is not among the questions.",
        )


def _label(row: dict[str, Any]) -> _Label:
    answers = row.get("answers")
    if not isinstance(answers, list) or not answers:
        raise InputError(
            f"question_id {row['question_id']} has no answers; the answers of test splits are not "
            f"public. Use a split that has them, or leave the annotations out."
        )
    texts: list[Any] = [a.get("answer") if isinstance(a, dict) else a for a in answers]
    if len(texts) != N_ANSWERS or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"question_id {row['question_id']} has {len(texts)} answer(s); expected {N_ANSWERS} "
            f"texts."
        )
    types: dict[str, Any] = {name: row[name] for name in TYPES if name in row}
    return _Label(row.get("image_id"), types, tuple(texts))
