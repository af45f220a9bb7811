"""Similarity by sentence encoder against plain cosines, text by text."""

import numpy as np
import pytest
from scipy.spatial.distance import cosine

import fusevlm
from fusevlm.errors import InputError
from fusevlm.models.towers import SentenceEncoder
from fusevlm.semantics.sentences import answer_similarity, sample_vectors, sentence_similarity

SAMPLES = [["a red circle", "blue", "a red circle"], ["blue", "two dogs are playing"], []]


class Counting:
    def __init__(self, inner):
        self.inner, self.seen = inner, []

    def texts(self, texts):
        self.seen += texts
        return self.inner.texts(texts)


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.load()


def test_similarities_are_mapped_cosines_of_single_texts(encoder):
    found = sentence_similarity(encoder, SAMPLES)
    for row, S in zip(SAMPLES, found, strict=True):
        vectors = [encoder.texts([text]).vectors[0].astype(float) for text in row]
        expected = [[1 - cosine(a, b) / 2 for b in vectors] for a in vectors]
        np.testing.assert_allclose(S, np.reshape(expected, (len(row), len(row))), atol=1e-6)
    assert found[0].max() <= 1.0
    assert 0.4 < found[0][0, 1] < 0.95


def test_equal_texts_tie_exactly(encoder):
    found = sentence_similarity(encoder, [["red"] * 3, ["a blue circle"] * 3])
    assert (np.stack(found) == 1.0).all()


def test_the_answer_is_compared_with_every_sample(encoder):
    found = answer_similarity(encoder, SAMPLES, ["red", "blue", "yes"])
    red, circle = encoder.texts(["red", "a red circle"]).vectors.astype(float)
    assert found[0][0] == pytest.approx(1 - cosine(red, circle) / 2, abs=1e-6)
    assert found[1][0] == pytest.approx(1.0, abs=1e-6)
    assert [len(row) for row in found] == [3, 2, 0]


def test_each_text_is_encoded_once_for_all_queries(encoder):
    counting = Counting(encoder)
    vectors = sample_vectors(counting, SAMPLES)
    assert sorted(counting.seen) == ["a red circle", "blue", "two dogs are playing"]
    np.testing.assert_array_equal(vectors[0][0], vectors[0][2])
    np.testing.assert_array_equal(vectors[0][1], vectors[1][0])
    assert sample_vectors(counting, [[]])[0].shape[0] == 0


def test_public_vectors_are_of_the_texts_in_order(encoder):
    texts = [
        "which is red? A. circle B. square",
        "blue",
        "blue",
        "a much longer question, about dogs",
    ]
    found = fusevlm.sentence_vectors(texts)
    assert (found.shape, found.dtype) == ((4, 384), np.float64)
    for text, row in zip(texts, found, strict=True):
        np.testing.assert_allclose(row, encoder.texts([text]).vectors[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    for bad, message in (("blue", "list of strings"), (["a", 3], "list of strings"), ([], "empty")):
        with pytest.raises(InputError, match=message):
            fusevlm.sentence_vectors(bad)
    with pytest.raises(InputError, match="cannot load 'no/such'"):
        fusevlm.sentence_vectors(["a"], encoder="no/such")
