"""Values published by other tools on the same inputs.

LM-Polygraph ran on three queries of five samples with random log-likelihoods and states. Its NLI
model was a stub; the published DegMat and EigV fix what it said of a pair: entailment 0.99 for a
sample and itself, 0.90 within a meaning, 0.05 between meanings. KLE then fixes the weight of an
edge, entailment + neutral/2, at 0.94 and 0.125: contradiction was 0.02 and 0.80.
"""

import numpy as np
import pytest
from tests.scores.score_worlds import table, with_answer

from fusevlm.scores import SCORES
from fusevlm.types import Samples

TEXTS = [["cat", "cat", "a cat", "dog", "dog"], ["red"] * 5, ["1", "2", "3", "4", "5"]]
LENGTHS = [[2, 2, 3, 2, 2], [1] * 5, [2] * 5]
MEANINGS = [np.array([0, 0, 0, 1, 1]), np.zeros(5, int), np.arange(5)]


def graph(itself, same, other):
    found = [np.where(c[:, None] == c, same, other) for c in MEANINGS]
    for W in found:
        np.fill_diagonal(W, itself)
    return found


ENTAILMENT = graph(0.99, 0.90, 0.05)
CONTRADICTION = graph(0.0, 0.02, 0.80)
WEIGHT = [e + 0.5 * (1 - e - c) for e, c in zip(ENTAILMENT, CONTRADICTION, strict=True)]


def published(similarity):
    rng = np.random.default_rng(0)
    tokens = [[-rng.gamma(1.0, 0.5, size=n) for n in row] for row in LENGTHS]
    states = [rng.standard_normal((5, 64)).astype(np.float32) for _ in range(3)]
    samples = [Samples(t, p) for t, p in zip(TEXTS, tokens, strict=True)]
    known = {"meanings": MEANINGS, "between": [with_answer(W) for W in similarity]}
    return table(samples, middle=states, semantics=known)


@pytest.mark.parametrize(
    ("name", "similarity", "values"),
    [
        ("eigenscore", ENTAILMENT, [4.12531, 4.09740, 3.90408]),
        ("ln_entropy", ENTAILMENT, [0.82702, 0.42612, 0.47158]),
        ("semantic_entropy_discrete", ENTAILMENT, [0.67301, 0.0, 1.60944]),
        ("degree_matrix", ENTAILMENT, [0.490, 0.082, 0.762]),
        ("eigv", ENTAILMENT, [1.99827, 1.07843, 4.15966]),
        ("kernel_language_entropy", WEIGHT, [0.83267, 0.47020, 0.99197]),
    ],
)
def test_lm_polygraph(name, similarity, values):
    found = SCORES[name].compute(published(similarity))
    np.testing.assert_allclose(found, values, atol=6e-6)
