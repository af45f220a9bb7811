"""Folders that somebody sent: whatever is in them, nothing outside of them is changed.

Beside each lies a tree that no command may touch: its bytes, times and modes are compared after
every command. Links, second names, pipes, devices, folders in the place of files and files in the
place of folders, names that lead elsewhere or are no text.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.safety.small import results
from tests.safety.test_kills import scorer_of, table

from fusevlm.cli import main
from fusevlm.pipeline.semantics import CACHE
from fusevlm.store.files import checksum, read_sealed, save_sealed

pytestmark = pytest.mark.slow
PATIENCE = 120  # seconds for one command
DONE, FAILED, PARTIAL = 0, 1, 3


def snapshot(tree):
    """Everything in a tree but its own second names: kind, mode, size, time, bytes."""
    found = {}
    for folder, names, files in os.walk(tree):
        for name in [*names, *files, "."]:
            path = os.path.join(folder, name)
            known = os.lstat(path)
            content = None
            if stat.S_ISREG(known.st_mode):
                with open(path, "rb") as stream:
                    content = stream.read()
            found[path] = (known.st_mode, known.st_mtime_ns, content)
    return found


@contextlib.contextmanager
def no_longer_than(seconds):
    def stop(*_):
        raise AssertionError(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def canary(whole, tmp_path):
    """A tree that must stay as it is; in it also a run of somebody's, and what looks like ours."""
    home = tmp_path / "canary"
    (home / "00000001").mkdir(parents=True)
    (home / "deep").mkdir()
    for name in ("thesis.tex", "deep/notes.txt", "part-00000.parquet", "part-00000.json",
                 "index.html", "fuse.json", "00000001/checkpoint.json"):  # fmt: skip
        (home / name).write_text("years of work")
    file = sqlite3.connect(home / "books.sqlite")
    with file:
        file.execute("CREATE TABLE books (title TEXT)")
    file.close()
    shutil.copytree(whole.run / "evaluate", home / "run" / "evaluate.old-1")
    shutil.copy(whole.run / "run.json", home / "run")
    return home


def link(run, name, target):
    """A link in the place of what is there."""
    gone(run / name)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(target)


