"""Inference over many queries against a plain double loop: one pair, one forward pass."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.semantics import small_nli
from tests.semantics.judges import Digest
from tests.semantics.test_clusters import by_definition

from fusevlm.errors import ArtefactError, InputError
from fusevlm.semantics import inference as nli
from fusevlm.semantics.inference import NliModel, cluster_queries, judge_pairs, nli_similarity
from fusevlm.store.cache import PairCache

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ["what colour is the shape", "how many", "what colour is the shape", "is this a circle"]
RESPONSES = [
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
    return [brute_force(model, q, row) for q, row in zip(QUESTIONS, RESPONSES, strict=True)]


def test_probabilities_are_those_of_single_passes(model, tables):
    pairs = [
        (f"{q} {a}", f"{q} {b}")
        for q, row in zip(QUESTIONS, RESPONSES, strict=True)
        for a in row
        for b in row
    ]
    found = model.judge(pairs)
    np.testing.assert_allclose(found, np.concatenate([t.reshape(-1, 3) for t in tables]), atol=1e-5)
    assert len(set(found.argmax(axis=1))) > 1  # the random model takes sides


@pytest.mark.parametrize("strict", [True, False])
def test_clusters_are_those_of_the_double_loop(model, tables, strict, tmp_path):
    with PairCache(tmp_path / "pairs.sqlite") as cache:
        first = cluster_queries(model, QUESTIONS, RESPONSES, strict=strict, cache=cache)
        again = cluster_queries(model, QUESTIONS, RESPONSES, strict=strict, cache=cache)
    for row, table, labels in zip(RESPONSES, tables, first.labels, strict=True):

        def same(a, b, row=row, table=table):
            i, j = row.index(a), row.index(b)
            both = {int(table[i, j].argmax()), int(table[j, i].argmax())}
            return both == {2} if strict else 0 not in both

        assert labels.tolist() == by_definition(row, same)
    for one, two in zip(first.labels, again.labels, strict=True):
        np.testing.assert_array_equal(one, two)
    assert again.counts.judged == 0 < first.counts.judged


@pytest.mark.parametrize("kind", nli.SIMILARITIES)
def test_similarities_are_those_of_the_double_loop(model, tables, kind):
    found = nli_similarity(model, QUESTIONS, RESPONSES, kind=kind)
    for row, table, S in zip(RESPONSES, tables, found.matrices, strict=True):
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
    found = nli_similarity(judge, QUESTIONS, RESPONSES).counts
    assert found.all_pairs == 6 * 5 + 5 * 4 + 6 * 5 + 2 * 1
    # queries 0 and 2 share question and texts: 5·4 pairs, of which 4·3 are shared
    assert found.distinct == found.asked == found.judged == 5 * 4 + 3 * 2
    assert sorted(judge.seen) == sorted(set(judge.seen))
    judge = Digest()
    clustered = cluster_queries(judge, QUESTIONS, RESPONSES).counts
    assert clustered.asked == clustered.judged == len(judge.seen) == len(set(judge.seen))
    assert clustered.asked < clustered.distinct == found.distinct
    assert clustered.all_pairs == found.all_pairs


def test_a_pair_of_an_earlier_round_is_not_judged_again():
    class Agreeing(Digest):
        def judge(self, pairs):
            self.calls.append(list(pairs))
            return np.tile([0.0, 0.1, 0.9], (len(pairs), 1))

    judge = Agreeing()
    # the heads are a and c: in the third round they ask about each other, in opposite directions
    found = cluster_queries(judge, ["q", "q"], [["a", "b", "c"], ["a", "b", "b", "c", "c", "c"]])
    assert [labels.max() for labels in found.labels] == [0, 0]
    assert len(judge.seen) == len(set(judge.seen)) == found.counts.judged == 6


def test_queries_advance_together():
    """As many rounds as the slowest query needs, not as many as all of them in turn."""
    alone = Digest()
    cluster_queries(alone, QUESTIONS[:1], RESPONSES[:1])
    judge = Digest()
    questions = [f"question {i}" for i in range(40)]
    cluster_queries(judge, questions, RESPONSES[:1] * 40)
    assert len(judge.calls) <= 20  # 5 distinct texts: at most 2·(1+2+3+4) questions of one query
    assert len(judge.seen) > 40 * 4


def test_the_judge_may_be_anything_but_must_keep_the_shape():
    class Wrong(Digest):
        def judge(self, pairs):
            return np.ones((len(pairs), 2))

    with pytest.raises(InputError, match=r"returned shape \(2, 2\)"):
        nli_similarity(Wrong(), ["q"], [["a", "b"]])
    with pytest.raises(InputError, match="one question per query"):
        cluster_queries(Digest(), ["q"], [["a"], ["b"]])
    with pytest.raises(InputError, match="kind is 'cosine'"):
        nli_similarity(Digest(), ["q"], [["a", "b"]], kind="cosine")


def test_classes_are_taken_by_name():
    assert nli.relation_order({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}) == (0, 1, 2)
    assert nli.relation_order({0: "entailment", 1: "neutral", 2: "contradiction"}) == (2, 1, 0)
    for labels in (["LABEL_0", "LABEL_1", "LABEL_2"], ["entailment", "not_entailment"]):
        with pytest.raises(InputError, match="id2label"):
            nli.relation_order(dict(enumerate(labels)))


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


def test_the_cache_is_kept_per_model_and_pair(tmp_path):
    pairs = [("a", "b"), ("b", "a"), ("a b", "c"), ("a", "b c")]
    judge, other = Digest(), Digest()
    other.name = "digest@2"
    with PairCache(tmp_path / "deep" / "pairs.sqlite") as cache:
        expected, new = judge_pairs(judge, pairs, cache)
        assert new == 4
        assert judge_pairs(other, pairs, cache)[1] == 4
    with PairCache(tmp_path / "deep" / "pairs.sqlite") as cache:
        found, new = judge_pairs(judge, [*pairs, ("c", "d")], cache)
    assert new == 1
    for pair in pairs:
        np.testing.assert_array_equal(found[pair], expected[pair])
        np.testing.assert_allclose(found[pair], Digest.one(*pair))


DYING = """
import os
from fusevlm.semantics import inference as nli
from fusevlm.store.cache import PairCache
from tests.semantics.judges import Digest

