"""Small files in the official layouts."""

import gzip
import json

from fusevlm.testing import miniatures
from fusevlm.testing.miniatures import question, wrapped

__all__ = ["TEN", "annotation", "question", "wrapped", "write", "write_image", "write_pair"]

TEN = [{"answer": "cat", "answer_confidence": "yes", "answer_id": i} for i in range(1, 10)] + [
    {"answer": "a kitten", "answer_confidence": "maybe", "answer_id": 10}
]


def annotation(key, answers=TEN, **other):
    found = miniatures.annotation(key, answers if isinstance(answers, list) else [])
    return found | {"multiple_choice_answer": "cat", "answers": answers} | other


def write(path, content, **options):
    text = content if isinstance(content, str) else json.dumps(content, **options)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_pair(folder, questions, annotations, ending="json"):
    return (
        write(folder / f"questions.{ending}", wrapped("questions", questions)),
        write(folder / f"annotations.{ending}", wrapped("annotations", annotations)),
    )


def write_image(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"not looked at")
    return folder / name