def gone(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def second_name(run, name, target):
    gone(run / name)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    os.link(target, run / name)


def folder_at(run, name):
    gone(run / name)
    (run / name).mkdir()
    (run / name / "inner").write_text("x")


def pipe_at(run, name):
    gone(run / name)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(run / name)


def device_at(run, name):
    """/dev/zero's numbers, where that is allowed; else a pipe."""
    gone(run / name)
    try:
        os.mknod(run / name, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(run / name)


def told(run, name, **changes):
    """A sealed note that says something else."""
    save_sealed(run / name, {**read_sealed(run / name, ""), **changes})


def object_told(run, name, **changes):
    head = {k: v for k, v in json.loads((run / name).read_text()).items() if k != "sha256"}
    head |= changes
    (run / name).write_text(json.dumps({**head, "sha256": checksum(head)}))


def odd_name(run, name):
    with open(os.fsencode(run / "score") + b"/" + name, "wb") as stream:
        stream.write(b"x")


def read_only(run):
    for folder in (run / "score", run / "report", run):
        folder.chmod(0o555)


# name: (the stage that is made again, what is done to the run)
RUNS = {
    # links
    "run.json is a link": ("report", lambda r, c: link(r, "run.json", c / "run/run.json")),
    ".lock is a link": ("report", lambda r, c: link(r, ".lock", c / "thesis.tex")),
    ".lock is a dangling link": ("report", lambda r, c: link(r, ".lock", c / "new")),
    "data is a link": ("data", lambda r, c: link(r, "data", c)),
    "sample is a link": ("sample", lambda r, c: link(r, "sample", c)),
    "calibrate is a link": ("calibrate", lambda r, c: link(r, "calibrate", c)),
    "report is a link": ("report", lambda r, c: link(r, "report", c)),
    "report is a dangling link": ("report", lambda r, c: link(r, "report", c / "new")),
    "score is a loop": ("score", lambda r, c: link(r, "score", r / "score")),
    "stage.json is a link": (
        "score", lambda r, c: link(r, "score/stage.json", c / "thesis.tex")),
    "a part is a link": (
        "score", lambda r, c: link(r, "sample/part-00001.parquet", c / "part-00000.parquet")),
    "a part's note is a link": (
        "score", lambda r, c: link(r, "sample/part-00001.json", c / "part-00000.json")),
    "an unfinished part is a link": (
        "sample", lambda r, c: link(r, "sample/part-00099.parquet", c / "part-00000.parquet")),
    "the page is a link": ("report", lambda r, c: link(r, "report/index.html", c / "index.html")),
    "a plot is a dangling link": ("report", lambda r, c: link(r, "report/roc.svg", c / "new")),
    "a temporary name is a link": (
        "report", lambda r, c: link(r, "report/.index.html.0a1b2c3d.tmp", c / "thesis.tex")),
    "results are a loop": (
        "report", lambda r, c: link(r, "evaluate/results.json", "results.json")),
    "a stage set aside is a link": ("report", lambda r, c: link(r, "data.old-1", c)),
    "a damaged part is a link": (
        "report", lambda r, c: link(r, "sample/part-00001.json.damaged", c / "thesis.tex")),
    "a fit is a link": ("evaluate", lambda r, c: link(r, "calibrate/practical", c)),
    "the cache is a link": ("semantics", lambda r, c: link(r, str(CACHE.parent), c)),
    "the pictures are a link": ("report", lambda r, c: link(r, "data/images", c)),
    "checkpoints are a link": ("train", lambda r, c: link(r, "train/model/checkpoints", c)),
    # second names
    ".lock has a second name": ("report", lambda r, c: second_name(r, ".lock", c / "thesis.tex")),
    "run.json has a second name": (
        "report", lambda r, c: second_name(r, "run.json", c / "run/run.json")),
    "the page has a second name": (
        "report", lambda r, c: second_name(r, "report/index.html", c / "index.html")),
    "a part has a second name": (
        "sample", lambda r, c: second_name(r, "sample/part-00077.json", c / "part-00000.json")),
    # pipes, devices, folders
    "run.json is a pipe": ("report", lambda r, c: pipe_at(r, "run.json")),
    ".lock is a pipe": ("report", lambda r, c: pipe_at(r, ".lock")),
    "stage.json is a pipe": ("report", lambda r, c: pipe_at(r, "evaluate/stage.json")),
    "a part is a pipe": ("score", lambda r, c: pipe_at(r, "sample/part-00001.parquet")),
    "a part's note is a pipe": ("score", lambda r, c: pipe_at(r, "sample/part-00001.json")),
    "results are a device": ("report", lambda r, c: device_at(r, "evaluate/results.json")),
    "arrays are a device": ("score", lambda r, c: device_at(r, "embed/part-00002.safetensors")),
    ".lock is a folder": ("report", lambda r, c: folder_at(r, ".lock")),
    "the page is a folder": ("report", lambda r, c: folder_at(r, "report/index.html")),
    "a part is a folder": ("score", lambda r, c: folder_at(r, "sample/part-00001.json")),
    "a stage is a pipe": ("score", lambda r, c: pipe_at(r, "score")),
    # names in files
    "a manifest of another folder": (
        "score", lambda r, c: told(r, "score/stage.json", stage="../../canary")),
    "files of other folders": (
        "score", lambda r, c: told(r, "score/stage.json", files={"../../canary/thesis.tex": "0"})),
    "a part elsewhere": (
        "sample", lambda r, c: told(r, "sample/part-00001.json", version="/../../../canary/x")),
    "a part of a large number": (
        "sample", lambda r, c: told(r, "sample/part-00001.json", index=10**30)),
    "arrays elsewhere": (
        "evaluate",
        lambda r, c: object_told(r, "calibrate/practical/fuse.json",
                                 arrays="../../../canary/thesis.tex")),
    "a name that leads elsewhere": (
        "report", lambda r, c: told(r, "run.json", config={"name": "../../canary"})),
    # odd names
    "names that are no text": ("score", lambda r, c: odd_name(r, b"\xff\xfe.json")),
    "a long name": ("score", lambda r, c: odd_name(r, b"part-" + b"x" * 245 + b".json")),
    "a name with a line break": ("score", lambda r, c: odd_name(r, b"part-\n0.json")),
    "a folder that cannot be written": ("report", lambda r, c: read_only(r)),
}  # fmt: skip


def obey(words, canary, before):
    """Give a command; the exit code is one of ours, and nothing outside has changed."""
    with no_longer_than(PATIENCE):
        code = main([*words, "--quiet"])
    assert code in (DONE, FAILED, PARTIAL), (words, code)
    assert snapshot(canary) == before, words
    return code


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_sent(whole, canary, tmp_path, name, tally):
    stage, spoil = RUNS[name]
    run = tmp_path / "inbox" / "run"
    shutil.copytree(whole.run, run)
    spoil(run, canary)
    before, codes = snapshot(canary), []
    try:
        for words in (["run", run], ["run", run, "--redo", stage], ["report", run, "--redo"],
                      ["verify", run], ["verify", run, "--repair"], ["run", run],
                      ["clean", run, "--yes"], ["ls", run.parent], ["clean", run.parent, "--yes"],
                      ["ask", whole.picture, "what?", "-n", "2", "--model", run]):  # fmt: skip
            codes.append(obey([str(word) for word in words], canary, before))
    finally:
        for folder in (run, run / "score", run / "report"):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o755)
    if codes[5] == DONE:  # made good: then it is the run it was
        found = results(run)
        assert [n for n in whole.results if found.get(n) != whole.results[n]] == []
    shown = "".join("·" if code in (DONE, PARTIAL) else "✗" for code in codes)
    tally(f"{name:34s} {shown}  0 bytes changed outside")


# ---------------------------------------------------------------------------------------- outputs


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A table, a fit, pairs, an adapter's config and a picture: what the commands are given."""
    home = tmp_path_factory.mktemp("things")
    scorer_of(table(home / "a.jsonl", 1), "strings").save(home / "fit")
    rows = np.random.default_rng(0).standard_normal((2, 30, 6))
    np.save(home / "pairs.npy", rows / np.linalg.norm(rows, axis=2, keepdims=True))
    (home / "q.jsonl").write_text('{"question": "what shape?"}')
    (home / "bench.toml").write_text(
        '[[dataset]]\nname = "d"\nsource = "embedded"\nn_calibration = 40\nn_test = 20\n'
        '[[model]]\nname = "m"\n[sample]\nn = 2\n[score]\nbaselines = ["g_nll"]\n'
        '[calibrate]\nmethods = ["g_nll"]\n[evaluate]\nbootstrap = 2\n'
        '[report]\nfigures = ["roc"]\npdf = false\n'
    )
    (home / "away.toml").write_text('name = "../canary"\n[data]\nn_calibration = 4\nn_test = 4\n')
    return home


TRAIN = ("--inducing", "5", "--latent", "2", "--steps", "6", "--checkpoint-every", "2", "--fresh")


def outputs(things, out):
    """name: (words, what is put into the folder ``out`` before)."""
    fit = ["fit", things / "a.jsonl", "--towers", "none", "--out", out]
    train = ["adapter", "train", things / "pairs.npy", *TRAIN, "--out", out]
    bench = ["bench", things / "bench.toml", "--out", out]
    rows = ["apply", things / "fit", things / "a.jsonl", "--out", out / "x.csv"]
    ask = ["ask", "--table", things / "q.jsonl", "--out", out / "x.jsonl", "-n", "2"]
    return {
        "fit: manifest is a link": (fit, lambda c: link(out, "scorer.json", c / "fuse.json")),
        "fit: a second name": (fit, lambda c: second_name(out, "scorer.json", c / "fuse.json")),
        "fit: its Fuse is a link": (fit, lambda c: link(out, "fuse-0a1b2c3d4e5f", c)),
        "fit: half saved, a link": (fit, lambda c: link(out, ".fuse.0a1b2c3d.tmp", c)),
        "train: adapter is a link": (train, lambda c: link(out, "adapter.json", c / "fuse.json")),
        "train: checkpoints are a link": (train, lambda c: link(out, "checkpoints", c)),
        "train: a checkpoint is a link": (train, lambda c: link(out, "checkpoints/00000002", c)),
        "bench: a place is a link": (bench, lambda c: link(out, "d", c)),
        "bench: results are a link": (bench, lambda c: link(out, "results.json", c / "fuse.json")),
        "bench: a place has links": (bench, lambda c: link(out, "d/report", c)),
        "apply: a link": (rows, lambda c: link(out, "x.csv", c / "thesis.tex")),
        "apply: a second name": (rows, lambda c: second_name(out, "x.csv", c / "thesis.tex")),
        "apply: a pipe": (rows, lambda c: pipe_at(out, "x.csv")),
        "ask: a link": (ask, lambda c: link(out, "x.jsonl", c / "thesis.tex")),
        "ask: a dangling link": (ask, lambda c: link(out, "x.jsonl", c / "new")),
        "run: a name that leads elsewhere": (
            ["run", things / "away.toml", "--only", "data"], lambda c: None),
    }  # fmt: skip


@pytest.mark.parametrize("name", outputs(Path(), Path()))
def test_a_folder_to_write_to(things, canary, tmp_path, name, tally, monkeypatch):
    out = tmp_path / "inbox" / "out"
    out.mkdir(parents=True)
    words, spoil = outputs(things, out)[name]
    spoil(canary)
    monkeypatch.chdir(tmp_path / "inbox")
    before = snapshot(canary)
    codes = [obey([str(word) for word in words], canary, before) for _ in range(2)]
    shown = "".join("·" if code in (DONE, PARTIAL) else "✗" for code in codes)
    tally(f"{name:34s} {shown}  0 bytes changed outside")


def test_a_cache_is_nobody_elses(canary, tmp_path):
    """SQLite writes in place: not through a link, and not to a file with a second name."""
    from fusevlm.errors import ArtefactError
    from fusevlm.store.cache import PairCache
    from fusevlm.store.journal import Journal

    def write(name):
        if name == "calls.jsonl":
            Journal(tmp_path / name).add("key", 1)
        else:
            PairCache(tmp_path / "pairs.sqlite").add("m", {("a", "b"): np.ones(3) / 3})

    before = snapshot(canary)
    for spoil in (link, second_name):
        for name in ("pairs.sqlite", "pairs.sqlite-journal", "calls.jsonl"):
            spoil(tmp_path, name, canary / "books.sqlite")
            with pytest.raises(ArtefactError):
                write(name)
            gone(tmp_path / name)
            gone(tmp_path / "pairs.sqlite")
    assert snapshot(canary) == before
