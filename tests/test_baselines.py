"""One-liners against the registry, given what it needs by hand."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import entropy
from tests.scores.score_worlds import run
from tests.semantics.judges import Digest

import fusevlm
from fusevlm import Queries, Samples
from fusevlm.errors import InputError
from fusevlm.scores import SCORES, compute_scores
from fusevlm.semantics.strings import by_entailment
from fusevlm.types import Semantics

WORLD = run()
TEXTS = [["a cat", "Cat!", "dog"], ["red", "red", "Red."], ["1", "2", "3"]]


def test_one_is_a_number_and_several_are_an_array():
    assert fusevlm.semantic_entropy(Samples(TEXTS[0])) == pytest.approx(entropy([2, 1]))
    found = fusevlm.semantic_entropy([Samples(row) for row in TEXTS])
    np.testing.assert_allclose(found, [entropy([2, 1]), 0.0, math.log(3)], atol=1e-12)
    assert isinstance(fusevlm.baseline("distinct", Samples(TEXTS[0])), float)
    assert fusevlm.baseline("distinct", [Samples(TEXTS[0])]).tolist() == [2.0]


def test_samples_count_by_their_probability_where_it_is_known():
    one = Samples(TEXTS[0], [[-1.0, -2.0], [-0.5], [-0.1, -0.3]])
    mass = np.exp([logsumexp([-1.5, -0.5]), -0.2])
    assert fusevlm.semantic_entropy(one) == pytest.approx(entropy(mass))
    assert fusevlm.semantic_entropy(one, weighted=False) == pytest.approx(entropy([2, 1]))
    with pytest.raises(InputError, match=r"needs token_logprobs.*Pass it to Samples"):
        fusevlm.semantic_entropy(Samples(TEXTS[0]), weighted=True)


@pytest.mark.parametrize("name", SCORES)
def test_every_registered_score_is_that_of_the_registry(name):
    """The table has all that any score needs; nothing of it is found anew."""
    columns, absent = compute_scores(WORLD, [name])
    if absent:
        with pytest.raises(InputError, match=re.escape(absent[name])):
            fusevlm.baseline(name, WORLD)
    else:
        np.testing.assert_array_equal(fusevlm.baseline(name, WORLD), columns[name])


def test_umpire_of_samples_learns_its_balance_from_all_or_from_some():
    rows = list(WORLD.samples)
    every = Queries(WORLD.ids, rows, fit=np.arange(len(rows)))
    some = Queries(WORLD.ids, rows, fit=[0, 1, 2])
    expected = [compute_scores(q, ["umpire"])[0]["umpire"] for q in (every, some)]
    np.testing.assert_array_equal(fusevlm.baseline("umpire", rows), expected[0])
    np.testing.assert_array_equal(fusevlm.baseline("umpire", rows, fit=[0, 1, 2]), expected[1])
    with pytest.raises(InputError, match="umpire learns from calibration queries"):
        fusevlm.baseline("umpire", rows[0])


def test_similarities_by_string_are_one_or_nothing():
    rows = [Samples(row, answer="a dog") for row in TEXTS]
    found = fusevlm.baseline("degree_matrix", rows)
    same = [
        sum(c * c for c in Counter(t.lower().strip("!. a") for t in row).values()) for row in TEXTS
    ]
    np.testing.assert_allclose(found, 1.0 - np.array(same) / 9)
    labels = fusevlm.baseline("lofreecp", rows, wrong=[0, 1, 1])
    assert labels.shape == (3,)


def test_texts_without_an_answer_are_judged_by_the_most_frequent():
    rows = [Samples(row) for row in TEXTS]
    np.testing.assert_allclose(fusevlm.baseline("frequency_answer", rows), [1 / 3, 0.0, 2 / 3])


def test_an_inference_model_reads_the_question_before_each_sample():
    judge = Digest()
    rows, asked = [Samples(row) for row in TEXTS], ["what?", "which colour?", "how many?"]
    found = fusevlm.semantic_entropy(rows, meanings=judge, questions=asked)
    for row, question, value in zip(TEXTS, asked, found, strict=True):
        texts = [f"{question} {text}" for text in row]
        numbers = by_entailment(texts, lambda a, b: int(Digest.one(a, b).argmax()))
        assert value == pytest.approx(entropy(np.bincount(numbers)))
    assert {text.split("?")[0] for pair in judge.seen for text in pair} <= {
        "what",
        "which colour",
        "how many",
    }
    everything = fusevlm.baseline("degree_matrix", rows, meanings=judge, questions=asked)
    assert np.all((everything >= 0.0) & (everything <= 1.0))


def test_sentences_group_what_strings_do_not():
    pytest.importorskip("transformers")
    one = Samples(
        ["The sky is blue.", "the sky is blue", "The sky is so blue.", "There are nine horses."]
    )
    by_strings = fusevlm.semantic_entropy(one)
    assert fusevlm.semantic_entropy(one, meanings="sentences") == pytest.approx(entropy([3, 1]))
    assert by_strings == pytest.approx(entropy([2, 1, 1]))


def test_a_table_keeps_the_meanings_it_has():
    rows = [Samples(row) for row in TEXTS]
    own = [Semantics(meanings=np.array([0, 1, 2]))] * 3
    found = fusevlm.semantic_entropy(Queries(["a", "b", "c"], rows, semantics=own))
    np.testing.assert_allclose(found, math.log(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: fusevlm.baseline("umpir", q), "Did you mean 'umpire'"),
        (lambda q: fusevlm.baseline("umpire", q), "umpire needs embeddings.*Pass it to Samples"),
        (lambda q: fusevlm.baseline("g_nll", q), "g_nll needs answer_logprobs"),
        (lambda q: fusevlm.baseline("p_true", q), r"p_true needs p_true.*Semantics\(p_true="),
        (lambda q: fusevlm.baseline("eigenscore", q), "needs middle.*states={'middle'"),
        (lambda q: fusevlm.baseline("lofreecp", q), "lofreecp needs wrong.*Pass wrong="),
        (lambda q: fusevlm.baseline("accuracy_probe", q), "needs answer_state.*answer_states"),
        (lambda q: fusevlm.semantic_entropy(q, meanings="nli"), "expected 'strings', 'sent"),
        (lambda q: fusevlm.semantic_entropy(q, questions=["x"]), "1 questions for 3 queries"),
        (lambda q: fusevlm.semantic_entropy([]), "samples is empty"),
        (lambda q: fusevlm.semantic_entropy(["yes", "no"]), r"samples\[0\] is a str"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call([Samples(row) for row in TEXTS])
