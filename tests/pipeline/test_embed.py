"""Stage embed: images of a batch go through the tower together; each query gets its own mean."""

import numpy as np
import pytest
from PIL import Image

from fusevlm.errors import ArtefactError
from fusevlm.models.towers import ImageVectors, TextVectors
from fusevlm.pipeline.embed import embedded
from fusevlm.priors.pictures import picture_statistics
from fusevlm.store.generations import EMBEDDINGS, read_embeddings, read_views
from fusevlm.store.parts import Parts
from fusevlm.types import Query


class Colors:
    """Towers whose image vector is the unit mean color; counts its calls."""

    def __init__(self):
        self.calls = 0

    def texts(self, texts):
        rows = np.array([[len(t), 1.0, 0.0] for t in texts], dtype=np.float32)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return TextVectors(unit, np.zeros(len(texts)), rows)

    def image_features(self, images):
        self.calls += 1
        rows = np.array([np.asarray(i, dtype=np.float32).mean(axis=(0, 1)) for i in images])
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return ImageVectors(unit, rows[:, :2], rows[:, 2:])


def plain(*color):
    return Image.new("RGB", (4, 4), color)


def test_each_query_has_the_mean_of_its_own_images(tmp_path):
    red, blue = plain(255, 0, 0), plain(0, 0, 255)
    queries = [
        Query("one", "a?", [red]),
        Query("none", "b?", []),
        Query("two", "c?", [red, blue]),
        Query("broken", "d?", [red, tmp_path / "missing.png"]),
        Query("last", "e?", [blue]),
    ]
    towers = Colors()
    rows, arrays = embedded(towers, queries, activations=True)
    assert [error is None for error in rows["error"]] == [True, False, True, False, True]
    assert towers.calls == 1
    Parts(tmp_path / "run", EMBEDDINGS).write(0, rows, arrays, {"queries": 5, "failed": 2})
    ids, found = read_embeddings(tmp_path / "run")
    assert ids == ["one", "two", "last"]
    half = 1 / np.sqrt(2)
    np.testing.assert_allclose(
        found["image"], [[1, 0, 0], [half, 0, half], [0, 0, 1]], atol=1e-6
    )  # fmt: skip
    again, before = read_embeddings(tmp_path / "run", activations=True)
    assert again == ids
    np.testing.assert_allclose(before["image"], [[255, 0], [127.5, 0], [0, 0]])
    np.testing.assert_allclose(before["text"], [[2, 1, 0]] * 3)
    views = read_views(tmp_path / "run")
    np.testing.assert_allclose(views["image"][:, 0], [0, 127.5, 255])  # then the pixels' statistics
    pixels = picture_statistics([red, blue])
    np.testing.assert_allclose(views["image"][[0, 2], 1:], pixels, rtol=1e-5)
    np.testing.assert_allclose(views["image"][1, 1:], pixels.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(views["question"], before["text"])


def test_activations_that_were_not_kept_are_missed(tmp_path):
    rows, arrays = embedded(Colors(), [Query("one", "a?", [plain(255, 0, 0)])])
    assert set(arrays) == {"image", "text"}
    Parts(tmp_path, EMBEDDINGS).write(0, rows, arrays, {"queries": 1, "failed": 0})
    with pytest.raises(ArtefactError, match=r"no activations.*embed\.activations = true"):
        read_embeddings(tmp_path, activations=True)


def test_a_batch_without_any_picture_is_all_failures(tmp_path):
    towers = Colors()
    queries = [Query("x", "?", []), Query("y", "?", [plain(0, 0, 255)])]
    parts = Parts(tmp_path, EMBEDDINGS)
    for index, query in enumerate(queries):
        rows, arrays = embedded(towers, [query], activations=True)
        parts.write(index, rows, arrays, {"queries": 1, "failed": 1 - index})
        if index == 0:
            assert rows["error"][0].startswith("the query has no image, and others of this run")
            assert towers.calls == 0
    assert read_embeddings(tmp_path, activations=True)[0] == ["y"]
