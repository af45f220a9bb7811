"""Queries from a dataset of the Hugging Face hub, or a folder in its layout (extra ``hub``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fusevlm import checks
from fusevlm.data.problems import Problems, Reading
from fusevlm.errors import ArtefactError, InputError
from fusevlm.types import Query

FIELDS = ("id", "question", "image", "references")


def read_hub(
    name: str,
    split: str,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    strict: bool = True,
) -> Reading[Query]:
    """Queries of ``split``, streamed: nothing is downloaded beyond what is read.

    ``columns`` says which column holds each of ``id``, ``question``, ``image`` and
    ``references`` where the names differ; a missing id becomes the row number, the other columns
    become metadata. References may be a text, a list of texts, or a list of objects with
    ``answer``.
    """
    library = checks.extra("datasets", "reading a dataset of the Hugging Face hub", "hub")
    given = dict(columns or {})
    for field in given:
        checks.known(field, FIELDS, "the field of columns")
    if limit is not None:
        limit = checks.count(limit, "limit")
    try:
        rows = library.load_dataset(name, split=split, streaming=True)
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"cannot open the split {split!r} of {name!r}: {error} Check both names, and the "
            f"network if it is not a local folder."
        ) from error
    problems = Problems(strict)
    where = f"{name} ({split})"
    queries = _queries(rows, {f: given.get(f, f) for f in FIELDS}, where, limit, problems)
    return Reading(queries, problems)


def _queries(
    rows: Any, columns: Mapping[str, str], where: str, limit: int | None, problems: Problems
) -> Iterator[Query]:
    seen: set[str] = set()
    n = 0
    for number, row in enumerate(rows, 1):
        try:
            query = _query(row, columns, number)
            if query.id in seen:
                raise InputError(f"the id {query.id!r} occurs a second time.")
        except InputError as error:
            problems.found("unreadable row", f"{where}, row {number}: {error}")
            continue
        seen.add(query.id)
        yield query
        n += 1
        if n == limit:
            return


def _query(row: Mapping[str, Any], columns: Mapping[str, str], number: int) -> Query:
    if columns["question"] not in row:
        raise InputError(
            f"no column {columns['question']!r}.{checks.hint(columns['question'], row)} "
            f"Name the right one: columns={{'question': …}}."
        )
    key, image = row.get(columns["id"]), row.get(columns["image"])
    return Query(
        id=str(number) if key is None else str(key),
        question=row[columns["question"]],
        images=() if image is None else tuple(image) if isinstance(image, list) else (image,),
        references=_texts(row.get(columns["references"])),
        metadata={k: v for k, v in row.items() if k not in columns.values()},
    )


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    entries = value if isinstance(value, list | tuple) else [value]
    texts: tuple[Any, ...] = tuple(
        e.get("answer") if isinstance(e, Mapping) else e for e in entries
    )
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"references are {value!r}; expected texts, or objects with 'answer'.")
    return texts
