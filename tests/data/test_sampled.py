"""Tables with samples, and logs of other tools that those tools wrote here."""

import json
from pathlib import Path

import numpy as np
import pytest

from fusevlm.data.sampled import read_sampled
from fusevlm.errors import ArtefactError, InputError
from fusevlm.store.tables import save_parquet

LOGS = Path(__file__).parent / "logs"
ROWS = [
    {"id": "a", "question": "two?", "samples": ["2", "2", "3"], "wrong": 0, "depth": 0.5},
    {"id": "b", "question": "three?", "samples": ["4", "x", "4"], "references": ["3"]},
    {"id": "c", "question": "four?", "samples": ["4", "five"], "references": ["four", "4"],
     "logprobs": [[-0.1], [-0.5, -0.2]]},
    {"id": "d", "question": "five?", "samples": ["5", "6"], "answer": "6", "wrong": True},
]  # fmt: skip


def save(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {n: [row.get(n) for row in rows] for n in names}
        columns["wrong"] = [None if v is None else bool(v) for v in columns["wrong"]]
        save_parquet(path, columns)
    else:
        import csv

        names = dict.fromkeys(name for row in rows for name in row)
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(names))
            writer.writeheader()
            for row in rows:
                cells = {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}
                writer.writerow(cells)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_table_in_any_form_says_the_same(tmp_path, ending):
    found = read_sampled(save(tmp_path / f"t.{ending}", ROWS))
    assert [row.query.id for row in found] == ["a", "b", "c", "d"]
    assert [row.error for row in found] == [""] * 4
    assert [row.wrong for row in found] == [False, True, False, True]
    assert [row.samples.answer for row in found] == ["2", "4", "4", "6"]
    assert [row.samples.answer_is_sample for row in found] == [True, True, True, False]
    assert found[2].samples.answer_logprobs.tolist() == [-0.1]
    assert found[0].samples.token_logprobs is None
    assert found[0].number("depth") == 0.5
    assert np.isnan(found[1].number("depth"))


def test_a_row_that_cannot_be_read_is_an_error_of_its_own(tmp_path):
    bad = [
        {"id": "e", "question": "q", "samples": []},
        {"id": "f", "question": "q", "samples": ["a"], "logprobs": [[0.5]]},
        {"id": "g", "question": "q", "samples": ["a", "b"], "wrong": "maybe"},
        {"id": "h", "question": "q", "samples": ["a", "b"], "wrong": [True]},
        {"id": "i", "question": "q", "samples": ["a"], "logprobs": "x"},
        {"id": "j", "question": "q", "samples": ["a"], "history": 7},
        {"id": "k", "question": "q", "samples": ["a", "b"], "answer": "c", "wrong": [0, 1]},
        {"id": "l", "question": "q", "samples": "['a', 'b']", "wrong": 0},
    ]
    words = ["no samples", "at most 0", "'maybe'", "1 entries for 2", "row 6", "row 7"]
    words += ["the answer 'c' is none of them", "['a', 'b'] is no JSON list"]
    found = read_sampled(save(tmp_path / "t.jsonl", [*ROWS[:1], *bad]))
    assert [bool(row.error) for row in found] == [False] + [True] * len(bad)
    for row, word in zip(found[1:], words, strict=True):
        assert word in row.error


def test_labels_of_each_sample_are_a_json_list_in_csv(tmp_path):
    rows = [{"id": "a", "samples": ["x", "y", "y"], "wrong": [1, 0, 0]}]
    (found,) = read_sampled(save(tmp_path / "t.csv", rows))
    assert (found.samples.answer, found.wrong, found.error) == ("y", False, "")


def test_samples_may_be_objects_with_their_log_probabilities(tmp_path):
    rows = [{"samples": [{"text": "a", "logprobs": [-1.0]}, {"text": "b", "logprobs": [-0.5]}],
             "wrong": [True, False]}]  # fmt: skip
    (found,) = read_sampled(save(tmp_path / "t.jsonl", rows))
    assert (found.samples.answer, found.wrong, found.query.id) == ("b", False, "0")


