"""Rephrasings and agreement on tiny models and on a back-end of plain functions."""

from dataclasses import replace

import numpy as np
import pytest
from tests.models.conftest import make_query

from factory.models import ASK
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.semantics import rephrase
from fusevlm.semantics.rephrase import (
    ByModel,
    Templates,
    by_generator,
    by_prompt,
    rephrasings_agree,
)
from fusevlm.testing import tiny
from fusevlm.types import Generation, Samples

ANSWERS = ["red", "a circle", "2"]


@pytest.fixture(scope="module")
def vlm():
    return HuggingFace(*tiny.build("llava"), decoding=Decoding(max_new_tokens=5))


@pytest.fixture(scope="module")
def queries():
    return [make_query(i) for i in range(3)]


class Scripted:
    """A back-end whose answer is a function of the question; an error where that is None."""

    name = "scripted"

    def __init__(self, answer):
        self.answer, self.batches = answer, []

    def sample(self, queries, n, temperatures, seed):
        self.batches.append([(q.id, q.question, n, list(temperatures)) for q in queries])
        for query in queries:
            text = self.answer(query.question)
            if text is None:
                yield Generation(query.id, error="refused")
            else:
                texts = [text] * n if isinstance(text, str) else text[:n]
                answer = text if isinstance(text, str) else text[0]
                yield Generation(query.id, Samples(texts=texts, answer=answer))


def test_the_wording_of_the_generator_is_the_one_it_was_taught():
    assert rephrase.FROM_ANSWER.format(answer="red") == ASK.format(question="red")


def test_a_model_is_given_image_and_answer_and_nothing_else(queries):
    backend = Scripted(lambda question: f"what is {question.removeprefix('answer: ')}")
    found = ByModel(backend, rephrase.FROM_ANSWER, batch=2).rephrase(queries, ANSWERS, 2, seed=0)
    assert found == [[f"what is {answer}"] * 2 for answer in ANSWERS]
    assert [len(batch) for batch in backend.batches] == [2, 1]
    assert backend.batches[0][0][2:] == (2, [1.0, 1.0])


def test_a_prompted_model_is_told_question_and_answer(vlm, queries):
    made = by_prompt(vlm)
    assert made.backend.model is vlm.model
    assert made.backend.decoding.top_p == 0.9
    asked = replace(queries[0], question=made.wording.format(question="Q?", answer="A"))
    prompt = made.backend.tokenizer.decode(made.backend.prepare(asked)["input_ids"][0])
    assert "Answer the question using a single word" not in prompt
    assert '"Q?"' in asked.question
    assert asked.question.count('"A"') == 2


def test_rephrasings_of_a_model_are_its_nucleus_samples(vlm, queries):
    made = by_prompt(vlm)
    found = made.rephrase(queries, ANSWERS, 4, seed=3)
    plain = HuggingFace(
        *tiny.build("llava"), decoding=Decoding("{question}", max_new_tokens=32, top_p=0.9)
    )
    for query, answer, texts in zip(queries, ANSWERS, found, strict=True):
        asked = (
            f'The question "{query.question}" about this image was answered "{answer}". Write a '
            f'different question about this image whose answer is "{answer}". Reply with that '
            "question only."
        )
        (one,) = plain.sample([replace(query, question=asked)], 4, np.ones(4), seed=3)
        assert texts == [text for text in one.samples.texts if text]
    assert found != made.rephrase(queries, ANSWERS, 4, seed=4)


def test_a_generator_is_loaded_from_a_folder(tmp_path, queries):
    made = by_generator(tiny.save("llava", tmp_path))
    assert made.backend.decoding == rephrase.REPHRASING
    assert made.wording == rephrase.ANOTHER
    assert len(made.rephrase(queries[:1], ANSWERS[:1], 2, seed=0)) == 1


def test_blank_and_failed_rephrasings_are_left_out(queries, caplog):
    told = {"answer: red": ["what", " ", "which"], "answer: 2": ["how"] * 3}
    found = ByModel(Scripted(told.get), rephrase.FROM_ANSWER).rephrase(queries, ANSWERS, 3, seed=0)
    assert found == [["what", "which"], [], ["how"] * 3]
    assert "no rephrasings of query q1: refused" in caplog.text


def test_templates_hold_the_question_and_are_all_different(queries):
    k = len(rephrase.TEMPLATES)
    found = Templates().rephrase(queries, ANSWERS, k, seed=0)
    assert found == Templates().rephrase(queries, ["x"] * 3, k, seed=1)
    for query, texts in zip(queries, found, strict=True):
        assert len(set(texts)) == k
        assert all(query.question in text and text != query.question for text in texts)
    assert Templates().rephrase(queries, ANSWERS, 2, seed=0) == [row[:2] for row in found]
    with pytest.raises(InputError, match="Ask for fewer"):
        Templates().rephrase(queries, ANSWERS, k + 1, seed=0)


def test_agreement_compares_what_answers_say(queries, caplog):
    told = {"p": "Red.", "q": "the red", "r": "blue", "s": "circle", "t": None}
    backend = Scripted(told.get)
    found = rephrasings_agree(
        backend, queries, ANSWERS, [["p", "q", "r", "t"], ["s", "r"], []], batch=4
    )
    assert [row.tolist() for row in found] == [[True, True, False], [True, False], []]
    assert all(row.dtype == np.bool_ for row in found)
    assert "no answer to query q0, rephrasing 4: refused" in caplog.text
    assert [len(batch) for batch in backend.batches] == [4, 2]
    assert all(asked[2:] == (1, [0.0]) for batch in backend.batches for asked in batch)


def test_agreement_on_a_model_is_that_of_its_greedy_answers(vlm, queries):
    rephrasings = [["red", "blue is the", "how many 3", "in this image"] for _ in queries]
    greedy = [
        [
            next(vlm.sample([replace(q, question=text)], 6, np.ones(6), seed=5)).samples.answer
            for text in texts
        ]
        for q, texts in zip(queries, rephrasings, strict=True)
    ]
    answers = [next(text for text in row if text) for row in greedy]
    found = rephrasings_agree(vlm, queries, answers, rephrasings)
    expected = [
        [text == answer for text in row if text]  # a model that only ends has not answered
        for row, answer in zip(greedy, answers, strict=True)
    ]
    assert [row.tolist() for row in found] == expected
    assert {value for row in expected for value in row} == {True, False}


def test_lengths_must_match(queries):
    with pytest.raises(InputError, match="2 answers for 3 queries"):
        Templates().rephrase(queries, ANSWERS[:2], 1, seed=0)
    with pytest.raises(InputError, match="1 lists of rephrasings for 3"):
        rephrasings_agree(Scripted(str), queries, ANSWERS, [["p"]])
