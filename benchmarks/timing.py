"""A stopwatch and a result row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Clock:
    seconds: float = 0.0


@contextmanager
def clock() -> Iterator[Clock]:
    """Wall-clock seconds of the block."""
    found, start = Clock(), time.perf_counter()
    yield found
    found.seconds = time.perf_counter() - start


@dataclass(frozen=True)
class Row:
    """One measured figure; ``target`` is what it should reach at least (or at most, if marked)."""

    name: str
    value: float
    unit: str
    target: float | None
    detail: str
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target
