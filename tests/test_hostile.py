"""Hostile files, folders and text: one bad row is one failed row, and nothing is led elsewhere."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.conftest import llava, make_picture, make_query  # noqa: F401

import fusevlm
from fusevlm.cli import main
from fusevlm.cli.terminal import printable
from fusevlm.data.images import Refused, load_image, located
from fusevlm.data.tables import read_queries
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models import huggingface
from fusevlm.models.temperatures import constant
from fusevlm.pipeline.bench import read_bench
from fusevlm.store import read_table
from fusevlm.store.generations import read_generations
from fusevlm.store.tables import csv_bytes
from fusevlm.types import Query

# ------------------------------------------------------------------------------------- pictures


def png(width, height, mode="1"):
    import io

    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, format="PNG")
    return buffer.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(touch /tmp/owned) system\n%%EOF\n"
FILES = {
    "wide.png": (png(1_000_000, 1), "one side may be 100 times the other"),
    "tall.png": (png(1, 1_000_000), "one side may be 100 times the other"),
    "bomb.png": (png(20_000, 20_000), "is too large|at most 100 million"),
    "a.eps": (EPS, "is not a picture; expected one of PNG"),
    "eps.png": (EPS, "is not a picture"),
    "a.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a picture"),
    "a.pdf": (b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\n", "is not a picture"),
    "half.png": (png(64, 64, "RGB")[:60], "cannot be read as an image"),
    "empty.png": (b"", "is empty"),
}


@pytest.mark.parametrize("name", FILES)
def test_odd_pictures_are_refused_in_words(tmp_path, name):
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_image(tmp_path / name)
    with pytest.raises(InputError):
        load_image(content)


def test_pipes_devices_and_folders_are_no_pictures(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    begun = time.monotonic()
    for path in (tmp_path / "pipe.png", "/dev/zero", tmp_path):
        with pytest.raises(InputError, match=r"no regular file|directory"):
            load_image(path)
    assert time.monotonic() - begun < 60  # a pipe would take for ever
    with pytest.raises(InputError, match="null byte"):
        load_image("a\0b.png")


def test_a_table_names_pictures_in_its_own_folder(tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    for place in (home, other):
        make_picture(1).save(place / "a.png")
    (home / "link.png").symlink_to(other / "a.png")
    (home / "deep").mkdir()
    names = [
        "a.png",
        "deep/../a.png",
        "../other/a.png",
        str(other / "a.png"),
        "link.png",
        "a\0.png",
    ]
    rows = [{"question": "?", "image": name} for name in names]
    (home / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = [q.images[0] for q in read_queries(home / "q.jsonl")]
    assert [isinstance(image, Refused) for image in found] == [False, False, True, True, True, True]
    with pytest.raises(InputError, match=r"'\.\./other/a\.png' is not read: it lies outside of"):
        load_image(found[2])
    allowed = [q.images[0] for q in read_queries(home / "q.jsonl", outside=True)]
    assert all(load_image(image).size for image in allowed[:5])
    assert located(home, "deep/../a.png") == home / "deep/../a.png"


def test_one_hostile_row_is_one_failed_row(tmp_path, capsys):
    """From the file to the stored row, beside good ones; allowed where the config says so."""
    home = tmp_path / "home"
    home.mkdir()
    for k in range(4):
        make_picture(k).save(home / f"{k}.png")
    make_picture(9).save(tmp_path / "outside.png")
    os.mkfifo(home / "pipe.png")
    (home / "wide.png").write_bytes(png(1_000_000, 1))
    images = ["0.png", "../outside.png", "pipe.png", "wide.png", "1.png", "2.png"]
    words = ["what", "what", "what", "what", "what <image> is", "what </s>"]
    rows = [{"id": str(k), "question": q, "image": i}
            for k, (i, q) in enumerate(zip(images, words, strict=True))]  # fmt: skip
    (home / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (home / "own.toml").write_text(
        "[data]\nsource = 'files'\ntest = 'q.jsonl'\n[sample]\nmodel = 'tiny:llava@1'\nn = 2\n"
        "max_new_tokens = 2\nbatch = 3\n"
    )
    words = ["sample", str(home / "own.toml"), "--run", str(tmp_path / "run")]
    assert main(words) == 3
    found = [g.error for g in read_generations(tmp_path / "run" / "sample")]
    expected = [None, "lies outside of", "no regular file", "one side may be", "holds '<image>'",
                "holds '</s>'"]  # fmt: skip
    for error, part in zip(found, expected, strict=True):
        assert (error is None) == (part is None), error
        assert part is None or part in error
    assert main([*words, "--set", "data.outside=true", "--redo"]) == 1  # data is stale
    again = [*words[:-1], str(tmp_path / "again"), "--set", "data.outside=true"]
    assert main(again) == 3
    errors = [g.error for g in read_generations(tmp_path / "again" / "sample")]
    assert [e is None for e in errors] == [True, True, False, False, False, False]


# ----------------------------------------------------------------------------------------- text


def test_control_characters_are_written_out():
    hostile = "a\x1b[2J\x9b\x07\r\u202eb\ud800\u2028c\td\ne"
    shown = printable(hostile)
    assert shown == "a\\u001b[2J\\u009b\\u0007\\u000d\\u202eb\\ud800\\u2028c\td\ne"
    assert json.loads(printable(json.dumps({"x": "\x1b\u202e\x9b"}, ensure_ascii=False))) == {
        "x": "\x1b\u202e\x9b"
    }


def test_nothing_the_command_says_is_obeyed(tmp_path, capsys):
    """A name with escape codes, in errors, listings and progress."""
    home = tmp_path / "run\x1b]0;owned\x07"
    home.mkdir()
    (home / "own.toml").write_text('name = "x\x1b[31m"\n'.replace("\x1b", "\\u001b"))
    main(["run", str(home / "nothing.toml")])
    main(["ls", str(home)])
    main(["validate", str(home / "own.toml"), "--run", str(home / "r")])
    main(["ask", str(home / "no.png"), "what\x1b[2J"])
    main(["nosuch\x1b[2Jverb"])
    both = "".join(capsys.readouterr())
    assert "\\u001b" in both
    assert not set(both) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}


def test_cells_that_a_spreadsheet_would_run_are_not_run():
    rows = [
        ["=cmd|' /C calc'!A0", "+1+1", "-2", "@SUM(A1)", "\tx", 3.5, -4.0, None, "-5e-3", "a=b"]
    ]
    header, row = csv_bytes(["=h"] + ["x"] * 9, rows).decode().splitlines()
    assert header.startswith("'=h,")
    assert row == "'=cmd|' /C calc'!A0,'+1+1,-2,'@SUM(A1),'\tx,3.5,-4.0,,-5e-3,a=b"


def test_tables_are_read_as_their_formats_have_it(tmp_path):
    (tmp_path / "a.csv").write_bytes(
        'id,question\r\n1,"two\nlines"\r\n2,"a\u2028b\x85c\x0cd"\r\n'.encode()
        + b'3,"say ""hi"", then"\r\n'
    )
    assert read_table(tmp_path / "a.csv") == {
        "id": ["1", "2", "3"],
        "question": ["two\nlines", "a\u2028b\x85c\x0cd", 'say "hi", then'],
    }
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"b": "x\u2028y", "a": 2}\r\n{"c": []}\n')
    assert read_table(tmp_path / "a.jsonl") == {
        "a": [1, 2, None], "b": [None, "x\u2028y", None], "c": [None, None, []],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,a\n1,2\n", "two columns 'a'"),
        ("a.csv", b"a,b\n1,2,3\n", "row 2 has 3 cells for 2 columns"),
        ("a.csv", b'a,b\n"x,2\n', "line 2: unexpected end of data"),
        ("a.csv", b"", "holds no rows"),
        ("a.csv", b"\xff\xfe\x00", "cannot read"),
        ("a.jsonl", b"[1]\n", "line 1: expected an object"),
        ("a.jsonl", b'{"a": ' + b"[" * 100_000 + b"\n", "line 1: not JSON"),
        ("a.jsonl", b"\n\n", "holds no rows"),
        ("a.parquet", b"PAR1 nonsense PAR1", "missing or damaged"),
        ("a.xlsx", b"", "unknown ending"),
    ],
)
def test_broken_tables_are_refused_in_words(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtefactError, match=message):
        read_table(tmp_path / name)


def test_a_pipe_is_no_table_and_no_config(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.parquet", "a.toml"):
        os.mkfifo(tmp_path / name)
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        with pytest.raises(ArtefactError, match="no regular file"):
            read_table(tmp_path / name)
    assert main(["run", str(tmp_path / "a.toml")]) == 1
    assert stat.S_ISFIFO((tmp_path / "a.csv").stat().st_mode)


@pytest.mark.parametrize("name", ["..", ".", "../../x", "/etc", ".hidden", "a/../../b", ""])
def test_a_dataset_cannot_leave_the_folder_of_its_bench(tmp_path, name):
    text = f'[[dataset]]\nname = "{name}"\nsource = "embedded"\n[[model]]\nname = "m"\n'
    (tmp_path / "b.toml").write_text(text)
    from fusevlm.store.files import slug

    if not name:
        with pytest.raises(InputError, match="has no name"):
            read_bench(tmp_path / "b.toml")
        return
    (place,) = read_bench(tmp_path / "b.toml").places
    folder = (tmp_path / "out" / slug(place)).resolve()
    assert folder.parent == (tmp_path / "out").resolve()
    assert not folder.name.startswith(".")
    (tmp_path / "b.toml").write_text(text + text.replace("[[model]]\nname", "#").replace(
        f'"{name}"', f'"{slug(place)}"').replace('= "m"', ""))  # fmt: skip
    if slug(place) != name:
        with pytest.raises(InputError, match="would share the folder"):
            read_bench(tmp_path / "b.toml")


# --------------------------------------------------------------------- memory, threads, processes


def test_memory_that_runs_out_halves_the_batch_and_says_so(llava, monkeypatch, caplog):  # noqa: F811
    queries = [make_query(i) for i in range(7)]
    expected = [g.samples.texts for g in llava.sample(queries, 3, constant(3), 0)]
    real, sizes = huggingface.decode, []

    def short(model, prompts, *given):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(model, prompts, *given)

    monkeypatch.setattr(huggingface, "decode", short)
    try:
        found = list(llava.sample(queries, 3, constant(3), 0))
        assert [g.samples.texts for g in found] == expected
        assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
        assert "out of memory with 7 queries at a time: going on with 3" in caplog.text
        sizes.clear()
        list(llava.sample(queries[:2], 3, constant(3), 0))
        assert sizes == [1, 1]  # it is remembered
        monkeypatch.setattr(huggingface, "decode", lambda *_: (_ for _ in ()).throw(MemoryError()))
        (one,) = llava.sample(queries[:1], 3, constant(3), 0)
        assert one.passing
        assert "out of memory" in one.error
    finally:
        llava._most = None


def test_memory_that_runs_out_while_embedding_halves_the_batch():
    from fusevlm.pipeline.embed import _halving

    said, sizes = [], []

    def make(queries):
        sizes.append(len(queries))
        if len(queries) > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        width = 0 if queries[0].id == "q0" else 3
        return {"id": [q.id for q in queries]}, {"view": np.ones((len(queries), width), np.float32)}

    rows, arrays = _halving(make, [make_query(i) for i in range(5)], said.append)
    assert rows["id"] == [f"q{i}" for i in range(5)]
    assert arrays["view"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 3
    assert sizes == [5, 2, 3, 1, 2]
    assert "going on with 2" in said[0]
    with pytest.raises(RuntimeError, match="a bug"):
        _halving(
            lambda queries: (_ for _ in ()).throw(RuntimeError("a bug")), [make_query(0)], print
        )


def test_one_assistant_for_many_threads():
    """Answers and all numbers are those of one question after the other."""
    assistant = fusevlm.load("embedded")
    from fusevlm.data.questions import queries

    asked = queries("test", limit=12)

    def ask(k):
        found = assistant.ask(asked[k].images[0], asked[k].question, n=5, seed=k)
        return found.answer, found.samples, found.u, found.p_wrong, found.m0, found.novelty

    alone = [ask(k) for k in range(12)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, [*range(12)] * 3))
    assert together == alone * 3


def run_command(words, **options):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "fusevlm.cli", *words], env=env, **options)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    (tmp_path / "s.csv").write_text("u,wrong\n" + "".join(f"{k},{k % 2}\n" for k in range(2000)))
    words = ["threshold", str(tmp_path / "s.csv"), "--rows", "1500"]
    child = run_command(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.readline()
    child.stdout.close()
    with child.stderr:
        err = child.stderr.read().decode()
    assert child.wait(60) == 141
    assert err == ""


def test_a_request_to_end_is_an_interruption(tmp_path):
    words = ["demo", "--limit", "400", "--out", str(tmp_path / "run")]
    child = run_command(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run").glob("sample/part-*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    with child.stderr:
        err = child.stderr.read().decode()
    assert child.wait(60) == 130
    assert "Traceback" not in err
    assert "interrupted; what is done is kept. Go on with: fusevlm demo --limit 400" in err


def test_a_disk_that_is_full_or_closed_is_said(tmp_path, monkeypatch, capsys):
    real = os.open

    def full(path, flags, *mode, **given):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(28, "No space left on device", str(path))
        return real(path, flags, *mode, **given)

    monkeypatch.setattr(os, "open", full)
    assert main(["demo", "--limit", "40", "--out", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["-n", "100000"], ["-n", "1"], ["--seed", "-1"], ["--risk", "7"]]
)
def test_ask_checks_its_numbers(tmp_path, words, capsys):
    make_picture(0).save(tmp_path / "a.png")
    assert main(["ask", str(tmp_path / "a.png"), "what?", *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith("fusevlm ask: ")
    assert "Traceback" not in err


def test_a_query_with_a_refused_picture_is_a_query(llava):  # noqa: F811
    bad = Query("x", "what", [Refused("../x.png", "'../x.png' is not read: it lies outside.")])
    (found,) = llava.sample([bad], 2, constant(2), 0)
    assert "it lies outside" in found.error
    assert not found.passing
