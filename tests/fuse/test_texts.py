"""Black boxes: texts alone are evidence, and an answer may be one of the samples."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from fusevlm import Fuse, Samples, semantic_entropy
from fusevlm.errors import InputError
from fusevlm.fuse.evidence import TEXT_EVIDENCE, text_disagreement, text_entropy
from fusevlm.meanings import same_form

ANSWERS = ["a cat", "Cat.", "dog", "two", "-2", "red"]


def black_box(size, seed, n=8):
    """Queries of a black box that is the surer the more often it is right; the first is judged."""
    rng = np.random.default_rng(seed)
    rows, wrong = [], []
    for doubt in rng.uniform(0.0, 1.0, size):
        p = np.r_[1.0 - doubt, np.full(4, doubt / 4)]
        said = rng.choice([0, 2, 3, 4, 5], n + 1, p=p)
        rows.append(Samples([ANSWERS[k] for k in said[1:]], answer=ANSWERS[said[0]]))
        wrong.append(rng.uniform() < doubt)
    return rows, np.array(wrong)


def with_logprobs(rows, seed=0):
    rng = np.random.default_rng(seed)
    return [Samples(q.texts, [-rng.gamma(1.0, 0.4, 3) for _ in q.texts]) for q in rows]


@pytest.mark.parametrize("seed", range(4))
def test_entropy_is_scipys_over_groups_made_one_by_one(seed):
    rng = np.random.default_rng(seed)
    texts = [ANSWERS[k] for k in rng.integers(0, 6, 9)]
    groups = []
    for text in texts:
        for group in groups:
            if same_form(group[0]) == same_form(text):
                group.append(text)
                break
        else:
            groups.append([text])
    expected = entropy([len(group) for group in groups])
    assert text_entropy(Samples(texts)) == pytest.approx(expected, abs=1e-12)
    assert semantic_entropy(Samples(texts)) == pytest.approx(expected, abs=1e-12)


def test_disagreement_counts_the_samples_that_say_something_else():
    assert text_disagreement(Samples(["A cat", "cat.", "dog"], answer="CAT")) == pytest.approx(
        1 / 3
    )
    assert text_disagreement(Samples(["a cat", "dog"], answer="never sampled")) == 1.0
    assert text_disagreement(Samples(["dog", "a cat", "cat!"])) == pytest.approx(1 / 3)
    assert text_disagreement(Samples(["yes"] * 3)) == 0.0


def test_texts_alone_are_fitted_scored_and_decided_on(caplog):
    (known, wrong), (new, truth) = black_box(600, 1), black_box(400, 2)
    with caplog.at_level(logging.WARNING):
        fuse = Fuse().fit(known, wrong)
    assert sum("texts are all there is" in message for message in caplog.messages) == 1
    assert "fusevlm.semantic_entropy(samples, meanings='sentences')" in caplog.text
    found = fuse.score(new)
    assert tuple(found.parts) == tuple(TEXT_EVIDENCE) == ("text_disagreement", "text_entropy")
    by_hand = [1 - [same_form(t) for t in q.texts].count(same_form(q.answer)) / 8 for q in new]
    np.testing.assert_allclose(found.parts["text_disagreement"], by_hand)
    alone = roc_auc_score(truth, found.parts["text_entropy"])
    assert roc_auc_score(truth, found.u) > alone - 0.01
    assert alone > 0.7
    decided = fuse.decide(new, risk=0.3)
    assert 0.0 < decided.coverage < 1.0
    assert truth[decided.answer].mean() < truth.mean()
    assert not fuse.check_drift(new, level=0.01).drifted
    assert fuse.check_drift(
        [Samples(["red", "two", "dog"], answer="red")] * 100, level=0.01
    ).drifted


def test_a_fit_of_texts_scores_queries_that_know_more(tmp_path):
    known, wrong = black_box(300, 3)
    fuse = Fuse().fit(known, wrong)
    richer = [replace(q, answer_logprobs=[-0.5]) for q in known]
    np.testing.assert_array_equal(fuse.score(richer).u, fuse.score(known).u)
    fuse.save(tmp_path / "fit")
    np.testing.assert_array_equal(Fuse.load(tmp_path / "fit").score(known).u, fuse.score(known).u)
    full = Fuse().fit(
        richer[:150] + [replace(q, answer_logprobs=[-1.0]) for q in known[150:]], wrong
    )
    with pytest.raises(InputError, match="'surprisal', which these queries lack"):
        full.score(known)


def test_what_the_caller_gives_is_never_taken_for_it():
    known, wrong = black_box(300, 4)
    own = {"semantic_entropy": semantic_entropy(known)}
    fuse = Fuse().fit(known, wrong, extra=own)
    assert tuple(fuse.score(known, extra=own).parts) == ("semantic_entropy",)
    with pytest.raises(InputError, match="'semantic_entropy', which these queries lack"):
        fuse.score(known)
    with pytest.raises(InputError, match="a name of fusevlm's own"):
        Fuse().fit(known, wrong, extra={"text_entropy": own["semantic_entropy"]})


@pytest.mark.parametrize("texts", [["yes"], ["a", "b", "c"]])
def test_texts_that_say_nothing_are_refused_with_what_to_do(texts):
    with pytest.raises(
        InputError, match=r"carry no evidence.*token_logprobs.*meanings='sentences'"
    ):
        Fuse().fit([Samples(texts)] * 30, [0, 1] * 15)


def test_with_log_probabilities_the_best_sample_is_the_answer(caplog):
    one = Samples(["two", "Two.", "three"], [[-0.9], [-0.2, -0.4], [-0.1]])
    assert (one.answer, one.answer_logprobs.tolist()) == ("Two.", [-0.2, -0.4])
    assert one.answer_is_sample
    assert "answer_is_sample=True" in repr(one)
    assert (one.first(1).answer, one.first(1).answer_is_sample) == ("Two.", True)
    known, wrong = black_box(300, 5)
    with caplog.at_level(logging.WARNING):
        fuse = Fuse(threshold_share=0.0).fit(with_logprobs(known), wrong)
    assert caplog.text.count("300 of 300 queries have no answer of their own") == 1
    assert "texts are all there is" not in caplog.text
    assert tuple(fuse.score(with_logprobs(known)).parts) == ("surprisal", "log_surprisal")


def test_an_answer_of_ones_own_is_left_alone():
    tokens = [[-0.1], [-0.2]]
    for known in (
        {"answer": "c"},
        {"answer_logprobs": [-3.0]},
        {"answer": "c", "embeddings": np.eye(2)},
    ):
        one = Samples(["a", "b"], tokens, **known)
        assert not one.answer_is_sample
        assert one.answer == known.get("answer")
        assert (one.answer_logprobs is None) == ("answer_logprobs" not in known)
    assert Samples(["a", "b"]).answer is None
