"""P(True) against a direct forward pass of the model over a prompt written out by hand."""

import numpy as np
import pytest
import torch
from tests.models.conftest import make_query

from factory import models as embedded
from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.semantics.selfcheck import first_tokens, p_true
from fusevlm.testing import tiny

YES, NO = tiny.VOCABULARY["yes"], tiny.VOCABULARY["no"]


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def vlm(family):
    return HuggingFace(*tiny.build(family), decoding=Decoding(max_new_tokens=5))


def directly(family, query, answer):
    """The same model built anew, the prompt written out, transformers alone."""
    model, processor = tiny.build(family)
    image = {"llava": "<image>", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}[family]
    text = (
        f"user: {image} Question: {query.question}\nProposed answer: {answer}\n"
        "Is the proposed answer true? Answer yes or no. assistant: "
    )
    inputs = processor(images=[load_image(query.images[0])], text=[text], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
    p = torch.exp(logits.double()) / torch.exp(logits.double()).sum()
    return float(p[YES]), float(p[NO])


def test_p_true_is_the_first_tokens_probability(family, vlm):
    queries = [make_query(i) for i in range(3)]
    answers = ["red", "no", "circle"]
    found = p_true(vlm, queries, answers)
    expected = np.array([directly(family, q, a) for q, a in zip(queries, answers, strict=True)])
    np.testing.assert_allclose(np.c_[found.yes, found.no], expected, rtol=1e-4)
    np.testing.assert_allclose(found.share, expected[:, 0] / expected.sum(axis=1), rtol=1e-4)
    assert len({float(v) for v in found.yes}) == 3


def test_the_models_own_settings_stay(vlm):
    before = vlm.decoding
    (first,) = vlm.sample([make_query(0)], 2, np.ones(2), seed=0)
    p_true(vlm, [make_query(0)], ["red"])
    (second,) = vlm.sample([make_query(0)], 2, np.ones(2), seed=0)
    assert vlm.decoding == before
    assert first.token_ids == second.token_ids


def test_a_broken_query_has_no_verdict(vlm, caplog):
    found = p_true(vlm, [make_query(0, images=["nothing.png"]), make_query(1)], ["red", "red"])
    assert np.isnan(found.yes[0])
    assert np.isnan(found.share[0])
    assert np.isfinite(found.yes[1])
    assert "no verdict on query q0" in caplog.text


def test_spellings_that_are_one_token():
    assert first_tokens(tiny.tokenizer(), "yes") == [YES]
    assert first_tokens(embedded.tokenizer(), "no") == embedded.encode("no")
    with pytest.raises(InputError, match="no single token for 'perhaps'"):
        first_tokens(tiny.tokenizer(), "perhaps")


def test_one_answer_per_query(vlm):
    with pytest.raises(InputError, match="0 answers for 1 queries"):
        p_true(vlm, [make_query(0)], [])
