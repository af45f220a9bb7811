"""Official VQA files: the join, the images, and everything that can be wrong with them."""

import random
from pathlib import Path

import pytest
from tests.data.official import (
    TEN,
    annotation,
    question,
    wrapped,
    write,
    write_image,
    write_pair,
)

from fusevlm.data import vqa
from fusevlm.data.correctness import grade
from fusevlm.data.vqa import SPLITS, read_vqa
from fusevlm.errors import ArtefactError, InputError

KEYS = [262148000, 262148001, 42000, 393225000, 7001, 7000]


def read(folder, questions, annotations, ending="json", **options):
    return read_vqa(*write_pair(folder, questions, annotations, ending), None, **options)


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_questions_meet_their_answers(tmp_path, ending):
    reading = read(tmp_path, map_of(question), map_of(annotation), ending, name="okvqa")
    found = list(reading)
    assert [query.id for query in found] == [str(key) for key in KEYS]
    assert found[2].question == "What is in picture 42000?"
    assert list(found[2].references) == ["cat"] * 9 + ["a kitten"]
    assert found[2].metadata == {
        "dataset": "okvqa",
        "split": "val",
        "image_id": 42,
        "answer_type": "other",
        "question_type": "what is",
    }
    assert found[2].images == ()
    assert str(reading.problems) == "6 read; bad: none"
    assert grade("Cat", found[2].references, "vqa_accuracy") == 1.0


def map_of(make):
    return [make(key) for key in KEYS]


@pytest.mark.parametrize("seed", range(5))
def test_any_order_gives_the_same_pairs(tmp_path, seed):
    keys = list(range(1000, 1060))
    rows = [annotation(key, [{"answer": f"{key}/{i}"} for i in range(10)]) for key in keys]
    random.Random(seed).shuffle(rows)
    found = list(read(tmp_path, [question(key) for key in keys], rows))
    assert [query.id for query in found] == [str(key) for key in keys]
    for query in found:
        assert list(query.references) == [f"{query.id}/{i}" for i in range(10)]


def test_only_what_comes_too_early_waits(tmp_path, monkeypatch):
    """In the same order nothing is kept; reversed, everything but the current record is."""
    most = []
    take = vqa._Annotations.take

    def watched(self, key, where):
        label = take(self, key, where)
        most.append(len(self.waiting))
        return label

    monkeypatch.setattr(vqa._Annotations, "take", watched)
    rows = map_of(annotation)
    for order, waiting in ((rows, 0), (rows[1::-1] + rows[2:], 1), (rows[::-1], len(rows) - 1)):
        most.clear()
        assert len(list(read(tmp_path, map_of(question), order))) == len(rows)
        assert max(most) == waiting


def test_limit_stops_early_and_leaves_the_rest_unread(tmp_path):
    questions, annotations = write_pair(tmp_path, map_of(question), map_of(annotation))
    write(annotations, annotations.read_text()[:-200])  # damage at the end
    found = list(read_vqa(questions, annotations, None, limit=2))
    assert [query.id for query in found] == [str(key) for key in KEYS[:2]]
    with pytest.raises(InputError, match="limit"):
        read_vqa(questions, annotations, None, limit=0)


def test_without_annotations_there_are_no_references(tmp_path):
    questions, _ = write_pair(tmp_path, map_of(question), [])
    found = list(read_vqa(questions, None, None, split="test-dev"))
    assert [list(query.references) for query in found] == [[]] * len(KEYS)


# -- images


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [
        ("vqav2", "train", "COCO_train2014_000000000042.jpg"),
        ("vqav2", "val", "COCO_val2014_000000000042.jpg"),
        ("vqav2", "test", "COCO_test2015_000000000042.jpg"),
        ("okvqa", "val", "val2014/COCO_val2014_000000000042.jpg"),
        ("advqa", "val", "000000000042.jpg"),
        ("advqa", "val", "val2017/000000000042.jpg"),
        ("advqa", "val", "val2014/COCO_val2014_000000000042.jpg"),
        ("advqa", "test-dev", "test2015/COCO_test2015_000000000042.jpg"),
    ],
)
def test_images_have_coco_names(tmp_path, name, split, file):
    images = tmp_path / "{images} 100%"
    expected = write_image((images / file).parent, Path(file).name)
    questions, annotations = write_pair(tmp_path, [question(42000)], [annotation(42000)])
    (query,) = read_vqa(questions, annotations, images, name=name, split=split)
    assert query.images == (expected,)


def test_official_file_names():
    """Names as published, by dataset and split."""
    assert SPLITS["vqav2"]["val"].questions == "v2_OpenEnded_mscoco_val2014_questions.json"
    assert SPLITS["okvqa"]["train"].annotations == "mscoco_train2014_annotations.json"
    assert SPLITS["advqa"]["val"].annotations == "v1_mscoco_val2017_advqa_annotations.json"
    with pytest.raises(
        InputError, match=r"split of okvqa 'test' is not known\. Known are: train, val"
    ):
        vqa.official_split("okvqa", "test")
    with pytest.raises(InputError, match=r"'vqav3' is not known\. Did you mean 'vqav2'"):
        vqa.official_split("vqav3", "val")


# -- bad input: (questions, annotations, kind, what strict mode says, ids read in lenient mode)

