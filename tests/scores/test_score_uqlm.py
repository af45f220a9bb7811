"""Scores of real replies against what UQLM published for them."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from tests.scores.score_worlds import table

from fusevlm.scores import SCORES
from fusevlm.types import Samples


@pytest.fixture(scope="module")
def expected():
    home = os.environ.get("FUSEVLM_TEST_DATA")
    if not home:
        pytest.skip("FUSEVLM_TEST_DATA is unset: no published replies to test on")
    return lambda name: json.loads(
        (Path(home) / "uqlm_expected" / f"{name}_results_file.json").read_text()
    )


@pytest.mark.parametrize("name", ["blackbox", "similarity"])
def test_exact_match_is_the_frequency_of_the_answer(expected, name):
    file = expected(name)
    data = file.get("data", file)
    replies = zip(data["sampled_responses"], data["responses"], strict=True)
    queries = table([Samples(texts, answer=answer) for texts, answer in replies])
    share = 1.0 - SCORES["frequency_answer"].compute(queries)
    np.testing.assert_allclose(share, data.get("exact_match", data.get("match_result")))


def test_discrete_semantic_entropy(expected):
    """UQLM groups the answer too. Its NLI merged "5 miles" with 5, and 32.5 with 32."""
    data = expected("semanticentropy")["data"]
    merged = {"5 miles": "5", "32.5": "32"}
    samples, meanings = [], []
    for texts, answer in zip(data["sampled_responses"], data["responses"], strict=True):
        samples.append(Samples([answer, *texts]))
        names = [merged.get(text, text) for text in samples[-1].texts]
        meanings.append(np.array([names.index(name) for name in names]))
    queries = table(samples, semantics={"meanings": meanings})
    found = SCORES["semantic_entropy_discrete"].compute(queries)
    np.testing.assert_allclose(found, data["entropy_values"], atol=1e-12)
    np.testing.assert_allclose(1 - found / math.log(6), data["confidence_scores"], atol=1e-12)


def test_normalised_probability_of_the_answer(expected):
    data = expected("whitebox")["data"]
    tokens = [[t["logprob"] for t in row] for row in data["logprobs"]]
    replies = zip(data["responses"], tokens, strict=True)
    queries = table([Samples([text], [row]) for text, row in replies])
    np.testing.assert_allclose(
        1.0 - SCORES["clm_max"].compute(queries), data["normalized_probability"], rtol=1e-12
    )
    np.testing.assert_allclose(
        np.exp(-SCORES["ln_entropy"].compute(queries)), data["normalized_probability"], rtol=1e-12
    )
