"""A journal: what was added is there after a kill, and what was damaged is asked for again."""

import multiprocessing
import os
import time
from threading import Thread

import pytest

from fusevlm.errors import ArtefactError
from fusevlm.store.journal import Journal, append_line


def test_what_is_added_is_found_by_the_next(tmp_path):
    journal = Journal(tmp_path / "deep" / "calls.jsonl")
    assert journal.find("a") is None
    assert not journal.path.exists()  # nothing is written before there is something
    journal.add("a", {"text": "caf\u00e9\n\ud83d", "numbers": [1.5, None]})
    journal.add("b", 2)
    journal.add("a", 3)
    assert (journal.find("a"), len(journal)) == (3, 2)
    again = Journal(journal.path)
    assert (again.find("a"), again.find("b"), len(again)) == (3, 2, 2)
    again.remove()
    assert not journal.path.exists()
    assert Journal(journal.path).find("b") is None


def test_a_line_that_was_cut_off_or_damaged_is_passed_over(tmp_path):
    path = tmp_path / "calls.jsonl"
    journal = Journal(path)
    for k in range(4):
        journal.add(f"k{k}", k)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for size in range(len(whole) - len(lines[-1]), len(whole) - 1):
        path.write_bytes(whole[:size])
        cut = Journal(path)
        assert [cut.find(f"k{k}") for k in range(4)] == [0, 1, 2, None]
        cut.add("new", 7)  # begins a line of its own
        assert [Journal(path).find(k) for k in ("k2", "new")] == [2, 7]
    spoilt = bytearray(whole)
    spoilt[len(lines[0]) + 14] ^= 1
    path.write_bytes(spoilt)
    found = Journal(path)
    assert [found.find(f"k{k}") for k in range(4)] == [0, None, 2, 3]
    for other in (b"k9", b"k1"):  # still JSON, but not what was written
        path.write_bytes(whole.replace(b'["k0"', b'["' + other + b'"'))
        found = Journal(path)
        assert [found.find(k) for k in ("k0", "k9", "k1")] == [None, None, 1]
    path.write_bytes(b"\xff\x00 nonsense\n00000000 \n" + whole)
    assert len(Journal(path)) == 4


def test_many_threads_lose_nothing(tmp_path):
    journal = Journal(tmp_path / "calls.jsonl")

    def work(name):
        for k in range(50):
            journal.add(f"{name}{k}", k)

    threads = [Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Journal(journal.path)) == 200


def _adds(path, counted):
    journal = Journal(path)
    for k in range(100_000):
        journal.add(f"k{k}", k)
        counted.value = k + 1  # told to the parent only after it is on disk


def test_a_kill_loses_nothing_that_was_added(tmp_path):
    context = multiprocessing.get_context("fork")
    for delay in (0.0, 0.01, 0.03):
        path = tmp_path / f"{delay}.jsonl"
        counted = context.Value("q", 0)
        child = context.Process(target=_adds, args=(path, counted))
        child.start()
        while counted.value < 5:
            time.sleep(0.001)
        time.sleep(delay)
        child.kill()
        child.join()
        found = Journal(path)
        assert len(found) >= counted.value
        assert all(found.find(f"k{k}") == k for k in range(counted.value))


def test_a_link_is_not_followed_and_a_full_disk_is_said(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "calls.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(ArtefactError, match="cannot write to"):
        Journal(tmp_path / "calls.jsonl").add("a", 1)
    assert (tmp_path / "victim").read_text() == "mine"

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtefactError, match=r"No space left on device\. What was answered before"):
        Journal(tmp_path / "other.jsonl").add("a", 1)


def test_a_disk_that_takes_half_a_line_takes_none(tmp_path, monkeypatch):
    """A write to a disk that is nearly full is cut short without an error; the next one has it."""
    path, write = tmp_path / "told.jsonl", os.write
    append_line(path, b"first\n")

    def slow(handle, data):
        return write(handle, data[:2])

    def full(handle, data):
        if path.stat().st_size > len("first\n"):
            raise OSError(28, "No space left on device")
        return slow(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtefactError, match="No space left on device"):
        append_line(path, b"second\n")
    monkeypatch.setattr(os, "write", slow)
    append_line(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
