"""Failure to flip: first tokens by a forward pass of transformers, shares by counting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.models.conftest import make_picture
from tests.semantics.test_rephrase import Scripted

from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.semantics import complement
from fusevlm.semantics.complement import failures_to_flip
from fusevlm.testing import tiny
from fusevlm.types import Query

YES, NO = tiny.VOCABULARY["yes"], tiny.VOCABULARY["no"]
WORDS = ["is it red", "is it not red", "is the circle red"]


def yes_or_no(model, processor):
    """A model whose next token is yes or no, as a random feature says."""
    inputs = processor(images=[make_picture(0)], text=["user: <image> is assistant: "],
                       return_tensors="pt")  # fmt: skip
    with torch.no_grad():
        usual = model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        row = torch.randn(64, generator=torch.Generator().manual_seed(1))
        row -= usual * (row @ usual) / (usual @ usual)
        head = model.get_output_embeddings().weight
        head.zero_()
        both = 12.0 * usual / (usual @ usual)  # far above the other words, which stay at 0
        head[YES], head[NO] = both + 0.3 * row, both - 0.3 * row
    return model, processor


@pytest.fixture(scope="module")
def vlm():
    decoding = Decoding(max_new_tokens=1, prompt="{question} red")
    return HuggingFace(*yes_or_no(*tiny.build("llava")), decoding=decoding)


def queries_of(questions):
    return [Query(f"q{k}", text, [make_picture(k)]) for k, text in enumerate(questions)]


def directly(vlm, query):
    """P(yes), P(no) of the first token: prompt written out, transformers alone."""
    text = f"user: <image> {query.question} red assistant: "
    inputs = vlm.processor(images=[load_image(query.images[0])], text=[text], return_tensors="pt")
    with torch.no_grad():
        logits = vlm.model(**inputs).logits[0, -1].double()
    p = torch.exp(logits) / torch.exp(logits).sum()
    return float(p[YES]), float(p[NO])


def test_the_probability_of_saying_the_same_again(vlm):
    queries = queries_of(["asked"] * 6)
    negated = [*WORDS, *WORDS]
    found = failures_to_flip(vlm, queries, ["Yes.", "yes", "true", "no", "No", "False"], negated)
    for k, (query, text) in enumerate(zip(queries, negated, strict=True)):
        p = directly(vlm, replace(query, question=text))
        assert sum(p) > 0.5
        assert found[k] == pytest.approx(p[k >= 3] / sum(p), rel=1e-4)
    assert len({round(p, 6) for p in found}) == 6


def test_the_greedy_answer_is_the_likelier_first_token(vlm):
    """Above one half where the answer that a model really gives is the judged one again."""
    queries = queries_of(WORDS * 2)
    said = [g.samples.answer for g in vlm.sample(queries, 1, np.zeros(1), 0)]
    assert set(said) <= {"yes", "no"}
    found = failures_to_flip(vlm, queries, ["yes"] * 6, WORDS * 2)
    assert [p > 0.5 for p in found] == [answer == "yes" for answer in said]


def test_who_is_not_asked(vlm, monkeypatch):
    monkeypatch.setattr(vlm, "prepare", lambda query: pytest.fail("was asked"))
    queries = queries_of(["what colour", "is it red"])
    assert failures_to_flip(vlm, queries, ["yes", "red"], [None, "is it not red"]) == [None, None]
    assert failures_to_flip(vlm, [], [], []) == []


@pytest.mark.parametrize(
    ("said", "judged", "samples", "expected"),
    [
        (["no", "yes", "no", "yes"], "yes", 0, 0.0),  # the greedy answer alone
        (["no", "yes", "no", "yes"], "no", 0, 1.0),
        (["yes", "Yes!", "no", "perhaps"], "yes", 4, 3 / 4),
        (["perhaps"] * 3, "yes", 3, None),
        (["true", "false"], "yes", 2, 2 / 3),
    ],
)
def test_shares_of_a_model_without_logits(said, judged, samples, expected):
    """The greedy answer is the script's first; one that says neither does not count."""
    backend = Scripted(lambda question: said)
    (query,) = queries_of(["is it red"])
    (found,) = failures_to_flip(backend, [query], [judged], ["is it not red"], samples=samples)
    assert found == (expected if expected is None else pytest.approx(expected))
    ((asked,),) = backend.batches
    assert asked == ("q0, negated", "is it not red", samples, [1.0] * samples)


def test_a_first_token_that_is_neither_is_not_read(vlm, caplog):
    """A model that begins with something else is asked for its whole answer."""
    other = HuggingFace(*tiny.build("llava"), decoding=vlm.decoding)
    assert sum(directly(other, queries_of(["is it red"])[0])) < complement.LEAST
    assert failures_to_flip(other, queries_of(["is it"]), ["no"], ["is it red"]) == [None]
    broken = [replace(q, images=["nothing.png"]) for q in queries_of(["is it"])]
    assert failures_to_flip(vlm, broken, ["no"], ["is it red"]) == [None]
    assert "no answer to query q0, negated" in caplog.text


def test_a_tokenizer_without_the_words(vlm, monkeypatch):
    from fusevlm.semantics import selfcheck

    (query,) = queries_of(["is it"])
    monkeypatch.setattr(selfcheck, "spelt_alone", lambda tokenizer, word: set())
    (found,) = failures_to_flip(vlm, [query], ["no"], ["is it red"])
    p = directly(vlm, replace(query, question="is it red"))
    assert found == float(p[1] > p[0])


def test_one_of_each():
    with pytest.raises(InputError, match="1 answers and 0 negations for 1 queries"):
        failures_to_flip(Scripted({}), queries_of(["is it"]), ["no"], [])


def test_both_sides_cancel_a_leaning_to_yes():
    """docs/method.md: simulated beliefs; the difference of log-odds ranks them, one side less."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    truth = rng.choice([-1.0, 1.0], 4000)
    belief = truth * 0.8 + rng.normal(0, 1.0, 4000)
    leaning = rng.normal(1.0, 2.0, 4000)
    asked, negated = belief + leaning, -belief + leaning  # log-odds of yes
    judged = np.sign(asked)
    wrong = judged != truth
    own = -judged * asked
    fails = judged * negated  # log-odds of giving the judged answer again
    assert roc_auc_score(wrong, own + fails) > roc_auc_score(wrong, own) + 0.1
    np.testing.assert_allclose(own + fails, -2 * judged * belief, atol=1e-12)
