"""The embedded data: labels, splits, reserved images, corruptions."""

import dataclasses
import json
from collections import Counter

import easy_vqa
import numpy as np
import pytest
from PIL import Image

from fusevlm.data import pictures, questions, scenes
from fusevlm.data.pictures import CORRUPTIONS, SEVERITIES, corrupt
from fusevlm.errors import InputError

# the generator's paint, read off the pictures: an oracle that does not look at any answer
PAINT = {
    (0, 0, 0): "black",
    (0, 0, 255): "blue",
    (165, 42, 42): "brown",
    (128, 128, 128): "gray",
    (0, 255, 0): "green",
    (255, 0, 0): "red",
    (0, 128, 128): "teal",
    (255, 255, 0): "yellow",
}


@pytest.fixture(scope="module")
def train():
    return scenes.split("train")


@pytest.fixture(scope="module")
def asked_in_test():
    return questions.queries("test")


def painted(pixels):
    """Mask of the pixels in one of the eight paints, and the commonest of these."""
    counts = {
        name: int((pixels == np.array(rgb, dtype=np.uint8)).all(axis=2).sum())
        for rgb, name in PAINT.items()
    }
    name = max(counts, key=counts.get)
    rgb = next(rgb for rgb, n in PAINT.items() if n == name)
    return (pixels == np.array(rgb, dtype=np.uint8)).all(axis=2), name


def test_splits_are_disjoint_by_image():
    ids = [s.image_id for name in scenes.SPLITS for s in scenes.split(name)]
    assert len(ids) == len(set(ids))
    assert len(scenes.split("calibration")) == 600
    assert len(scenes.split("dev")) == 200


def test_held_out_pairs_are_absent_from_training_and_present_in_test(train):
    pairs = {(s.color, s.shape) for s in (*train, *scenes.split("dev"))}
    assert not pairs & set(scenes.HELD_OUT)
    assert len(pairs) == 21
    for name in ("calibration", "test"):
        assert {(s.color, s.shape) for s in scenes.split(name)} >= set(scenes.HELD_OUT)


def test_reserved_images_are_the_stated_draw():
    drawn = np.random.default_rng(20261115).choice(1000, 400, replace=False)
    assert scenes.reserved() == frozenset(int(i) for i in drawn)
    assert len(scenes.reserved()) == 400


def test_reserved_images_are_never_opened(monkeypatch):
    opened = []
    real = Image.open

    def spy(path, *args, **kwargs):
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Image, "open", spy)
    fresh = scenes.read_scenes.__wrapped__("test")
    paths = easy_vqa.get_test_image_paths()
    secret = {paths[i] for i in scenes.reserved()}
    assert opened
    assert not secret & set(opened)
    assert not {s.number for s in fresh} & scenes.reserved()


def test_colour_agrees_with_the_paint_in_the_pixels(train):
    for scene, pixels in zip(train[::7], scenes.read_pixels(train[::7]), strict=True):
        assert painted(pixels)[1] == scene.color, scene.image_id


def test_shape_agrees_with_how_much_of_its_box_is_painted(train):
    """A rectangle fills its box, a circle π/4 of it, a triangle at most about half."""
    for scene, pixels in zip(train[::7], scenes.read_pixels(train[::7]), strict=True):
        mask, _ = painted(pixels)
        rows, columns = np.nonzero(mask)
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        if min(height, width) < 14:
            continue  # too few pixels to tell shapes by their area
        fill = mask.sum() / (height * width)
        guess = "rectangle" if fill > 0.93 else "circle" if fill > 0.62 else "triangle"
        assert guess == scene.shape, (scene.image_id, fill)


def test_position_size_and_width_agree_with_the_paint(train):
    """The paint leaves out the soft edge, at most a pixel or two on each side."""
    for scene, pixels in zip(train[::7], scenes.read_pixels(train[::7]), strict=True):
        mask, _ = painted(pixels)
        rows, columns = np.nonzero(mask)
        width, height = np.ptp(columns) + 1, np.ptp(rows) + 1
        assert 0 <= scene.box.width - width <= 6
        assert 0 <= scene.box.height - height <= 6
        assert abs(scene.width - scene.box.width) <= 2
        x = (columns.min() + columns.max() + 1) / 2
        if scene.position.endswith("left"):
            assert x < 64 / 3 + 3
        elif scene.position.endswith("right"):
            assert x > 128 / 3 - 3
        if max(width, height) > 27:
            assert scene.size == "large"
        if max(width, height) < 12:
            assert scene.size == "small"


