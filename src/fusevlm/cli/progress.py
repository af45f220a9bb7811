"""The one progress reporter: done, rate, time left, on standard error."""

from __future__ import annotations

import sys
import time
from typing import Protocol

INTERVAL = 0.2  # seconds between two looks on a terminal
SHARE = 0.1  # of the work between two lines in a file
PAUSE = 0.5  # seconds between two of them, at least


class Show(Protocol):
    """Says how far some work is; ``note`` is anything worth adding, such as a loss."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def progress_line(what: str, *, quiet: bool) -> Show:
    """A line on a terminal that is rewritten; nothing if quiet.

    In a file a line every tenth, and none for what is done in no time.
    """
    if quiet:
        return lambda done, total, note="": None
    begun: list[tuple[int, float]] = []
    last = [-1.0, 0.0]  # share of the work and time when last shown

    def show(done: int, total: int, note: str = "") -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if not begun:
            begun.append((done, now))  # what an earlier run did says nothing of this one's speed
        share = done / total if total else 1.0
        soon = now - last[1] < (INTERVAL if terminal else PAUSE)
        wait = soon if terminal else soon or share - last[0] < SHARE
        if done < total and wait:
            return
        last[:] = share, now
        first, start = begun[0]
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "…"
        line = "  ".join([f"{what} {done}/{total}", f"{rate:.2f}/s", left, *([note] * bool(note))])
        end = "\n" if done >= total or not terminal else ""
        sys.stderr.write(f"\r{line:<60}{end}" if terminal else f"{line}{end}")
        sys.stderr.flush()

    return show
