"""Queries with the samples somebody already has: tables of them, and logs of other tools.

A table (CSV, JSON lines, Parquet) has a row per query:

    samples          the sampled answers, a list; in CSV a JSON list
    question, image  what was asked, as in a table of queries; also id, images, history
    logprobs         token log-probabilities of each sample, a list of lists; or left out
    answer           the answer that is judged; the most frequent one of the samples if left out
    answer_logprobs  its token log-probabilities; or left out
    wrong            whether it was wrong (0/1, true/false), or that of each sample, a list; or
    references       the right answers, from which a criterion tells

All other columns are numbers or names that may be used by name: prior statistics, evidence, units.
A row that cannot be read has an error and is left out of a fit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.data import logs
from fusevlm.data.correctness import CRITERIA, is_wrong
from fusevlm.data.tables import listed, query_of
from fusevlm.displays import Displayed, Rows
from fusevlm.errors import FuseError, InputError
from fusevlm.meanings import best_sample
from fusevlm.store import read_table
from fusevlm.types import Query, Samples

OWN = ("samples", "logprobs", "answer", "answer_logprobs", "wrong")
WORDS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
TABLE = "table"
Reader = Callable[[Path], list[dict[str, Any]]]
FORMS: dict[str, Reader] = {"inspect": logs.read_inspect, "lmms-eval": logs.read_lmms_eval}


@dataclass(frozen=True, eq=False)
class Sampled(Displayed):
    """A query with what was said to it, and whether that was wrong; or an error.

    query    what was asked
    samples  what was said; None where the row could not be read
    wrong    whether the judged answer was wrong; None: not known
    error    why the row could not be read; empty where it could
    columns  all other columns of the row, by name
    """

    query: Query
    samples: Samples | None = None
    wrong: bool | None = None
    error: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """A column as a number; NaN where there is none."""
        value = self.columns.get(name)
        if value is None or value == "":
            return math.nan
        try:
            return float(WORDS.get(str(value).lower(), value))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"query {self.query.id!r}: {name} is {value!r}; expected a number."
            ) from error

    def _title(self) -> str:
        return f"query {self.query.id} with samples"

    def _facts(self) -> dict[str, str]:
        found = {"id": self.query.id, "question": self.query.question}
        if self.samples is None:
            return {**found, "error": self.error}
        label = "not known" if self.wrong is None else "yes" if self.wrong else "no"
        return {**found, **self.samples._facts(), "wrong": label}


def read_sampled(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    form: str = TABLE,
    criterion: str = "exact_match",
    outside: bool = False,
    limit: int | None = None,
) -> list[Sampled]:
    """Queries with the samples somebody already has, of a table or of the log of another tool.

    path       CSV, JSON lines or Parquet with a column ``samples``; all columns are described in
               :mod:`fusevlm.data.sampled`
    images     folder of the pictures, if not that of the table
    form       ``table``, or the tool whose log it is: ``inspect`` or ``lmms-eval``
    criterion  how an answer is compared with the row's ``references``, where it has no ``wrong``
    outside    whether pictures may lie outside that folder
    limit      so many rows at most

    A row that cannot be read has an ``error``, and is left out of a fit.
    """
    source = Path(path)
    checks.known(criterion, CRITERIA, "criterion")
    if form == TABLE:
        table = read_table(source)
        if "samples" not in table:
            raise InputError(
                f"{source} has no column 'samples'; it has {', '.join(table)}. Is it a log? Say "
                f"--from {' or --from '.join(FORMS)}."
            )
        size = len(table["samples"])
        rows = [{name: values[i] for name, values in table.items()} for i in range(size)]
    else:
        rows = FORMS[checks.known(form, FORMS, "--from")](source)
    rows = rows if limit is None else rows[: checks.count(limit, "limit")]
    root = Path(images) if images is not None else source.parent
    found = Rows(_row(row, i, root, criterion, outside) for i, row in enumerate(rows))
    seen: set[str] = set()
    for one in found:
        if one.query.id in seen:
            raise InputError(f"{source} has the id {one.query.id!r} twice; ids must be unique.")
        seen.add(one.query.id)
    return found


def _row(row: Mapping[str, Any], i: int, root: Path, criterion: str, outside: bool) -> Sampled:
    name = str(row["id"]) if row.get("id") not in (None, "") else str(i)
    try:
        query = replace(query_of({"question": "", **row}, i, root, outside), id=name)
        columns = {k: v for k, v in query.metadata.items() if k not in OWN}
        query = replace(query, metadata=columns)
        samples = samples_of(row)
        return Sampled(query, samples, _wrong(row, query, samples, criterion), columns=columns)
    except (FuseError, ValueError, TypeError, RecursionError) as error:
        return Sampled(Query(name, str(row.get("question") or "")), error=f"row {i + 1}: {error}")


def samples_of(row: Mapping[str, Any]) -> Samples:
    """The samples of a row and the answer that is judged; InputError if there are none."""
    texts = listed(row.get("samples"))
    logprobs = _lists(row.get("logprobs"))
    if texts and all(isinstance(one, Mapping) for one in texts):  # {"text": …, "logprobs": …}
        rows = [one.get("logprobs") for one in texts]
        logprobs = rows if logprobs is None and all(rows) else logprobs
        texts = [one.get("text") for one in texts]
    if not texts:
        raise InputError("it has no samples; expected a list of texts.")
    texts = ["" if one is None else str(one) for one in texts]
    answer, own = row.get("answer"), _lists(row.get("answer_logprobs"))
    if answer is not None and answer != "":
        return Samples(texts, logprobs, answer=str(answer), answer_logprobs=own)
    if logprobs is not None:
        return Samples(texts, logprobs)
    return Samples(texts, answer=texts[best_sample(texts)], answer_is_sample=True)


def _lists(value: Any) -> list[Any] | None:
    """A list, or none where nothing is given; in CSV it is JSON."""
    if value is None or value == "":
        return None
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InputError(f"log-probabilities are {str(value)[:40]!r}; expected a list.")
    return list(found) or None


def _wrong(row: Mapping[str, Any], query: Query, samples: Samples, criterion: str) -> bool | None:
    """Of the judged answer: as the row says, or by its references."""
    said = row.get("wrong")
    if isinstance(said, str) and said.startswith("["):  # in CSV
        said = listed(said)
    if isinstance(said, Sequence) and not isinstance(said, str):  # of each sample
        if len(said) != len(samples):
            raise InputError(f"wrong has {len(said)} entries for {len(samples)} samples.")
        if samples.answer not in samples.texts:
            raise InputError(
                f"wrong has a label for each sample, and the answer {samples.answer!r} is none of "
                f"them; expected one label, of the answer."
            )
        said = said[samples.texts.index(str(samples.answer))]
    if said is not None and said != "" and said == said:
        word = str(said).lower()
        if word not in WORDS:
            raise InputError(f"wrong is {said!r}; expected 0 or 1, true or false.")
        return WORDS[word]
    if not query.references:
        return None
    return is_wrong(str(samples.answer), query.references, criterion)