def test_package_answers_all_agree_with_the_scene(train):
    for scene in train:
        for question, answer in scene.asked:
            assert scenes.agrees(question, answer, scene.color, scene.shape)
    assert not scenes.agrees("is there not a red shape?", "yes", "red", "circle")
    assert not scenes.agrees("what is the red shape?", "circle", "blue", "circle")


def test_training_questions_hold_no_unseen_phrasing(train):
    unseen = {q for kind in questions.KINDS.values() for q in kind.unseen}
    for scene in train[:300]:
        asked = [*questions.package_questions(scene), *questions.derived_questions(scene)]
        assert not unseen & {a.question for a in asked}


def test_corners_and_descriptions():
    scene = scenes.split("dev")[0]
    answers = {a.kind: a.answer for a in questions.derived_questions(scene)}
    assert answers["corners"] == {"circle": "0", "triangle": "3", "rectangle": "4"}[scene.shape]
    assert answers["describe"] == f"{answers['size']} {scene.color} {scene.shape}"


def test_query_sets_have_the_promised_mix(asked_in_test):
    facts = [q.metadata for q in asked_in_test]
    assert len(asked_in_test) == len({q.id for q in asked_in_test}) == 1500
    share = {
        "clean": np.mean([f["severity"] == 0 for f in facts]),
        "odd": np.mean([f["held_out_pair"] or f["unseen_phrasing"] for f in facts]),
    }
    assert 0.26 < share["clean"] < 0.34
    assert 0.08 < share["odd"] < 0.14
    assert {f["source"] for f in facts} == {"easy_vqa", "derived"}
    assert {f["answer_type"] for f in facts} == {"yes/no", "number", "other"}
    assert set(Counter((f["corruption"], f["severity"]) for f in facts)) == {
        ("clean", 0),
        *((c, s) for c in CORRUPTIONS for s in SEVERITIES),
    }
    package = {q for s in scenes.split("test") for q, _ in s.asked}
    for query in asked_in_test:
        if query.metadata["source"] == "easy_vqa":
            assert query.question in package
        assert len(query.references) == 1
        assert (query.metadata["answer_type"] == "number") == query.references[0].isdigit()


def test_query_sets_are_the_same_every_time(asked_in_test):
    again = questions.queries("test", limit=40)
    assert [q.id for q in again] == [q.id for q in asked_in_test[:40]]
    for one, other in zip(again, asked_in_test, strict=False):
        assert np.array_equal(np.asarray(one.images[0]), np.asarray(other.images[0]))
    assert json.dumps([dict(q.metadata) for q in again])  # plain values, fit for a table


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_repeat_and_grow_with_severity(name, train):
    sample = train[::60]
    distances = []
    for severity in SEVERITIES:
        found = []
        for scene, pixels in zip(sample, scenes.read_pixels(sample), strict=True):
            spoilt = corrupt(pixels, name, severity, scene.seed)
            assert np.array_equal(spoilt, corrupt(pixels, name, severity, scene.seed))
            assert spoilt.dtype == np.uint8
            assert spoilt.shape == pixels.shape
            found.append(np.sqrt(np.mean((spoilt.astype(float) - pixels) ** 2)))
        distances.append(np.mean(found))
    assert distances[0] > 0
    assert all(np.diff(distances) > 0), distances


def test_a_moved_shape_is_the_same_shape_elsewhere(train):
    rng = np.random.default_rng(0)
    seen = set()
    for scene, pixels in zip(train[::30], scenes.read_pixels(train[::30]), strict=True):
        moved, box = pictures.move(pixels, scene.box, rng)
        assert pictures.find_box(moved) == box
        assert (box.width, box.height) == (scene.box.width, scene.box.height)
        assert painted(moved)[1] == scene.color
        assert painted(moved)[0].sum() == painted(pixels)[0].sum()
        seen.add(dataclasses.replace(scene, box=box).position)
    assert seen == set(scenes.POSITIONS)


def test_widths_between_two_answers_are_not_asked_for(train):
    for scene in train[:300]:
        asked = {a.kind: a.answer for a in questions.derived_questions(scene)}
        far = [abs(scene.box.width - x) for x in (12.5, 17.5, 22.5, 27.5, 32.5, 37.5)]
        assert ("width" in asked) == (min(far) >= 1), scene.box.width
        if "width" in asked:
            assert abs(int(asked["width"]) - scene.box.width) <= 1


def test_corruptions_refuse_what_they_do_not_know():
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    with pytest.raises(InputError, match="rain"):
        corrupt(pixels, "rain", 1, (0,))
    with pytest.raises(InputError, match="severity"):
        corrupt(pixels, "noise", 6, (0,))
    assert corrupt(pixels, pictures.CLEAN, 0, (0,)) is pixels
