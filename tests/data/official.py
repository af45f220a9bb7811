"""Small files in the official layouts."""

import gzip
import json

TEN = [{"answer": "cat", "answer_confidence": "yes", "answer_id": i} for i in range(1, 10)] + [
    {"answer": "a kitten", "answer_confidence": "maybe", "answer_id": 10}
]


def question(key, image_id=None, text=None):
    return {
        "image_id": key // 1000 if image_id is None else image_id,
        "question": text or f"What is in picture {key}?",
        "question_id": key,
    }


def annotation(key, answers=TEN, **other):
    return {
        "question_type": "what is",
        "multiple_choice_answer": "cat",
        "answers": answers,
        "image_id": key // 1000,
        "answer_type": "other",
        "question_id": key,
    } | other


def wrapped(name, rows):
    """As published: the list comes after a header and before more."""
    return {
        "info": {"description": "tiny \u2013 {not} a [list]", "year": 2017},
        "task_type": "Open-Ended",
        "license": {"url": 'https://example.org/"quoted"'},
        name: rows,
        "data_subtype": "val2014",
    }


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
