"""The sample that stands for all, against a search through groups made one by one."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusevlm.errors import InputError
from fusevlm.meanings import best_sample, by_string, same_form

WORDS = st.sampled_from(["a cat", "Cat.", "dog", "the dog!", "-5", "5", "red"])
ROWS = st.lists(st.tuples(WORDS, st.integers(-9, 0)), min_size=1, max_size=8)


def by_search(texts, means):
    """Every sample is tried: how many say the same, then its likelihood, then its place."""
    found = None
    for i, text in enumerate(texts):
        votes = sum(same_form(other) == same_form(text) for other in texts)
        if found is None or (votes, means[i]) > found[:2]:
            found = (votes, means[i], i)
    return found[2]


@given(ROWS)
def test_is_the_likeliest_of_the_most_frequent(rows):
    texts, means = [text for text, _ in rows], [float(mean) for _, mean in rows]
    tokens = [[mean - 1.0, mean + 1.0 if mean < 0 else mean - 1.0, mean] for mean in means]
    order = [sum(row) / 3 for row in tokens]
    assert best_sample(texts, tokens) == by_search(texts, order)
    assert best_sample(texts) == by_search(texts, [0.0] * len(texts))


def test_likelihood_is_per_token_and_the_order_does_not_matter():
    texts, tokens = ["two", "Two.", "three"], [[-0.9], [-0.4, -0.4, -0.4], [-0.1]]
    assert best_sample(texts, tokens) == 1  # −0.4 per token, though −1.2 in all
    for order in permutations(range(3)):
        best = best_sample([texts[i] for i in order], [tokens[i] for i in order])
        assert order[best] == 1
    assert best_sample(["one", "two"], [[-2.0], [-1.0]]) == 1  # as frequent, but likelier


def test_the_most_frequent_meaning_is_number_0():
    assert by_string(["bee", "ant", "The ant", "cow"]).tolist() == [1, 0, 0, 2]
    with pytest.raises(InputError, match="list of strings"):
        best_sample("yes")
