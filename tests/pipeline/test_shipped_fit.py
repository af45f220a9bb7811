"""The shipped models and fit: what they were made for is answered, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

import fusevlm
from fusevlm.data.questions import queries
from fusevlm.errors import FuseError, InputError
from fusevlm.types import Query


@pytest.fixture(scope="module")
def assistant():
    return fusevlm.load()


@pytest.mark.parametrize("photo", [0, 1])
def test_a_photograph_is_refused(assistant, photo):
    picture = Image.fromarray(load_sample_images().images[photo])
    found = assistant.ask(picture, "what color is the shape?")
    assert found.decision == "abstain"
    assert found.reason == "unlike the calibration (image)"
    assert found.novelty <= 0.01
    assert "if it were like the calibration's queries" in str(found)


def test_a_question_from_elsewhere_is_refused(assistant):
    query = queries("test", limit=1)[0]
    found = assistant.ask(query.images[0], "what is the capital of france?")
    assert found.reason == "unlike the calibration (question)"
    assert found.as_dict()["decision"] == "abstain"


def test_as_few_samples_as_the_decision_needs(assistant):
    """Asked together and one by one, in rounds: the same; and fewer answers than 21."""
    asked = [replace(q, id=f"q{k}") for k, q in enumerate(queries("test", limit=12))]
    together = assistant.ask_all(asked, samples="as needed")
    for query, found in zip(asked, together, strict=True):
        (alone,) = assistant.ask_all([query], samples="as needed")
        assert (alone.answer, alone.decision) == (found.answer, found.decision)
        assert alone.u == pytest.approx(found.u, abs=0.03)  # the prior is searched for in batches
        assert found.generated == alone.generated == 1 + sum(found.samples.values())
    full = assistant.ask_all(asked)
    assert all(one.generated == 21 for one in full)
    assert sum(one.generated for one in together) < 21 * 12 / 3
    assert [one.answer for one in full] == [one.answer for one in together]


def test_no_samples_are_the_first_of_the_rounds(assistant):
    query = queries("test", limit=1)[0]
    asked = (query.images[0], query.question)
    found = assistant.ask(*asked, n=0)
    assert found.as_dict() == assistant.ask(*asked, samples=0.0).as_dict()
    assert (found.generated, dict(found.samples)) == (1.0, {})
    assert 0 < found.p_wrong < 1
    for size, own in ((1, assistant), (0, replace(assistant, rounds=None))):
        with pytest.raises(InputError, match=f"n is {size}; this fit rests on what samples say"):
            own.ask(*asked, n=size)


def test_more_samples_are_watched_as_they_arrive(assistant):
    """A budget that buys samples where the decision is open; each round is told."""
    asked = [replace(q, id=f"q{k}") for k, q in enumerate(queries("test", limit=30))]
    seen = []
    found = assistant.ask_all(asked, samples=3.0, watch=seen.append)
    most = {}
    for one in seen:
        assert len(one.samples) >= most.get(one.query.id, 0)
        most[one.query.id] = len(one.samples)
        assert 0 <= one.p_wrong <= 1
    assert most == {q.id: sum(a.samples.values()) for q, a in zip(asked, found, strict=True)}
    assert {0, 4} <= set(most.values())
    assert len(seen) > len(asked)


def test_one_bad_query_among_others(assistant):
    good, *_ = queries("test", limit=1)
    bad = [
        Query("empty", " ", good.images),
        Query("torn", "what color is the shape?", [b"nothing"]),
        Query("mark", "what <image> is it?", good.images),
        Query("blind", "what color is the shape?"),
    ]
    for samples in (None, "as needed"):
        found = assistant.ask_all([*bad, replace(good, id="good")], samples=samples)
        assert [isinstance(one, FuseError) for one in found] == [True] * 4 + [False]
        assert "the question is empty" in str(found[0])
        assert "mark of its own" in str(found[2])
        assert "this model is asked about a picture; give one" in str(found[3])
        (alone,) = assistant.ask_all([replace(good, id="good")], samples=samples)
        assert alone.answer == found[4].answer
    with pytest.raises(InputError, match="n and samples were both given"):
        assistant.ask(None, "what", n=3, samples=2)
    with pytest.raises(InputError, match="two queries have the same id"):
        assistant.ask_all([good, good])


def test_its_own_queries_are_not_novel_and_never_answered_above_the_cap(assistant):
    asked = [assistant.ask(q.images[0], q.question, n=5) for q in queries("test", limit=25)]
    assert sum(a.novelty <= 0.01 for a in asked) <= 1
    answered = [a for a in asked if a.decision == "answer"]
    assert len(answered) > 8
    assert max(a.p_wrong for a in answered) <= 0.5
    assert all(a.reason == "" for a in answered)
    assert all(a.reason for a in asked if a.decision == "abstain")
    assert "of those answers at most 5% are wrong" in str(answered[0])
    assert np.isfinite([a.u for a in asked]).all()
