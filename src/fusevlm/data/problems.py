"""What was wrong with a dataset's records, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fusevlm.errors import FuseError, InputError

T = TypeVar("T")
KEPT = 20  # messages kept in full; the rest is counted only


@dataclass
class Problems:
    """Bad records by kind. ``strict`` raises the first one, otherwise they are counted."""

    strict: bool = True
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def found(self, kind: str, problem: str | FuseError) -> None:
        """Raise (strict) or count (lenient) one bad record."""
        if self.strict:
            raise problem if isinstance(problem, FuseError) else InputError(problem)
        self.counts[kind] += 1
        if len(self.first) < KEPT:
            self.first.append(str(problem))

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return f"{self.read} read; bad: {kinds or 'none'}"


class Reading(Iterator[T], Generic[T]):
    """Records as they come from the file; ``problems`` says what was skipped so far."""

    def __init__(self, records: Iterator[T], problems: Problems) -> None:
        self.records = records
        self.problems = problems

    def __next__(self) -> T:
        record = next(self.records)
        self.problems.read += 1
        return record
