"""How far the work is: lines in a file, one rewritten line on a terminal."""

import io
import logging
from types import SimpleNamespace

import pytest

from fusevlm.cli import progress
from fusevlm.cli.progress import progress_line
from fusevlm.cli.terminal import Once


class Screen(io.StringIO):
    def __init__(self, *, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def ticks(monkeypatch):
    """A clock that a test moves, of this module alone: a server of other tests may be running."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def shown(monkeypatch, ticks, *, terminal, total=1000, first=0, seconds=0.01, quiet=False):
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    line = progress_line("sample", quiet=quiet)
    for done in range(first, total + 1):
        line(done, total)
        ticks[0] += seconds
    return screen.getvalue()


def test_a_file_gets_whole_lines_every_tenth_and_no_carriage_returns(monkeypatch, ticks):
    text = shown(monkeypatch, ticks, terminal=False)
    assert "\r" not in text
    assert text.endswith("\n")
    lines = text.splitlines()
    done = [int(line.split()[1].removesuffix("/1000")) for line in lines]
    assert done == pytest.approx(range(0, 1001, 100), abs=9)
    assert (done[0], done[-1]) == (0, 1000)
    assert lines[5].split("  ")[1:] == ["100.00/s", "5 s left"]
    assert all(line == line.rstrip() for line in lines)


def test_a_file_hears_little_of_what_is_done_in_no_time(monkeypatch, ticks):
    lines = shown(monkeypatch, ticks, terminal=False, seconds=0.0001).splitlines()
    assert [line.split()[1] for line in lines] == ["0/1000", "1000/1000"]


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch, ticks):
    text = shown(monkeypatch, ticks, terminal=True)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    looks = text.split("\r")[1:]
    assert len(looks) == pytest.approx(10.0 / progress.INTERVAL, abs=2)  # not one per query
    assert looks[-1].startswith("sample 1000/1000")
    assert len({len(look.rstrip("\n")) for look in looks}) == 1  # nothing of a longer line stays


def test_quiet_says_nothing(monkeypatch, ticks):
    assert shown(monkeypatch, ticks, terminal=True, quiet=True) == ""


def test_what_an_earlier_run_did_is_no_part_of_the_rate(monkeypatch, ticks):
    lines = shown(monkeypatch, ticks, terminal=False, first=800).splitlines()
    assert lines[0] == "sample 800/1000  0.00/s  …"
    assert lines[1].endswith("/1000  100.00/s  1 s left")


def test_a_note_is_added_and_nothing_to_do_is_done(monkeypatch, ticks):
    screen = Screen(terminal=False)
    monkeypatch.setattr("sys.stderr", screen)
    progress_line("step", quiet=False)(0, 0, note="bound 1.5")
    assert screen.getvalue() == "step 0/0  0.00/s  …  bound 1.5\n"


def test_the_command_says_a_warning_once(capsys):
    handler = logging.StreamHandler()
    handler.addFilter(Once())
    log = logging.getLogger("fusevlm.of_this_test")
    log.addHandler(handler)
    for number in (1, 1, 2, 1):
        log.warning("nothing is certified at risk %d", number)
    log.removeHandler(handler)
    assert capsys.readouterr().err.splitlines() == [
        "nothing is certified at risk 1", "nothing is certified at risk 2",
    ]  # fmt: skip
