"""Sources of training pairs: official layouts, splits, images, the seeded draw."""

import json

import pytest
from tests.data import official

from fusevlm.data.training import (
    CAPTIONS,
    drawn_pairs,
    faults,
    parse_source,
    read_source,
    source_files,
    survey,
)
from fusevlm.errors import InputError


def texts_of(text, images=""):
    return [(q.images[0].name, q.question) for q in read_source(parse_source(text), images)]


def karpathy(names, splits):
    rows = [
        {"filename": name, "split": split, "sentences": [{"raw": f"{name} one"}, {"raw": "two"}]}
        for name, split in zip(names, splits, strict=True)
    ]
    return {"images": rows, "dataset": "tiny"}


def test_karpathy_splits_of_coco_are_named_with_their_folder(tmp_path):
    content = karpathy(["a.jpg", "b.jpg", "c.jpg"], ["train", "restval", "test"])
    for row, folder in zip(content["images"], ("train2014", "val2014", "val2014"), strict=True):
        row["filepath"] = folder
        official.write_image(tmp_path / "images" / folder, row["filename"])
    (tmp_path / "coco").mkdir()
    official.write(tmp_path / "coco" / "dataset_coco.json", content)
    coco, images = tmp_path / "coco", str(tmp_path / "images")  # not in the source's own folder
    assert texts_of(f"coco-karpathy:{coco}", images) == [("a.jpg", "a.jpg one"), ("a.jpg", "two")]
    assert texts_of(f"coco-karpathy/restval:{coco}", images)[0] == ("b.jpg", "b.jpg one")
    with pytest.raises(InputError, match=r"a\.jpg does not exist"):
        texts_of(f"coco-karpathy:{coco}")


def test_flickr8k_has_official_lists_and_karpathys(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        official.write_image(tmp_path / "Flicker8k_Dataset", name)
    (tmp_path / "Flickr8k.token.txt").write_text(
        "a.jpg#0\tone\nb.jpg#0\ttwo\na.jpg#1\tthree\nc.jpg.1#0\tin no list, and not there\n"
    )
    for split, name in {"train": "a.jpg", "dev": "b.jpg", "test": ""}.items():
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(f"{name}\n")
    assert texts_of(f"flickr8k:{tmp_path}") == [("a.jpg", "one"), ("a.jpg", "three")]
    assert texts_of(f"flickr8k/dev:{tmp_path}") == [("b.jpg", "two")]
    assert len(source_files(parse_source(f"flickr8k:{tmp_path}"))) == 4
    official.write(tmp_path / "dataset_flickr8k.json", karpathy(["a.jpg", "b.jpg"], ["val"] * 2))
    assert len(texts_of(f"flickr8k-karpathy/val:{tmp_path}")) == 4


def test_questions_come_without_answers_and_images_from_beside(tmp_path):
    """VQAv2's images lie with COCO's; its annotations are not even looked for."""
    (tmp_path / "vqa").mkdir()
    official.write(
        tmp_path / "vqa" / "v2_OpenEnded_mscoco_train2014_questions.json.gz",
        official.wrapped("questions", [official.question(1001), official.question(2002)]),
    )
    for image in (1, 2):
        official.write_image(tmp_path / "coco" / "train2014", f"COCO_train2014_{image:012d}.jpg")
    found = list(read_source(parse_source(f"vqav2:{tmp_path / 'vqa'}"), str(tmp_path / "coco")))
    assert [q.question for q in found] == [f"What is in picture {k}?" for k in (1001, 2002)]
    assert [q.references for q in found] == [(), ()]
    assert found[1].images[0].name == "COCO_train2014_000000000002.jpg"


@pytest.fixture
def tables(tmp_path):
    """Two tables with the same ids."""
    for name in ("one", "two"):
        rows = [{"id": str(k), "question": f"{name} {k}", "image": "a.png"} for k in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    official.write_image(tmp_path, "a.png")
    return [str(tmp_path / f"{name}.jsonl") for name in ("one", "two")]


def test_the_draw_is_seeded_exact_and_in_order(tables):
    def draw(n, seed):
        return [q.question for q in drawn_pairs(tables, "", seed, survey(tables, "", n, seed))]

    everything = draw(0, 0)
    assert everything == [f"{name} {k}" for name in ("one", "two") for k in range(50)]
    some = draw(30, 0)
    assert len(some) == 30
    assert some == [text for text in everything if text in some]  # the order of the sources
    assert {text.split()[0] for text in some} == {"one", "two"}
    assert draw(30, 0) == some != draw(30, 1)
    assert set(draw(20, 0)) < set(some)  # a smaller draw is part of a larger one
    with pytest.raises(InputError, match=r"asks for 101 pairs; data\.train holds 100"):
        survey(tables, "", 101, 0)


def test_faults_of_all_sources_are_listed(tables, tmp_path):
    (tmp_path / "a.png").unlink()
    n, found = faults([*tables, "vqav2:nowhere", "coc:x"], "", 0)
    assert n == 100
    assert [line.split(",")[0] for line in found[:2]] == [
        f"data.train {text!r}: 50 × missing image" for text in tables
    ]
    assert "nowhere holds neither v2_OpenEnded" in found[2]
    assert "the kind 'coc' is not known. Did you mean 'coco'?" in found[3]


def test_every_kind_has_a_format_that_is_read():
    assert {kind for known in CAPTIONS.values() for kind, _ in known.files} == {
        "coco", "karpathy", "tokens", "table",
    }  # fmt: skip
