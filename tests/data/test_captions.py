"""Captions in the four layouts in which they are published."""

import gzip

import pytest
from tests.data.official import write, write_image

from fusevlm.data.captions import read_captions
from fusevlm.errors import ArtefactError, InputError


@pytest.fixture
def images(tmp_path):
    for name in ("a.jpg", "b.jpg", "c#1.jpg", "val2014/d.jpg"):
        path = tmp_path / "images" / name
        write_image(path.parent, path.name)
    return tmp_path / "images"


COCO = {
    "info": {},
    "annotations": [  # before the images they are about, to show that order does not matter
        {"image_id": 7, "id": 1, "caption": "A red ball. \n"},
        {"image_id": 8, "id": 2, "caption": "two dogs"},
        {"image_id": 7, "id": 3, "caption": "a ball"},
    ],
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
}
KARPATHY = {
    "images": [
        {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "one"}, {"raw": "two"}]},
        {"filename": "b.jpg", "split": "test", "sentences": [{"raw": "three"}]},
        {"filepath": "val2014", "filename": "d.jpg", "split": "restval",
         "sentences": [{"raw": "four", "tokens": ["four"]}]},
    ],
    "dataset": "coco",
}  # fmt: skip
TOKENS = "a.jpg#0\tA man , running .\nb.jpg#0\ttwo dogs\n\nc#1.jpg#4\ta\ttab\n"
TABLE = 'image,caption\na.jpg,"A man, running ."\nb.jpg,two dogs\n'


def plain(reading, images):
    return [(str(c.image.relative_to(images)), c.caption, c.split) for c in reading]


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_coco(tmp_path, images, ending):
    path = write(tmp_path / f"captions_val2014.{ending}", COCO)
    assert plain(read_captions(path, images, format="coco"), images) == [
        ("a.jpg", "A red ball.", "val"),
        ("b.jpg", "two dogs", "val"),
        ("a.jpg", "a ball", "val"),
    ]
    assert list(read_captions(path, images, format="coco", split="train")) == []


def test_karpathy(tmp_path, images):
    path = write(tmp_path / "dataset_coco.json", KARPATHY)
    assert plain(read_captions(path, images, format="karpathy"), images) == [
        ("a.jpg", "one", "train"),
        ("a.jpg", "two", "train"),
        ("b.jpg", "three", "test"),
        ("val2014/d.jpg", "four", "restval"),
    ]
    one = read_captions(path, images, format="karpathy", split="train", limit=1)
    assert plain(one, images) == [("a.jpg", "one", "train")]


def test_tokens(tmp_path, images):
    path = write(tmp_path / "Flickr8k.token.txt", TOKENS)
    assert plain(read_captions(path, images, format="tokens"), images) == [
        ("a.jpg", "A man , running .", "all"),
        ("b.jpg", "two dogs", "all"),
        ("c#1.jpg", "a\ttab", "all"),
    ]


def test_table_with_split_lists(tmp_path, images):
    path = write(tmp_path / "captions.txt", TABLE)
    lists = {
        "train": write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\n"),
        "dev": write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg\r\n"),
    }
    reading = read_captions(path, images, format="table", split_lists=lists)
    assert plain(reading, images) == [
        ("a.jpg", "A man, running .", "train"),
        ("b.jpg", "two dogs", "dev"),
    ]
    only = read_captions(path, images, format="table", split_lists=lists, split="dev")
    assert plain(only, images) == [("b.jpg", "two dogs", "dev")]
    write(lists["dev"], "a.jpg\n")
    with pytest.raises(InputError, match=r"line 1: a\.jpg is in the list of 'train' too"):
        read_captions(path, images, format="table", split_lists=lists)


BAD = {
    "missing image": (
        "tokens", "x.txt", "2258277193_586949ec62.jpg.1#0\tpeople\na.jpg#0\tone\n",
        r"x\.txt, line 1: .*586949ec62\.jpg\.1 does not exist",
    ),
    "unreadable caption": (
        "tokens", "x.txt", "a.jpg#0 no tab\na.jpg#1\tone\n", r"line 1: expected image\.jpg#0",
    ),
    "caption without image": (
        "coco", "x.json",
        {"images": [{"id": 1, "file_name": "a.jpg"}],
         "annotations": [{"image_id": 2, "caption": "?"}, {"image_id": 1, "caption": "one"}]},
        "record 1 of 'annotations': image_id 2 is not among",
    ),
    "unreadable record": (
        "karpathy", "x.json",
        {"images": [5, {"filename": "a.jpg", "split": "val", "sentences": [{"raw": "one"}]}]},
        "record 1 of 'images': expected an object",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_records_stop_or_are_counted(tmp_path, images, kind):
    layout, name, content, message = BAD[kind]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=message):
        list(read_captions(path, images, format=layout))
    reading = read_captions(path, images, format=layout, strict=False)
    assert [c.caption for c in reading] == ["one"]
    assert reading.problems.counts == {kind: 1}


def test_an_empty_caption_and_an_image_in_no_list(tmp_path, images):
    path = write(tmp_path / "captions.txt", TABLE + "a.jpg,\n")
    with pytest.raises(InputError, match=r"line 4: image 'a\.jpg' has the caption ''"):
        list(read_captions(path, images, format="table"))
    lists = {"train": write(tmp_path / "train.txt", "a.jpg")}
    reading = read_captions(path, images, format="table", split_lists=lists, strict=False)
    assert [c.caption for c in reading] == ["A man, running ."]
    assert reading.problems.counts == {"image in no split": 1, "unreadable caption": 1}


def test_damaged_files(tmp_path, images):
    cut = tmp_path / "tokens.txt.gz"
    cut.write_bytes(gzip.compress(TOKENS.encode())[:-12])
    with pytest.raises(ArtefactError, match=r"tokens\.txt\.gz: damaged after line"):
        list(read_captions(cut, images, format="tokens"))
    half = write(tmp_path / "half.json", '{"images": [{"filename": "a.jpg", "sent')
    reading = read_captions(half, images, format="karpathy", strict=False)
    assert list(reading) == []
    assert reading.problems.counts == {"damaged file": 1}
    columns = write(tmp_path / "captions.txt", "file|comment\n")
    with pytest.raises(ArtefactError, match=r"columns file\|comment; expected image,caption"):
        list(read_captions(columns, images, format="table"))


def test_wrong_arguments(tmp_path, images):
    path = write(tmp_path / "dataset.json", KARPATHY)
    with pytest.raises(InputError, match=r"not known\. Known are: coco, karpathy, tokens, table"):
        read_captions(path, images, format="flickr")
    with pytest.raises(InputError, match="leave split_lists out"):
        read_captions(path, images, format="karpathy", split_lists={"train": path})
    with pytest.raises(ArtefactError, match="does not exist"):
        read_captions(tmp_path / "no.json", images, format="coco", strict=False)
