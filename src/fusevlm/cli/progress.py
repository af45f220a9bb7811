"""A progress line on standard error: done, rate, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def progress_line(what: str, *, quiet: bool) -> Callable[[int, int], None]:
    """A callback (done, total) that rewrites one line; silent when ``quiet``."""
    if quiet:
        return lambda done, total: None
    start = time.monotonic()
    first: list[int] = []

    def show(done: int, total: int) -> None:
        if not first:
            first.append(done)  # what an earlier run did says nothing of this one's speed
        seconds = time.monotonic() - start
        rate = (done - first[0]) / seconds if seconds > 0 else 0.0
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "…"
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{what} {done}/{total}  {rate:.2f}/s  {left}   {end}")
        sys.stderr.flush()

    return show
