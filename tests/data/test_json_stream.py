"""The incremental reader against json.load, at every window size, and on damaged files."""

import gzip
import json
import random

import pytest
from tests.data.official import write

from fusevlm.data import json_stream
from fusevlm.data.json_stream import records
from fusevlm.errors import ArtefactError

AWKWARD = {
    "before": {"rows": [1, 2], "text": 'a "quoted" \\ [bracket'},
    "skipped": [{"x": 1}, [], "]"],
    "rows": [
        0, 12345678901234567890, -1.5e-7, 1e300, True, None, "", "é – 😀 \u2028", "\\\"]},",
        [], {}, {"rows": [[1, [2, {"a": []}]]]}, "x" * 300,
    ],
    "after": -12,
}  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 61, 1000])
@pytest.mark.parametrize("layout", [{}, {"indent": 30}, {"ensure_ascii": False}])
def test_records_are_those_of_json_load_wherever_the_window_ends(
    tmp_path, monkeypatch, chunk, layout
):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    path = write(tmp_path / "a.json", AWKWARD, **layout)
    expected = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert list(records(path, "rows")) == list(enumerate(expected, 1))


def test_gzip_byte_order_mark_and_empty_list(tmp_path):
    packed = write(tmp_path / "a.json.gz", AWKWARD)
    assert [row for _, row in records(packed, "rows")] == AWKWARD["rows"]
    marked = tmp_path / "b.json"
    marked.write_bytes(b"\xef\xbb\xbf" + b' \n{"rows" : [ ] }\n')
    assert list(records(marked, "rows")) == []


def test_the_window_stays_small(tmp_path, monkeypatch):
    """The longest text held is a few chunks, not the file."""
    monkeypatch.setattr(json_stream, "CHUNK", 500)
    held = []
    more = json_stream._Scanner.more
    monkeypatch.setattr(
        json_stream._Scanner, "more", lambda self: (more(self), held.append(len(self.text)))
    )
    path = write(tmp_path / "a.json", {"rows": [{"text": "y" * 80}] * 5000})
    assert sum(1 for _ in records(path, "rows")) == 5000
    assert path.stat().st_size > 400_000
    assert max(held) < 1500


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "at byte 0: expected an object, found 'the end of the file'"),
        ("[1]", "at byte 0: expected an object"),
        ('{"rows": [1, 2', "at byte 14 in record 2 of 'rows': expected ',' or ']'"),
        ('{"rows": [1, 2]', "expected ',' or '}', found 'the end of the file'"),
        ('{"rows": [1 2]}', "at byte 12 in record 1 of 'rows': expected ','"),
        ('{"rows": [1, ]}', "at byte 13 in record 2 of 'rows': Expecting value"),
        ('{"é": 1, "rows": [{"a": tru}, 5]}', "at byte 25 in record 1 of 'rows'"),
        ('{"rows": ["a\nb"]}', "Invalid control character"),
        ('{"rows": ["never closed]}', "Unterminated string"),
        ('{"rows": []} {"rows": []}', "at byte 13: something follows the object"),
        ('{"rows" []}', "expected ':'"),
        ('{"Rows": []}', "has no list 'rows'; its keys are Rows"),
        ("{}", "its keys are none"),
    ],
)
def test_wrong_json_is_named_by_file_byte_and_record(tmp_path, text, what):
    path = write(tmp_path / "wrong.json", text)
    with pytest.raises(ArtefactError) as error:
        list(records(path, "rows"))
    assert str(path) in str(error.value)
    assert what in str(error.value)


def test_an_early_error_does_not_read_the_rest_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    path = write(tmp_path / "wrong.json", '{"rows": [{"a": 1,, "b": 2}, ' + "7," * 10_000)
    held = []
    more = json_stream._Scanner.more
    monkeypatch.setattr(
        json_stream._Scanner, "more", lambda self: (more(self), held.append(len(self.text)))
    )
    with pytest.raises(ArtefactError, match="record 1"):
        list(records(path, "rows"))
    assert sum(held) < 1000


def test_damaged_gzip_and_encoding(tmp_path):
    # digits that do not compress, so that half of the file holds some records
    noise = random.Random(0)
    rows = {"rows": [noise.random() for _ in range(20_000)]}
    whole = gzip.compress(json.dumps(rows).encode(), mtime=0)
    cut, flipped, foreign, latin = (tmp_path / f"{n}.json.gz" for n in ("c", "f", "o", "l"))
    cut.write_bytes(whole[: len(whole) // 2])
    flipped.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])  # the checksum
    foreign.write_bytes(b'{"rows": []}')
    latin.write_bytes(gzip.compress('{"rows": ["é"]}'.encode("latin-1")))
    read = []
    with pytest.raises(ArtefactError, match=r"c\.json\.gz: at byte \d{5,} in record \d{4,} of"):
        read.extend(records(cut, "rows"))
    assert read == list(enumerate(rows["rows"], 1))[: len(read)]
    for path in (flipped, foreign, latin):
        with pytest.raises(ArtefactError, match="the file is damaged"):
            list(records(path, "rows"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArtefactError, match=r"cannot read .*nothing\.json"):
        list(records(tmp_path / "nothing.json", "rows"))