Q, A = question, annotation
BAD = {
    "annotation without question": (
        [Q(1000), Q(3000)], [A(1000), A(2000), A(3000)],
        "annotations.json: question_id 2000 is not among", ["1000", "3000"],
    ),
    "question without annotation": (
        [Q(1000), Q(2000), Q(3000)], [A(1000), A(3000)],
        "questions.json, record 2: question_id 2000 has no annotation", ["1000", "3000"],
    ),
    "duplicate question": (
        [Q(1000), Q(2000), Q(1000)], [A(1000), A(2000)],
        "questions.json, record 3: question_id 1000 occurs a second time", ["1000", "2000"],
    ),
    "duplicate annotation": (
        [Q(1000), Q(2000)], [A(1000), A(1000), A(2000)],
        "annotations.json, record 2: question_id 1000 occurs a second time", ["1000", "2000"],
    ),
    "not ten answers": (
        [Q(1000), Q(2000)], [A(1000, TEN[:7]), A(2000)],
        "annotations.json, record 1: question_id 1000 has 7 answer(s); expected 10", ["2000"],
    ),
    "no answers": (
        [Q(1000), Q(2000)], [A(1000), A(2000, [])],
        "record 2: question_id 2000 has no answers; the answers of test splits are not", ["1000"],
    ),
    "other image": (
        [Q(1000), Q(2000, image_id=5)], [A(1000), A(2000)],
        "record 2: question_id 2000 is about image 5, its annotation about 2", ["1000"],
    ),
    "unreadable question": (
        [Q(1000), {"question_id": 2000, "image_id": 2}, Q(3000)], [A(1000), A(3000)],
        "questions.json, record 2: question_id 2000 has question None", ["1000", "3000"],
    ),
    "unreadable annotation": (
        [Q(1000)], ["text", A(1000)],
        "annotations.json, record 1: expected an object with a question_id", ["1000"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_strict_stops_at_the_first_bad_record(tmp_path, kind):
    questions, annotations, message, _ = BAD[kind]
    with pytest.raises(InputError) as error:
        list(read(tmp_path, questions, annotations))
    assert message in str(error.value)


@pytest.mark.parametrize("kind", BAD)
def test_lenient_skips_and_counts(tmp_path, kind):
    questions, annotations, message, kept = BAD[kind]
    reading = read(tmp_path, questions, annotations, strict=False)
    assert [query.id for query in reading] == kept
    assert reading.problems.counts == {kind: 1}
    assert message in reading.problems.first[0]
    assert str(reading.problems) == f"{len(kept)} read; bad: 1 {kind}"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([*TEN[:9], {"answer": None}], r"has 10 answer\(s\); expected 10 texts"),
        ([*TEN, TEN[0]], r"has 11 answer\(s\)"),
        ("cat", "has no answers"),
        (None, "has no answers"),
    ],
)
def test_answers_of_a_wrong_kind(tmp_path, answers, message):
    with pytest.raises(InputError, match=message):
        next(read(tmp_path, [Q(1000)], [A(1000, answers)]))


def test_a_late_duplicate_of_a_waiting_annotation(tmp_path):
    rows = [A(2000), A(2000), A(1000)]
    reading = read(tmp_path, [Q(1000), Q(2000)], rows, strict=False)
    assert [query.id for query in reading] == ["1000", "2000"]
    assert reading.problems.counts == {"duplicate annotation": 1}


def test_a_missing_image(tmp_path):
    questions, annotations = write_pair(tmp_path, [Q(1000), Q(2000)], [A(1000), A(2000)])
    write_image(tmp_path, "COCO_val2014_000000000002.jpg")
    with pytest.raises(InputError, match=r"record 1: .*COCO_val2014_000000000001\.jpg, which does"):
        next(read_vqa(questions, annotations, tmp_path))
    reading = read_vqa(questions, annotations, tmp_path, strict=False)
    assert [query.id for query in reading] == ["2000"]
    assert reading.problems.counts == {"missing image": 1}
    write_image(tmp_path, "000000000001.jpg")  # a 2017 name does not serve a 2014 split
    with pytest.raises(InputError, match="which does not exist"):
        next(read_vqa(questions, annotations, tmp_path))


def test_damage_keeps_what_came_before_it(tmp_path):
    questions, annotations = write_pair(tmp_path, map_of(question), map_of(annotation))
    text = questions.read_text()
    write(questions, text[: text.index("393225000")])
    with pytest.raises(ArtefactError, match=r"questions\.json: at byte \d+ in record 4"):
        list(read_vqa(questions, annotations, None))
    reading = read_vqa(questions, annotations, None, strict=False)
    assert [query.id for query in reading] == [str(key) for key in KEYS[:3]]
    assert reading.problems.counts == {"damaged file": 1, "annotation without question": 3}


def test_swapped_files_are_recognised(tmp_path):
    questions, annotations = write_pair(tmp_path, map_of(question), map_of(annotation))
    with pytest.raises(ArtefactError, match=r"no list .questions.*check which one this is"):
        next(read_vqa(annotations, questions, None))


def test_a_missing_file_is_an_error_in_lenient_mode_too(tmp_path):
    questions, annotations = write_pair(tmp_path, map_of(question), map_of(annotation))
    for files in ((tmp_path / "no.json", annotations), (questions, tmp_path / "no.json")):
        with pytest.raises(ArtefactError, match=r"no\.json does not exist"):
            read_vqa(*files, None, strict=False)


def test_many_problems_are_counted_but_not_all_kept(tmp_path):
    reading = read(tmp_path, [Q(1000)], [A(key) for key in range(1000, 1100)], strict=False)
    assert len(list(reading)) == 1
    assert reading.problems.counts == {"annotation without question": 99}
    assert len(reading.problems.first) == 20


def test_wrapped_lists_are_found_behind_other_lists(tmp_path):
    """A header that holds lists of its own does not hide the questions."""
    content = {"questions_of_note": [Q(9000)]} | wrapped("questions", [Q(1000)])
    path = write(tmp_path / "q.json", content)
    assert [query.id for query in read_vqa(path, None, None)] == ["1000"]
