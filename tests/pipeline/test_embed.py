"""Stage embed: images of a batch go through the tower together; each query gets its own mean."""

import numpy as np
from PIL import Image

from fusevlm.models.towers import TextVectors
from fusevlm.pipeline.stages import embed_stage
from fusevlm.store.embeddings import read_embeddings
from fusevlm.types import Query


class Colors:
    """Towers whose image vector is the unit mean color; counts its calls."""

    def __init__(self):
        self.calls = 0

    def texts(self, texts):
        rows = np.array([[len(t), 1.0, 0.0] for t in texts], dtype=np.float32)
        return TextVectors(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.zeros(len(texts)))

    def images(self, images):
        self.calls += 1
        rows = np.array([np.asarray(i, dtype=np.float32).mean(axis=(0, 1)) for i in images])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


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
    outcome = embed_stage(towers, queries, tmp_path / "run", name="colors", batch=8)
    assert (outcome.done, outcome.failed, towers.calls) == (5, 2, 1)
    ids, found = read_embeddings(tmp_path / "run")
    assert ids == ["one", "two", "last"]
    half = 1 / np.sqrt(2)
    np.testing.assert_allclose(
        found["image"], [[1, 0, 0], [half, 0, half], [0, 0, 1]], atol=1e-6
    )  # fmt: skip


def test_a_batch_without_any_picture_is_all_failures(tmp_path):
    towers = Colors()
    outcome = embed_stage(towers, [Query("x", "?", [])], tmp_path / "run", name="colors")
    assert (outcome.failed, towers.calls) == (1, 0)
