"""Samples in rounds: the prompt is read once, and nothing is drawn twice."""

import numpy as np
import pytest
from tests.models.conftest import llava, make_query  # noqa: F401

from fusevlm.errors import InputError
from fusevlm.models import huggingface
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.testing import tiny

HEAT = stratified(8)


def counted(model, monkeypatch):
    """Prefills by query, and the places drawn of each."""
    prefilled, drawn = [], []
    real, decode = model._prefill, huggingface.decode

    def prefill(query, **options):
        prefilled.append(query.id)
        return real(query, **options)

    def decoding(model, wishes, *given):
        drawn.extend((w.query_id, tuple(w.places)) for w in wishes)
        return decode(model, wishes, *given)

    monkeypatch.setattr(model, "_prefill", prefill)
    monkeypatch.setattr(huggingface, "decode", decoding)
    return prefilled, drawn


@pytest.mark.parametrize("path", ["auto", "repeated_cache"])
def test_the_prompt_is_kept_and_nothing_drawn_twice(path, monkeypatch):
    model = HuggingFace(*tiny.build("llava"), decoding=Decoding(max_new_tokens=3, path=path))
    prefilled, drawn = counted(model, monkeypatch)
    queries = [make_query(i) for i in range(3)]
    with model.begin(queries, HEAT, 1) as session:
        (first,) = session.draw(["q0"], 0)
        list(session.draw(["q0", "q2"], 4))
        both = list(session.draw(["q0", "q2"], 8))
    assert prefilled == ["q0", "q2"]  # q1 was never asked for
    assert drawn == [("q0", (-1,)), ("q0", (0, 1, 2, 3)), ("q2", (0, 1, 2, 3, -1)),
                     ("q0", (4, 5, 6, 7)), ("q2", (4, 5, 6, 7))]  # fmt: skip
    assert first.samples.answer == both[0].samples.answer
    assert len(first.samples) == 0
    assert not session.prompts  # nothing is kept once it is over
    whole = {g.query_id: g for g in model.sample(queries, 8, HEAT, 1)}
    for one in both:
        assert one.samples.texts == whole[one.query_id].samples.texts
        np.testing.assert_allclose(
            one.samples.embeddings, whole[one.query_id].samples.embeddings, atol=1e-5
        )


def test_a_query_that_failed_stays_failed_and_costs_nothing_more(llava, monkeypatch):  # noqa: F811
    prefilled, drawn = counted(llava, monkeypatch)
    bad = make_query(7, images=[b"nothing"])
    with llava.begin([bad, make_query(1)], HEAT, 0) as session:
        for n in (0, 4):
            broken, good = session.draw(["q7", "q1"], n)
            assert "not a picture" in broken.error
            assert len(good.samples) == n
    assert prefilled.count("q7") == 1
    assert {query for query, _ in drawn} == {"q1"}


def test_what_cannot_be_begun_is_refused(llava):  # noqa: F811
    with pytest.raises(InputError, match="same id"), llava.begin([make_query(1)] * 2, HEAT, 0):
        pass
