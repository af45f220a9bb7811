"""Inference over many queries against a plain double loop: one pair, one forward pass."""

import numpy as np
import pytest
import torch
from tests.semantics import small_nli
from tests.semantics.judges import Digest
from tests.semantics.test_strings import by_definition

from fusevlm.errors import InputError
from fusevlm.semantics import inference
from fusevlm.semantics.inference import NliModel, find_meanings, nli_similarity, relation_order
from fusevlm.store.cache import PairCache

QUESTIONS = ["what colour is the shape", "how many", "what colour is the shape", "is this a circle"]
SAMPLES = [
    ["red", "blue", "red", "a red circle", "the blue shape", "green"],
    ["1", "2", "2", "3", "1"],
    ["red", "blue", "green", "red", "red", "a red circle"],
    ["yes", "yes"],
]


def one_by_one(model, premise, hypothesis):
    """Probabilities from the logits of a single forward pass, by the labels' own names."""
    inputs = model.tokenizer(premise, hypothesis, return_tensors="pt")
    with torch.no_grad():
        p = torch.softmax(model.model(**inputs).logits[0], dim=0)
    named = {small_nli.LABELS[k]: float(p[k]) for k in range(3)}
    return [named["CONTRADICTION"], named["NEUTRAL"], named["ENTAILMENT"]]


def brute_force(model, question, texts):
    return np.array(
        [[one_by_one(model, f"{question} {a}", f"{question} {b}") for b in texts] for a in texts]
    )


@pytest.fixture(scope="module", params=small_nli.KINDS)
def model(request):
    return small_nli.build(request.param)


@pytest.fixture(scope="module")
def tables(model):
    return [brute_force(model, q, row) for q, row in zip(QUESTIONS, SAMPLES, strict=True)]


def test_probabilities_are_those_of_single_passes(model, tables):
    pairs = [
        (f"{q} {a}", f"{q} {b}")
        for q, row in zip(QUESTIONS, SAMPLES, strict=True)
        for a in row
        for b in row
    ]
    found = model.judge(pairs)
    np.testing.assert_allclose(found, np.concatenate([t.reshape(-1, 3) for t in tables]), atol=1e-5)
    assert len(set(found.argmax(axis=1))) > 1  # the random model takes sides


@pytest.mark.parametrize("strict", [True, False])
def test_meanings_are_those_of_the_double_loop(model, tables, strict, tmp_path):
    with PairCache(tmp_path / "pairs.sqlite") as cache:
        first = find_meanings(model, QUESTIONS, SAMPLES, strict=strict, cache=cache)
        again = find_meanings(model, QUESTIONS, SAMPLES, strict=strict, cache=cache)
    for row, table, labels in zip(SAMPLES, tables, first.numbers, strict=True):

        def same(a, b, row=row, table=table):
            i, j = row.index(a), row.index(b)
            both = {int(table[i, j].argmax()), int(table[j, i].argmax())}
            return both == {2} if strict else 0 not in both

        assert labels.tolist() == by_definition(row, same)
    for one, two in zip(first.numbers, again.numbers, strict=True):
        np.testing.assert_array_equal(one, two)
    assert again.counts.judged == 0 < first.counts.judged


@pytest.mark.parametrize("kind", inference.SIMILARITIES)
def test_similarities_are_those_of_the_double_loop(model, tables, kind):
    found = nli_similarity(model, QUESTIONS, SAMPLES, kind=kind)
    for row, table, S in zip(SAMPLES, tables, found.matrices, strict=True):
        contradicts, neutral, entails = np.moveaxis(table, -1, 0)
        directed = {
            "entailment": entails,
            "no_contradiction": 1 - contradicts,
            "graded": entails + neutral / 2,
        }[kind]
        expected = (directed + directed.T) / 2
        expected[np.equal.outer(row, row)] = 1.0
        np.testing.assert_allclose(S, expected, atol=1e-5)
        assert ((S >= 0) & (S <= 1)).all()


