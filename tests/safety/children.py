"""Commands in processes of their own that are killed, or meet a full disk, at a chosen moment.

They are forked from one that has loaded everything heavy and started no thread, so that each costs
what its command does. A moment is counted in what the command does to files below a folder: every
opening for writing, renaming, making and removing is an event (:func:`sys.addaudithook`), and the
process is told before it happens.
"""

import contextlib
import errno
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
TOUCHING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link",
            "os.symlink", "sqlite3.connect")  # fmt: skip
KILL, TERM, TIMED, FULL = "kill", "term", "timed", "full"
SECONDS = 300


@dataclass(frozen=True)
class Moment:
    """When something happens to a command, and what.

    at      the number of the event, from 0 on; a later one where the process has fewer there
    within  events count whose path holds this, and once one did all that follow
    kind    KILL at the event; TERM, a request to end; TIMED, a kill ``delay`` seconds after it;
            FULL, from the event on nothing new can be made for ``times`` events: the disk is full
    """

    at: int
    within: str = ""
    kind: str = KILL
    delay: float = 0.0
    times: int = 1


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the signal; what it said; its events; MB."""

    code: int
    said: str
    events: list[str]
    peak: float  # of memory; 0 of one that was killed


def run_child(
    words: Sequence[str] | Callable[[], Any], home: Path, moment: Moment | None = None
) -> Ended:
    """Run a command (or call a function) whose events below ``home`` are counted."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.safety.warm"])
    log = home.parent / f"{home.name}.said"
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(words, str(home), moment, log, theirs))
    child.start()
    theirs.close()
    events: list[str] = []
    peak = 0.0
    begun = time.monotonic()
    with contextlib.suppress(EOFError):
        while (left := SECONDS - (time.monotonic() - begun)) > 0 and ours.poll(left):
            told = ours.recv()
            if told is None:  # the moment to wait for
                time.sleep(moment.delay if moment else 0.0)
                child.kill()
            else:
                events, peak = told
    child.join(max(0.0, SECONDS - (time.monotonic() - begun)))
    if child.is_alive():
        child.kill()
        raise AssertionError(f"{words} did not end within {SECONDS} s:\n{log.read_text()}")
    ours.close()
    return Ended(int(child.exitcode or 0), log.read_text(), events, peak)


def _child(words: Any, home: str, moment: Moment | None, log: Path, pipe: Any) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    events: list[str] = []
    sys.addaudithook(_Watch(home, moment, events, pipe))
    try:
        if callable(words):
            words()
            code = 0
        else:
            from fusevlm.cli import main

            code = main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send((events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    os._exit(code)


class _Watch:
    """Counts events, and brings about what is to happen."""

    def __init__(self, home: str, moment: Moment | None, events: list[str], pipe: Any) -> None:
        self.home, self.moment, self.events, self.pipe = home, moment, events, pipe
        self.count = -1
        self.over = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        path = self.path(event, args)
        if path is None or self.over:
            return
        self.events.append(f"{event} {path}")
        if self.moment is None:
            return
        if self.count >= 0 or self.moment.within in path:
            self.count += 1
        if self.count >= self.moment.at:
            self.happen(event, path)

    def path(self, event: str, args: tuple[Any, ...]) -> str | None:
        """What is touched, as seen from the folder; None if that is not our business."""
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & WRITES:
                return None
        elif event in TOUCHING:
            path = args[0]
        else:
            return None
        if isinstance(path, bytes | os.PathLike):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return None
        inside = path.startswith(self.home)
        relative = not path.startswith("/") and event != "open"  # of rmtree, by its folder
        return path.removeprefix(self.home) if inside or relative else None

    def happen(self, event: str, path: str) -> None:
        assert self.moment is not None
        if self.moment.kind == FULL:
            making = event in ("open", "os.mkdir", "sqlite3.connect")  # what else needs no room
            if making and self.count < self.moment.at + self.moment.times:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return
        self.over = True
        if self.moment.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.moment.kind == TERM:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.pipe.send(None)
