"""Logs of other tools as rows of a table with samples (:mod:`fusevlm.data.sampled`).

inspect_ai   ``.eval`` or ``.json``: the epochs of a sample (or the choices of one call) are its
             samples, and each has the label that its scorer gave it
lmms-eval    ``…_samples_TASK.jsonl`` of ``--log_samples``: the first response is the judged answer,
             which the task's metric is about, and the others are the samples

Neither tool is imported. Pictures are not read from logs.
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.errors import ArtefactError
from fusevlm.store.files import read_regular

MOST = 500_000_000  # bytes of one entry of a log
ZSTD = 93  # a way of packing that zipfile does not know
# what the ways of packing raise of damage, and zipfile of one it does not know or of a bad header
UNPACKING = (zlib.error, lzma.LZMAError, EOFError, NotImplementedError, ValueError, OverflowError)
RIGHT = {"c": False, "i": True, "correct": False, "incorrect": True}
# of a line of lmms-eval: what is no metric
LMMS = frozenset(
    ["doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "doc_hash", "prompt_hash",
     "target_hash", "input", "token_counts", "schema_version", "task_name", "logged_at", "filter"]
)  # fmt: skip


def read_inspect(path: Path) -> list[dict[str, Any]]:
    """A row per sample of an inspect_ai log, of all its epochs."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in _inspect_entries(path):
        name = str(entry.get("id"))
        row = rows.setdefault(
            name,
            {"id": name, "question": _asked(entry.get("input")), "samples": [], "wrong": [],
             "logprobs": [], "references": _listed(entry.get("target"))},
        )  # fmt: skip
        output = entry.get("output")
        if entry.get("error") or not isinstance(output, Mapping):
            continue
        label = _inspect_label(entry.get("scores"))
        given = output.get("choices")
        for choice in given if isinstance(given, list) else []:
            if not isinstance(choice, Mapping):
                continue
            row["samples"].append(_said(choice.get("message")))
            row["wrong"].append(label)
            row["logprobs"].append(_logprobs(choice.get("logprobs")))
    for row in rows.values():
        if None in row["logprobs"] or not row["logprobs"]:
            del row["logprobs"]
        if None in row["wrong"] or not row["wrong"]:
            del row["wrong"]
    return list(rows.values())


def _inspect_entries(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix != ".eval":
        found = _parsed(_read(path), path)
        samples = found.get("samples") if isinstance(found, Mapping) else None
        if not isinstance(samples, list):
            raise ArtefactError(
                f"{path} has no samples: is it a log of inspect_ai, with --log-samples?"
            )
        yield from (one for one in samples if isinstance(one, Mapping))
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = [one for one in archive.infolist() if one.filename.startswith("samples/")]
            if not names:
                raise ArtefactError(f"{path} holds no samples: was it logged without them?")
            for info in sorted(names, key=lambda one: one.filename):
                found = _parsed(_unpacked(archive, info, path), f"{path}, {info.filename}")
                if isinstance(found, Mapping):
                    yield found
    except (OSError, zipfile.BadZipFile, struct.error, RuntimeError, *UNPACKING) as error:
        raise ArtefactError(f"{path} cannot be read as a log of inspect_ai: {error}.") from error


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    """One file of the archive; of zstd by Arrow's."""
    if info.file_size > MOST:
        raise ArtefactError(f"{path}, {info.filename} has more than {MOST // 10**6} MB.")
    if info.compress_type != ZSTD:
        return archive.read(info)
    arrow = checks.extra("pyarrow", "a log packed with zstd", "frames")
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        name, more = struct.unpack("<26xHH", stream.read(30))
        stream.seek(name + more, 1)
        packed = stream.read(info.compress_size)
    try:
        source = arrow.CompressedInputStream(arrow.BufferReader(packed), "zstd")
        return bytes(source.read(info.file_size))
    except (OSError, arrow.ArrowException) as error:
        raise ArtefactError(f"{path}, {info.filename} is damaged: {error}.") from error


def _asked(given: Any) -> str:
    """The question: a text, or what the user says last."""
    if isinstance(given, str):
        return given
    turns = given if isinstance(given, list) else []
    said = [_said(turn) for turn in turns if isinstance(turn, Mapping) and _is_user(turn)]
    return said[-1] if said else ""


def _is_user(turn: Mapping[str, Any]) -> bool:
    return turn.get("role") == "user"


def _said(message: Any) -> str:
    """The text of a message, which may come in pieces."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        pieces = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content.strip() if isinstance(content, str) else ""


def _logprobs(given: Any) -> list[float] | None:
    content = given.get("content") if isinstance(given, Mapping) else None
    if not isinstance(content, list) or not content:
        return None
    found = [one.get("logprob") for one in content if isinstance(one, Mapping)]
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    return numbers if len(numbers) == len(content) else None


def _inspect_label(scores: Any) -> bool | None:
    """Whether the first scorer calls the answer wrong; None where it does not say."""
    first = next(iter(scores.values()), None) if isinstance(scores, Mapping) else None
    value = first.get("value") if isinstance(first, Mapping) else None
    if isinstance(value, str):
        return RIGHT.get(value.lower())
    return bool(value < 0.5) if isinstance(value, int | float) else None


def read_lmms_eval(path: Path) -> list[dict[str, Any]]:
    """A row per document of lmms-eval's logged samples."""
    rows = []
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line.strip():
            entry = _parsed(line, f"{path}, line {number}")
            if not isinstance(entry, Mapping) or "doc_id" not in entry:
                raise ArtefactError(
                    f"{path}, line {number}: expected a logged sample of lmms-eval, with a doc_id."
                )
            rows.append(_lmms_row(entry))
    if not rows:
        raise ArtefactError(f"{path} holds no samples.")
    if all(not row["samples"] for row in rows):
        raise ArtefactError(
            f"{path} has one response to each question, and nothing to compare it with. Log "
            f"several: repeats in the task's YAML, with the filter take_first_k."
        )
    return rows


def _lmms_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    said = _listed(entry.get("resps"))
    said = said[0] if len(said) == 1 and isinstance(said[0], list) else said
    said = said if len(said) > 1 else _listed(entry.get("filtered_resps"))
    said = said[0] if len(said) == 1 and isinstance(said[0], list) else said
    metrics = {k: v for k, v in entry.items() if k not in LMMS and isinstance(v, int | float)}
    row = {
        "id": str(entry["doc_id"]),
        "question": entry.get("input") if isinstance(entry.get("input"), str) else "",
        "answer": str(said[0]) if said else None,
        "samples": [str(one) for one in said[1:]],
        "references": _listed(entry.get("target")),
    }
    if len(metrics) == 1:
        row["wrong"] = next(iter(metrics.values())) < 0.5
    return row | {f"metric_{name}": value for name, value in metrics.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"cannot read {path}: {error}.") from error


def _parsed(text: str | bytes, where: object) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{where}: not JSON ({error}).") from error
