"""Joining official VQA files by streaming, against ``json.load`` of both.

Two files of seeded, made-up records in the official structure, a quarter of their size first, to
see what one more record costs. Each way runs in a fresh process, so that peaks do not mix; the
peak is Linux's VmHWM, less what the process held before it opened the files.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.timing import Row

SIZES = (50_000, 200_000)
WORDS = "yes no red blue two three cat dog man table white grass tennis left kitchen".split()  # noqa: SIM905


def run(sizes: tuple[int, int] = SIZES) -> list[Row]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            for order in ("same", "shuffled"):
                write_files(Path(folder), n, shuffled=order == "shuffled")
                found["stream", order, n] = measure("stream", folder)
                if order == "same":
                    found["load", order, n] = measure("load", folder)
    few, many = sizes
    rows = []
    for way, order, name in (
        ("stream", "same", "streamed, same order"),
        ("stream", "shuffled", "streamed, annotations shuffled"),
        ("load", "same", "json.load of both"),
    ):
        seconds, peak = found[way, order, many]
        _, small = found[way, order, few]
        detail = f"peak {small / 1e6:.1f} MB at {few}, {peak / 1e6:.1f} MB at {many}"
        each = (peak - small) / (many - few)
        rows.append(
            Row(f"{name}: speed", many / seconds, "records per CPU second", None, f"{many} records")
        )
        rows.append(Row(f"{name}: one more record", each, "bytes", None, detail))
    ours, theirs = (found[way, "same", many][1] for way in ("stream", "load"))
    rows.append(
        Row("peak against json.load", ours / theirs, "x its peak", 0.1, f"{many} records",
            at_most=True)
    )  # fmt: skip
    return rows


def write_files(folder: Path, n: int, *, shuffled: bool, seed: int = 0) -> None:
    """Questions and annotations of ``n`` questions, about four for each image."""
    rng = random.Random(seed)
    keys = [image * 1000 + i for image in rng.sample(range(600_000), -(-n // 4)) for i in range(4)]
    keys = keys[:n]
    _write(folder / "questions.json", "questions", keys, _question)
    if shuffled:
        rng.shuffle(keys)
    _write(folder / "annotations.json", "annotations", keys, _annotation)


def _write(path: Path, name: str, keys: list[int], make: Callable[[int], object]) -> None:
    with path.open("w") as out:
        out.write(f'{{"info": {{"year": 2017}}, "license": {{}}, "{name}": [')
        for i, key in enumerate(keys):
            out.write((", " if i else "") + json.dumps(make(key)))
        out.write("]}")


def _question(key: int) -> object:
    text = f"What color is the {WORDS[key % len(WORDS)]} beside the {WORDS[key % 7]}?"
    return {"image_id": key // 1000, "question": text, "question_id": key}


def _annotation(key: int) -> object:
    rng = random.Random(key)
    said = [*[rng.choice(WORDS)] * rng.randint(3, 9), *rng.choices(WORDS, k=10)][:10]
    return {
        "question_type": "what color is the",
        "multiple_choice_answer": said[0],
        "answers": [
            {"answer": answer, "answer_confidence": "yes", "answer_id": i}
            for i, answer in enumerate(said, 1)
        ],
        "image_id": key // 1000,
        "answer_type": "other",
        "question_id": key,
    }


def measure(way: str, folder: str) -> tuple[float, float]:
    """CPU seconds and bytes of a join in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.annotations", way, folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def _stream(folder: Path) -> Iterator[object]:
    from fusevlm.data.vqa import read_vqa

    return read_vqa(folder / "questions.json", folder / "annotations.json", None)


def _load(folder: Path) -> Iterator[object]:
    """The plain way: both files in memory, a dictionary by id, then the same queries."""
    from fusevlm.types import Query

    with (folder / "questions.json").open() as file:
        questions = json.load(file)["questions"]
    with (folder / "annotations.json").open() as file:
        annotations = json.load(file)["annotations"]
    by_id = {row["question_id"]: row for row in annotations}
    for row in questions:
        label = by_id[row["question_id"]]
        yield Query(
            id=str(row["question_id"]),
            question=row["question"],
            references=[answer["answer"] for answer in label["answers"]],
            metadata={name: label[name] for name in ("image_id", "answer_type", "question_type")},
        )


def _resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def _child(way: str, folder: Path) -> None:
    import fusevlm.data.vqa  # noqa: F401  imports are no part of the join

    before = _resident("VmRSS")
    join = {"stream": _stream, "load": _load}[way]
    start = time.process_time()
    n = sum(1 for _ in join(folder))
    seconds = time.process_time() - start
    if n == 0:
        raise SystemExit("nothing was joined")
    print(json.dumps([seconds, _resident("VmHWM") - before]))


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]))