def test_what_is_no_table_of_samples_is_refused(tmp_path):
    (tmp_path / "q.csv").write_text("question\nwhat?\n")
    with pytest.raises(
        InputError, match=r"no column .samples..*--from inspect or --from lmms-eval"
    ):
        read_sampled(tmp_path / "q.csv")
    with pytest.raises(InputError, match="twice"):
        read_sampled(save(tmp_path / "t.jsonl", [ROWS[0], ROWS[0]]))
    with pytest.raises(InputError, match="--from 'inspct' is not known"):
        read_sampled(tmp_path / "q.csv", form="inspct")
    with pytest.raises(InputError, match=r"^criterion 'exact' is not known\."):
        read_sampled(save(tmp_path / "t.jsonl", ROWS), criterion="exact")


@pytest.mark.parametrize(("ending", "size", "epochs"), [("eval", 12, 4), ("json", 5, 3)])
def test_a_log_that_inspect_wrote(ending, size, epochs):
    """Capitals asked of SmolLM2 behind llama.cpp's server, by inspect_ai 0.3.285."""
    found = read_sampled(LOGS / f"inspect.{ending}", form="inspect")
    assert len(found) == size
    by_name = {row.query.id: row for row in found}
    for name, row in by_name.items():
        assert row.error == ""
        assert len(row.samples) == epochs
        assert name in row.query.question
        assert len(row.query.references) == 1
        assert all(np.max(values) <= 0 for values in row.samples.token_logprobs)
        # inspect's scorer "includes": the target is in the answer
        assert row.wrong == (row.query.references[0].lower() not in row.samples.answer.lower())
    assert any(row.wrong for row in found) or ending == "json"
    assert not all(row.wrong for row in found)


def test_a_log_that_lmms_eval_wrote():
    """12 documents × 5 repeats of the same model, a local task, by lmms-eval 0.7.3."""
    found = read_sampled(LOGS / "lmms_eval_samples.jsonl", form="lmms-eval")
    assert len(found) == 12
    for row in found:
        assert row.error == ""
        assert len(row.samples) == 4
        target = row.query.references[0].lower()
        assert row.wrong == (target not in row.samples.answer.lower())
        assert "capital of" in row.query.question
    assert 0 < sum(row.wrong for row in found) < 12


@pytest.mark.parametrize(
    ("name", "content", "form", "message"),
    [
        ("a.eval", b"no zip", "inspect", "cannot be read as a log"),
        ("a.json", b"[1]", "inspect", "has no samples"),
        ("a.json", b"{", "inspect", "not JSON"),
        ("a.jsonl", b"", "lmms-eval", "holds no samples"),
        ("a.jsonl", b'{"x": 1}', "lmms-eval", "with a doc_id"),
        ("a.jsonl", b'{"doc_id": 0, "filtered_resps": "a"}', "lmms-eval", "take_first_k"),
        ("a.jsonl", b"\xff\xfe", "lmms-eval", "cannot read"),
    ],
)
def test_broken_logs_are_refused_in_words(tmp_path, name, content, form, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtefactError, match=message):
        read_sampled(tmp_path / name, form=form)


def test_a_damaged_entry_of_a_packed_log_is_named(tmp_path):
    whole = bytearray((LOGS / "inspect.eval").read_bytes())
    import zipfile

    with zipfile.ZipFile(LOGS / "inspect.eval") as archive:
        first = next(i for i in archive.infolist() if i.filename.startswith("samples/"))
    for offset in range(60, 90):
        whole[first.header_offset + 60 + offset] ^= 0xFF
    (tmp_path / "a.eval").write_bytes(whole)
    with pytest.raises(ArtefactError, match=first.filename.split("/")[1].split("_")[0]):
        read_sampled(tmp_path / "a.eval", form="inspect")
