"""Small synthetic datasets in their official file formats, pictures included.

VQAv2, OK-VQA and AdVQA (questions, annotations, COCO-named JPEGs), COCO captions, Karpathy's JSON,
Flickr's token files, and plain tables of queries. Questions and captions use words that tiny models
know; the right answers are given.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import store
from fusevlm.data.training import CAPTIONS
from fusevlm.data.vqa import N_ANSWERS, official_split

PER_PICTURE = 2  # questions about one picture
TYPES = ("yes/no", "number", "other")
OPENINGS = ("what colour is", "how many", "is this a", "what shape is", "what is in")
THINGS = ("the circle", "the square", "the red shape", "a blue circle", "the image")


@dataclass(frozen=True)
class Asked:
    """A question about a picture, by its number in the dataset."""

    number: int
    question: str

    @property
    def image_id(self) -> int:
        return self.number // PER_PICTURE + 1

    @property
    def question_id(self) -> int:
        return self.image_id * 1000 + self.number % PER_PICTURE


def ask(size: int, first: int = 0) -> list[Asked]:
    """``size`` questions, two about each picture."""
    return [
        Asked(k, f"{OPENINGS[k % len(OPENINGS)]} {THINGS[k // 2 % len(THINGS)]}")
        for k in range(first, first + size)
    ]


def picture(seed: int, kind: str = "JPEG") -> bytes:
    """A picture of 6 × 5 coloured fields."""
    from PIL import Image

    fields = np.random.default_rng(seed).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(fields.repeat(8, axis=0).repeat(8, axis=1)).save(buffer, format=kind)
    return buffer.getvalue()


def question(key: int, image_id: int | None = None, text: str | None = None) -> dict[str, Any]:
    """A record of an official question file."""
    return {
        "image_id": key // 1000 if image_id is None else image_id,
        "question": text or f"What is in picture {key}?",
        "question_id": key,
    }


def annotation(key: int, answers: Sequence[Mapping[str, Any]], **other: Any) -> dict[str, Any]:
    """A record of an official annotation file."""
    texts = [one.get("answer") for one in answers if isinstance(one, Mapping)]
    return {
        "question_type": "what is",
        "multiple_choice_answer": max(texts, key=texts.count) if texts else "",
        "answers": list(answers),
        "image_id": key // 1000,
        "answer_type": "other",
        "question_id": key,
    } | other


def wrapped(name: str, rows: Sequence[Any], subtype: str = "val2014") -> dict[str, Any]:
    """As published: the list comes after a header and before more."""
    return {
        "info": {"description": "tiny \u2013 {not} a [list]", "year": 2017},
        "task_type": "Open-Ended",
        "license": {"url": 'https://example.org/"quoted"'},
        name: list(rows),
        "data_subtype": subtype,
    }


def save_vqa(
    folder: Path,
    images: Path,
    name: str,
    split: str,
    asked: Sequence[Asked],
    references: Sequence[Sequence[str]],
) -> None:
    """The question file, the annotation file and the pictures of an official split."""
    files = official_split(name, split)
    home = files.folders[0]
    prefix = "" if home.endswith("2017") else f"COCO_{home}_"
    rows = [question(one.question_id, one.image_id, one.question) for one in asked]
    _save(folder / files.questions, wrapped("questions", rows, home))
    if files.annotations is not None:
        labels = [
            annotation(
                one.question_id,
                [
                    {"answer": text, "answer_confidence": "yes", "answer_id": k + 1}
                    for k, text in enumerate(_ten(right))
                ],
                answer_type=TYPES[one.number % len(TYPES)],
                question_type=OPENINGS[one.number % len(OPENINGS)],
            )
            for one, right in zip(asked, references, strict=True)
        ]
        _save(folder / files.annotations, wrapped("annotations", labels, home))
    for image_id in {one.image_id for one in asked}:
        store.save(images / home / f"{prefix}{image_id:012d}.jpg", picture(image_id))


def _ten(right: Sequence[str]) -> list[str]:
    """Nine answers shared out among the right ones, and one that nobody else gave."""
    return [right[k % len(right)] for k in range(N_ANSWERS - 1)] + ["something else"]


def save_captions(folder: Path, kind: str, split: str, size: int) -> None:
    """A set of captions that :mod:`fusevlm.data.training` knows, all in one split."""
    known = CAPTIONS[kind]
    layout, name = known.files[0]
    home = known.folders[0].format(split=split)
    names = [f"{1000 + k}.jpg" for k in range(size)]
    captions = [f"the image is {THINGS[k % len(THINGS)]}." for k in range(size)]
    path = folder / name.format(split=split)
    rows = list(zip(names, captions, strict=True))
    if layout == "coco":
        _save(path, _coco(rows))
    elif layout == "karpathy":
        _save(path, _karpathy(rows, split, home if known.above else ""))
    else:
        lines = [f"{image}#0\t{caption}" for image, caption in rows]
        store.save(path, ("\n".join(lines) + "\n").encode())
    for own, listed in known.lists.items():
        store.save(folder / listed, "".join(f"{n}\n" for n in names if own == split).encode())
    for k, image in enumerate(names):
        store.save(folder / home / image, picture(k + 7000))


def _coco(rows: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """captions_train2014.json."""
    return {
        "images": [{"id": k, "file_name": name} for k, (name, _) in enumerate(rows)],
        "annotations": [
            {"image_id": k, "id": k, "caption": text} for k, (_, text) in enumerate(rows)
        ],
    }


def _karpathy(rows: Sequence[tuple[str, str]], split: str, folder: str) -> dict[str, Any]:
    """dataset_flickr30k.json; COCO's names the folder of each picture."""
    images: list[dict[str, Any]] = [
        {"filename": name, "split": split, "imgid": k, "sentences": [{"raw": text, "sentid": k}]}
        for k, (name, text) in enumerate(rows)
    ]
    if folder:
        images = [{"filepath": folder, **row} for row in images]
    return {"images": images}


def save_table(
    path: Path,
    images: Path,
    asked: Sequence[Asked],
    references: Sequence[Sequence[str]] | None,
    columns: Mapping[str, Sequence[Any]],
) -> None:
    """A table of queries as JSON lines; ``columns`` beside question, image and references."""
    rows = []
    for k, one in enumerate(asked):
        row = {
            "id": str(one.question_id),
            "question": one.question,
            "image": f"{one.image_id}.png",
            "image_id": one.image_id,
        }
        row |= {name: values[k % len(values)] for name, values in columns.items()}
        if references is not None:
            row["references"] = list(references[k])
        rows.append(json.dumps(row))
    store.save(path, ("\n".join(rows) + "\n").encode())
    for image_id in {one.image_id for one in asked}:
        store.save(images / f"{image_id}.png", picture(image_id, "PNG"))


def _save(path: Path, content: Mapping[str, Any]) -> None:
    store.save(path, json.dumps(content).encode())
