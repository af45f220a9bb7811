"""Datasets opened from a configuration, and from the hub's layout."""

import json
import sys
from types import SimpleNamespace

import pytest
from tests.data.official import annotation, question, wrapped, write, write_image

from fusevlm.data.catalogue import open_dataset
from fusevlm.data.hub import read_hub
from fusevlm.errors import ArtefactError, InputError, MissingExtraError

FILES = {
    "vqav2": ("v2_OpenEnded_mscoco_val2014_questions.json", "v2_mscoco_val2014_annotations.json"),
    "okvqa": ("OpenEnded_mscoco_val2014_questions.json", "mscoco_val2014_annotations.json"),
    "advqa": (
        "v1_OpenEnded_mscoco_val2017_advqa_questions.json",
        "v1_mscoco_val2017_advqa_annotations.json",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_official_folders_open_by_name(tmp_path, kind):
    questions, annotations = FILES[kind]
    write(tmp_path / questions, wrapped("questions", [question(1000), question(2000)]))
    write(tmp_path / f"{annotations}.gz", wrapped("annotations", [annotation(1000)]))
    write_image(tmp_path / "val2014", "COCO_val2014_000000000001.jpg")
    reading = open_dataset({"kind": kind, "folder": str(tmp_path), "strict": False})
    (query,) = reading
    assert (query.id, query.metadata["dataset"]) == ("1000", kind)
    assert query.images[0].name == "COCO_val2014_000000000001.jpg"
    assert reading.problems.counts == {"question without annotation": 1}


def test_a_split_without_answers_has_to_be_meant(tmp_path):
    write(
        tmp_path / "v2_OpenEnded_mscoco_test-dev2015_questions.json",
        wrapped("questions", [question(1000), question(2000)]),
    )
    for key in (1, 2):
        write_image(tmp_path / "other", f"COCO_test2015_{key:012d}.jpg")
    config = {"kind": "vqav2", "folder": tmp_path, "split": "test-dev", "limit": 1}
    with pytest.raises(InputError, match="'test-dev' of vqav2 has no public answers"):
        open_dataset(config)
    (query,) = open_dataset(config | {"answers": False, "images": tmp_path / "other"})
    assert (query.id, tuple(query.references)) == ("1000", ())


def test_own_tables_open_as_file(tmp_path):
    path = write(tmp_path / "mine.jsonl", '{"question": "What?", "references": ["a", "b"]}\n')
    (query,) = open_dataset({"kind": "file", "path": path})
    assert (query.question, query.references) == ("What?", ("a", "b"))


def test_a_table_without_questions_names_the_nearest_column(tmp_path):
    path = write(tmp_path / "mine.jsonl", '{"qustion": "What?", "references": ["a"]}\n')
    with pytest.raises(InputError, match=r"no column 'question'\. Did you mean 'qustion'"):
        open_dataset({"kind": "file", "path": path})
    with pytest.raises(InputError, match="limit is 0"):
        open_dataset({"kind": "file", "path": write(path, '{"question": "?"}\n'), "limit": 0})


def test_mistakes_in_the_configuration_are_named(tmp_path):
    with pytest.raises(InputError, match="no 'kind'; expected one of vqav2, okvqa"):
        open_dataset({})
    with pytest.raises(
        InputError, match=r"kind of dataset 'vqa2' is not known\. Did you mean 'vqav2'"
    ):
        open_dataset({"kind": "vqa2"})
    with pytest.raises(InputError, match=r"setting of a okvqa dataset 'spilt'.*mean 'split'"):
        open_dataset({"kind": "okvqa", "folder": tmp_path, "spilt": "val"})
    with pytest.raises(InputError, match="okvqa dataset needs 'folder'; got kind"):
        open_dataset({"kind": "okvqa"})
    with pytest.raises(ArtefactError, match=r"holds neither mscoco_val2014_annotations\.json nor"):
        open_dataset({"kind": "okvqa", "folder": tmp_path})


# -- the hub

ROWS = [
    {"qid": 5, "question": "What?", "picture": "a.png", "labels": [{"answer": "cat"}], "n": 1},
    {"qid": 6, "question": "Who?", "picture": ["b.png", "c.png"], "labels": ["x", "y"], "n": 2},
    {"qid": 6, "question": "Again?", "picture": None, "labels": "z", "n": 3},
    {"qid": 7, "question": None, "picture": None, "labels": None, "n": 4},
    {"qid": 8, "question": "Numbers?", "picture": None, "labels": [3], "n": 5},
    {"qid": 9, "question": "Last?", "picture": None, "labels": "z", "n": 6},
]
COLUMNS = {"id": "qid", "image": "picture", "references": "labels"}


@pytest.fixture
def stand_in(monkeypatch):
    """In place of the library: records the calls, gives the rows."""
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return iter(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_rows_become_queries(stand_in):
    config = {"kind": "hub", "name": "some/set", "split": "val", "columns": COLUMNS}
    reading = open_dataset(config | {"strict": False})
    assert [(q.id, q.references, q.images, q.metadata) for q in reading] == [
        ("5", ("cat",), ("a.png",), {"n": 1}),
        ("6", ("x", "y"), ("b.png", "c.png"), {"n": 2}),
        ("9", ("z",), (), {"n": 6}),
    ]
    assert stand_in == [(("some/set",), {"split": "val", "streaming": True})]
    assert reading.problems.counts == {"unreadable row": 3}
    for said, told in zip(
        ("row 3: the id '6' occurs", "row 4: query '7'", "row 5: references are [3]"),
        reading.problems.first,
        strict=True,
    ):
        assert f"some/set (val), {said}" in told


def test_rows_without_id_are_numbered(stand_in):
    found = list(read_hub("some/set", "val", limit=2))
    assert [(q.id, q.metadata["qid"]) for q in found] == [("1", 5), ("2", 6)]


def test_wrong_columns_are_named(stand_in):
    with pytest.raises(InputError, match=r"no column 'text'\. Known are: qid, question"):
        next(read_hub("some/set", "val", columns={"question": "text"}))
    with pytest.raises(
        InputError, match=r"'answer' is not known\. Known are: id, question, image, references"
    ):
        read_hub("some/set", "val", columns={"answer": "labels"})


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"fusevlm\[hub\]"):
        read_hub("some/set", "val")


def test_a_local_folder_in_the_layout_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the extra hub is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lines = [json.dumps({"question": f"q{i}", "references": [f"a{i}"]}) for i in range(3)]
    write(tmp_path / "train.jsonl", "\n".join(lines))
    found = list(read_hub(str(tmp_path), "train", limit=2))
    assert [(q.id, q.question, q.references) for q in found] == [
        ("1", "q0", ("a0",)),
        ("2", "q1", ("a1",)),
    ]
    with pytest.raises(ArtefactError, match="cannot open the split 'nope'"):
        read_hub(str(tmp_path), "nope")
