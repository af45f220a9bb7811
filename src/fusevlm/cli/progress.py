"""A progress line on standard error: done, rate, time left."""

from __future__ import annotations

import sys
import time
from typing import Protocol

INTERVAL = 0.2  # seconds between two looks


class Show(Protocol):
    """What a long piece of work calls after each step."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def progress_line(what: str, *, quiet: bool) -> Show:
    """A callback (done, total, note) that rewrites one line; silent when ``quiet``."""
    if quiet:
        return lambda done, total, note="": None
    begun: list[tuple[int, float]] = []
    shown = [0.0]

    def show(done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if not begun:
            begun.append((done, now))  # what an earlier run did says nothing of this one's speed
        if done < total and now - shown[0] < INTERVAL:
            return
        shown[0] = now
        first, start = begun[0]
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "…"
        end = "\n" if done >= total else ""
        told = f"  {note}" if note else ""
        sys.stderr.write(f"\r{what} {done}/{total}{told}  {rate:.2f}/s  {left}   {end}")
        sys.stderr.flush()

    return show