def test_counts_of_what_is_saved():
    judge = Digest()
    found = nli_similarity(judge, QUESTIONS, SAMPLES).counts
    assert found.all_pairs == 6 * 5 + 5 * 4 + 6 * 5 + 2 * 1
    # queries 0 and 2 share question and texts: 5·4 pairs, of which 4·3 are shared
    assert found.distinct == found.asked == found.judged == 5 * 4 + 3 * 2
    assert sorted(judge.seen) == sorted(set(judge.seen))
    judge = Digest()
    grouped = find_meanings(judge, QUESTIONS, SAMPLES).counts
    assert grouped.asked == grouped.judged == len(judge.seen) == len(set(judge.seen))
    assert grouped.asked < grouped.distinct == found.distinct
    assert grouped.all_pairs == found.all_pairs


def test_a_pair_of_an_earlier_round_is_not_judged_again():
    class Agreeing(Digest):
        def judge(self, pairs):
            self.calls.append(list(pairs))
            return np.tile([0.0, 0.1, 0.9], (len(pairs), 1))

    judge = Agreeing()
    # the heads are a and c: in the third round they ask about each other, in opposite directions
    found = find_meanings(judge, ["q", "q"], [["a", "b", "c"], ["a", "b", "b", "c", "c", "c"]])
    assert [labels.max() for labels in found.numbers] == [0, 0]
    assert len(judge.seen) == len(set(judge.seen)) == found.counts.judged == 6


def test_queries_advance_together():
    """As many rounds as the slowest query needs, not as many as all of them in turn."""
    alone = Digest()
    find_meanings(alone, QUESTIONS[:1], SAMPLES[:1])
    judge = Digest()
    questions = [f"question {i}" for i in range(40)]
    find_meanings(judge, questions, SAMPLES[:1] * 40)
    assert len(judge.calls) <= 20  # 5 distinct texts: at most 2·(1+2+3+4) questions of one query
    assert len(judge.seen) > 40 * 4


def test_the_judge_may_be_anything_but_must_keep_the_shape():
    class Wrong(Digest):
        def judge(self, pairs):
            return np.ones((len(pairs), 2))

    with pytest.raises(InputError, match=r"returned shape \(2, 2\)"):
        nli_similarity(Wrong(), ["q"], [["a", "b"]])
    with pytest.raises(InputError, match="one question per query"):
        find_meanings(Digest(), ["q"], [["a"], ["b"]])
    with pytest.raises(InputError, match="kind is 'cosine'"):
        nli_similarity(Digest(), ["q"], [["a", "b"]], kind="cosine")


def test_classes_are_taken_by_name():
    assert relation_order({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}) == (
        0,
        1,
        2,
    )
    assert relation_order({0: "entailment", 1: "neutral", 2: "contradiction"}) == (
        2,
        1,
        0,
    )
    for labels in (["LABEL_0", "LABEL_1", "LABEL_2"], ["entailment", "not_entailment"]):
        with pytest.raises(InputError, match="id2label"):
            relation_order(dict(enumerate(labels)))


def test_long_pairs_are_cut_and_it_is_said(caplog):
    model = small_nli.build("bert")
    (found,) = model.judge([("red " * 40, "blue " * 40)])
    assert "1 pairs are longer than 64 tokens" in caplog.text
    assert found.sum() == pytest.approx(1.0)


def test_a_saved_folder_loads_and_shares_the_cache_key(tmp_path, model):
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = NliModel.load(str(tmp_path))
    pairs = [("red shape", "a red circle"), ("blue", "green")]
    np.testing.assert_allclose(again.judge(pairs), model.judge(pairs), atol=1e-6)
    assert again.name.split("@")[1] == model.name.split("@")[1]
    with torch.no_grad():
        again.model.classifier.bias.add_(1.0)
    assert NliModel(again.model, again.tokenizer).name.split("@")[1] != model.name.split("@")[1]
    with pytest.raises(InputError, match="cannot load"):
        NliModel.load(str(tmp_path / "nothing"))
