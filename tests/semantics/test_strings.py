"""Meanings against definitions: partitions by brute force, scipy's components, any order."""

import itertools

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from tests.semantics.judges import Digest

from fusevlm.errors import InputError
from fusevlm.meanings import by_string
from fusevlm.semantics.strings import (
    CONTRADICTION,
    ENTAILMENT,
    NEUTRAL,
    by_entailment,
    by_similarity,
)

TEXTS = ["red", "blue", "a red one", "red", "dark blue", "green", "blue", "red", "teal", "navy"]


def relation(a, b):
    return int(Digest.one(a, b).argmax())


def by_definition(texts, same):
    """First come, first head: no generator, no early stop, duplicates walked through one by one."""
    order = sorted(range(len(texts)), key=lambda i: (-texts.count(texts[i]), texts[i]))
    meanings, heads = [-1] * len(texts), []
    for i in order:
        fits = [k for k, head in enumerate(heads) if texts[i] == head or same(head, texts[i])]
        meanings[i] = fits[0] if fits else len(heads)
        heads += [] if fits else [texts[i]]
    return meanings


def test_equal_strings_are_one_meaning():
    texts = ["A dog.", "cat", "dog", "the DOG", "Cat!", "bird"]
    assert by_string(texts).tolist() == [0, 1, 0, 0, 1, 2]
    assert by_string(["5", "-5", ".5", "5.", "$5", "1.5", "15"]).tolist() == [0, 2, 3, 0, 1, 4, 5]


@pytest.mark.parametrize("strict", [True, False])
def test_entailment_meanings_by_definition(strict):
    def same(a, b):
        both = {relation(a, b), relation(b, a)}
        return both == {ENTAILMENT} if strict else CONTRADICTION not in both

    sizes = set()
    for words in itertools.combinations(TEXTS, 8):
        found = by_entailment(list(words), relation, strict=strict)
        assert found.tolist() == by_definition(list(words), same)
        sizes.add(int(found.max()) + 1)
    assert len(sizes) > 1  # neither always together nor always apart


@pytest.mark.parametrize(
    ("forward", "back", "strict", "loose"),
    [
        (ENTAILMENT, ENTAILMENT, True, True),
        (ENTAILMENT, NEUTRAL, False, True),
        (NEUTRAL, ENTAILMENT, False, True),
        (NEUTRAL, NEUTRAL, False, True),
        (ENTAILMENT, CONTRADICTION, False, False),
        (CONTRADICTION, ENTAILMENT, False, False),
    ],
)
def test_what_two_directions_decide(forward, back, strict, loose):
    told = {("a", "b"): forward, ("b", "a"): back}
    for flag, together in ((True, strict), (False, loose)):
        meanings = by_entailment(["a", "b"], lambda *pair: told[pair], strict=flag)
        assert (meanings[0] == meanings[1]) == together


def test_the_order_of_the_samples_changes_nothing():
    rng = np.random.default_rng(0)
    for _ in range(30):
        order = rng.permutation(len(TEXTS))
        mixed = [TEXTS[i] for i in order]
        for find in (by_string, lambda t: by_entailment(t, relation, strict=False)):
            np.testing.assert_array_equal(find(mixed), find(TEXTS)[order])


def test_without_one_order_greedy_would_depend_on_it():
    """The relation is not transitive, so the canonical order is what makes the result unique."""
    linked = {frozenset("ab"), frozenset("bc")}

    def chain(a, b):
        return ENTAILMENT if frozenset((a, b)) in linked else NEUTRAL

    assert by_entailment(["a", "b", "c"], chain).tolist() == [0, 0, 1]
    # two more votes for b make it the head, and both others join it
    assert by_entailment(["a", "b", "c", "b", "b"], chain).tolist() == [0] * 5


def test_linked_similarities_are_the_connected_components():
    rng = np.random.default_rng(1)
    counts = set()
    for _ in range(40):
        S = rng.random((9, 9))
        S = (S + S.T) / 2
        np.fill_diagonal(S, 1.0)
        n, expected = connected_components(S >= 0.75, directed=False)
        found = by_similarity(S, 0.75)
        np.testing.assert_array_equal(found, expected)
        counts.add(n)
    assert len(counts) > 2


def test_bad_similarities_are_refused():
    with pytest.raises(InputError, match="symmetric"):
        by_similarity([[1.0, 0.2], [0.4, 1.0]], 0.5)
    with pytest.raises(InputError, match="symmetric"):
        by_similarity([[1.0, 0.2]], 0.5)
    with pytest.raises(InputError, match="list of strings"):
        by_string("yes")


def test_no_samples_no_meanings():
    assert by_string([]).tolist() == by_entailment([], relation).tolist() == []