class Dying(Digest):
    def judge(self, pairs):
        if len(self.calls) == 2:
            os._exit(9)
        return super().judge(pairs)

nli.TRANSACTION = 10
with PairCache(os.environ["PAIRS"]) as cache:
    nli.judge_pairs(Dying(), [(f"a{i}", "b") for i in range(35)], cache)
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "pairs.sqlite"
    env = os.environ | {"PAIRS": str(path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    died = subprocess.run([sys.executable, "-c", DYING], env=env, cwd=tmp_path, check=False)
    assert died.returncode == 9
    judge = Digest()
    with PairCache(path) as cache:
        found, new = judge_pairs(judge, [(f"a{i}", "b") for i in range(35)], cache)
    assert new == len(judge.seen) == 15  # two transactions of ten were kept
    assert len(found) == 35
    for pair, p in found.items():
        np.testing.assert_allclose(p, Digest.one(*pair))


def test_a_file_that_is_no_cache_is_refused(tmp_path):
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ArtefactError, match="Delete it"), PairCache(path):
        pass


def test_a_failed_write_stops_the_run(tmp_path):
    path = tmp_path / "pairs.sqlite"
    with PairCache(path) as cache:
        other = sqlite3.connect(path)
        with other:
            other.execute("DROP TABLE judged")
        other.close()
        with pytest.raises(ArtefactError, match="cannot write"):
            cache.add("m", {("a", "b"): np.ones(3) / 3})
