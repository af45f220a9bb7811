"""The shipped models and fit: what they were made for is answered, and nothing else."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

import fusevlm
from fusevlm.data.questions import queries


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
    assert "P(wrong) is that of queries like the calibration's" in str(found)


def test_a_question_from_elsewhere_is_refused(assistant):
    query = queries("test", limit=1)[0]
    found = assistant.ask(query.images[0], "what is the capital of france?")
    assert found.reason == "unlike the calibration (question)"
    assert found.as_dict()["decision"] == "abstain"


def test_its_own_queries_are_not_novel_and_never_answered_above_the_cap(assistant):
    asked = [assistant.ask(q.images[0], q.question, n=5) for q in queries("test", limit=25)]
    assert sum(a.novelty <= 0.01 for a in asked) <= 1
    answered = [a for a in asked if a.decision == "answer"]
    assert len(answered) > 8
    assert max(a.p_wrong for a in answered) <= 0.5
    assert all(a.reason == "" for a in answered)
    assert all(a.reason for a in asked if a.decision == "abstain")
    assert "of all questions that are answered, at most 5%" in str(answered[0])
    assert np.isfinite([a.u for a in asked]).all()
