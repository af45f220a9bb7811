"""Commands on a Ray cluster that are watched from outside: their processes, and their ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 400
WORKER, HEADS = "ray::MapWorker", ("gcs_server", "raylet")


def descendants(pid):
    """{pid: its command line} of all processes below one."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                lines[int(entry.name)] = line.decode(errors="replace").strip()
    found, waiting = {}, [pid]
    while waiting:
        above = waiting.pop()
        for own, parent in parents.items():
            if parent == above and own not in found:
                found[own] = lines.get(own, "")
                waiting.append(own)
    return found


class Command:
    """A command in a process of its own."""

    def __init__(self, words, log):
        self.log = log
        self._stream = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fusevlm.cli", *map(str, words)],
            stdout=self._stream,
            stderr=self._stream,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def below(self, name):
        """Its processes of that kind."""
        found = descendants(self.process.pid)
        return sorted(p for p, line in found.items() if _kind(line) == name)

    def wait_for(self, there, what):
        """Until something is there, or AssertionError if the command ends before."""
        end = time.monotonic() + SECONDS
        while not there():
            assert self.process.poll() is None, f"ended before {what}:\n{self.said()}"
            assert time.monotonic() < end, f"no {what}:\n{self.said()}"
            time.sleep(0.05)

    def kill(self, pid):
        """A process that this command started, by its id."""
        assert pid in descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self):
        """The exit code, once it has ended by itself."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end:\n{self.said()}") from None
        finally:
            self._stream.close()

    def said(self):
        return self.log.read_text(errors="replace")


def _kind(line):
    first = line.split(" ")[0]
    return WORKER if line.startswith(WORKER) else Path(first).name if first else ""


def n_parts(run, stage):
    return len(list((run / stage).glob("part-*.json")))
