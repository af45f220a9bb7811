"""Each score against its definition, computed another way."""

import math
import statistics
from collections import Counter

import numpy as np
import pytest
import scipy.linalg
from scipy.special import entr, logsumexp
from scipy.stats import entropy
from tests.scores.score_worlds import known, run, table, with_answer

from fusevlm.meanings import same_form
from fusevlm.scores import SCORES
from fusevlm.scores.agreement import answers, complement_column, rephrasing_column
from fusevlm.scores.interface import missing_reason
from fusevlm.types import Samples

WORLD = run(n_queries=20, n_samples=6, d=9, seed=4)


def score(name, queries=WORLD):
    return SCORES[name].compute(queries)


def alike(*similarity):
    """Queries of which the similarities are all that is known."""
    samples = [Samples(["x"] * len(W)) for W in similarity]
    return table(samples, semantics={"between": [with_answer(W) for W in similarity]})


def volume(states):
    """½·logdet/n from the singular values of the states, never their Gram matrix."""
    rows = [row / math.hypot(*row) for row in states]
    return sum(0.5 * math.log(s**2 + 1e-8) for s in scipy.linalg.svdvals(rows)) / len(rows)


@pytest.mark.parametrize(
    ("name", "p_of"),
    [
        ("umpire", lambda row: math.prod(np.exp(row))),
        ("umpire_token", lambda row: statistics.geometric_mean(np.exp(row))),
    ],
)
def test_umpire(name, p_of):
    log_volume = [volume(one.embeddings) for one in WORLD.samples]
    doubt = [
        statistics.fmean(1.0 - p_of(row) for row in one.token_logprobs) for one in WORLD.samples
    ]
    alpha = abs(statistics.median(log_volume[:10]) / statistics.median(doubt[:10]))
    expected = np.array(log_volume) + alpha * np.array(doubt)
    np.testing.assert_allclose(score(name), expected, rtol=1e-9)


def test_umpire_2025_is_the_log_determinant_plus_the_summed_incoherence():
    a, b = score("umpire_2025"), score("umpire")
    np.testing.assert_array_equal(np.argsort(a), np.argsort(b))
    rows = WORLD.samples[0].embeddings
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    logdet = np.linalg.slogdet(rows @ rows.T + 1e-8 * np.eye(6))[1]
    sure = Samples(["x"] * 6, [[0.0]] * 6, WORLD.samples[0].embeddings)
    (found,) = score("umpire_2025", table([sure], fit=[0]))
    assert found == pytest.approx(logdet, rel=1e-9)


def test_umpire_of_repeats_is_the_jitter():
    """Rank 1: one eigenvalue n, the others 1e-8."""
    one = Samples(["x"] * 4, [[0.0]] * 4, np.tile([3.0, 4.0], (4, 1)))
    expected = (math.log(4 + 1e-8) + 3 * math.log(1e-8)) / 8
    assert score("umpire", table([one], fit=[0]))[0] == pytest.approx(expected, rel=1e-6)


def test_eigenscore_centres_over_features():
    for E, found in zip(WORLD.states["middle"], score("eigenscore"), strict=True):
        J = np.eye(9) - np.full((9, 9), 1 / 9)
        assert found == pytest.approx(
            math.log(scipy.linalg.det(E @ J @ E.T + 1e-3 * np.eye(6))) / 6, rel=1e-9
        )


def test_eigenscore_as_released_against_numpy_cov():
    for E, found in zip(WORLD.states["middle"], score("eigenscore_code"), strict=True):
        singular = scipy.linalg.svdvals(np.cov(E) + 1e-3 * np.eye(6))
        assert found == pytest.approx(statistics.fmean(map(math.log10, singular)), rel=1e-9)


def test_eigenscore_of_the_last_layer_ignores_the_scale():
    doubled = table([Samples(s.texts, None, 2.0 * s.embeddings) for s in WORLD.samples])
    np.testing.assert_allclose(score("eigenscore_last", doubled), score("eigenscore_last"))
    unit = [s.embeddings / np.linalg.norm(s.embeddings, axis=1)[:, None] for s in WORLD.samples]
    as_middle = table(WORLD.samples, middle=unit)
    np.testing.assert_allclose(score("eigenscore", as_middle), score("eigenscore_last"))


def test_token_scores():
    for i, one in enumerate(WORLD.samples):
        rows = one.token_logprobs
        perplexity = [statistics.geometric_mean(1 / np.exp(row)) for row in rows]
        assert score("ln_entropy")[i] == pytest.approx(
            math.log(statistics.geometric_mean(perplexity))
        )
        pooled = [math.exp(t) for row in rows for t in row]
        assert score("ntl")[i] == pytest.approx(1 - statistics.fmean(pooled))
        surprise = statistics.fmean(statistics.fmean(entr(np.exp(row))) for row in rows)
        assert score("ln_entropy_umpire")[i] == pytest.approx(surprise)
        assert score("g_nll")[i] == pytest.approx(-math.log(math.prod(np.exp(one.answer_logprobs))))


def test_semantic_entropy_against_scipy():
    for i, (one, labels) in enumerate(zip(WORLD.samples, known(WORLD, "meanings"), strict=True)):
        likelihood = [statistics.geometric_mean(np.exp(row)) for row in one.token_logprobs]
        mass = Counter()
        for meaning, p in zip(labels, likelihood, strict=True):
            mass[meaning] += p
        assert score("semantic_entropy_rao")[i] == pytest.approx(entropy(list(mass.values())))
        counts = list(Counter(labels.tolist()).values())
        assert score("semantic_entropy_discrete")[i] == pytest.approx(entropy(counts))
        means = np.array([row.mean() for row in one.token_logprobs])
        kuhn = [5 - logsumexp(means[labels == c]) for c in set(labels.tolist())]
        assert score("semantic_entropy_kuhn")[i] == pytest.approx(statistics.fmean(kuhn))


def test_semantic_entropy_of_very_unlikely_answers():
    """exp(−5000) underflows; the entropy depends on the differences only."""
    texts, known = ["a", "b", "c"], {"meanings": [np.array([0, 1, 1])]}

    def rao(shift):
        tokens = [[-1.0 + shift], [-2.0 + shift], [-1.5 + shift]]
        return score("semantic_entropy_rao", table([Samples(texts, tokens)], semantics=known))[0]

    assert rao(-5000.0) == pytest.approx(rao(0.0), rel=1e-9)
    assert rao(0.0) == pytest.approx(entropy([math.exp(-1), math.exp(-2) + math.exp(-1.5)]))


def test_frequencies_and_distinct_answers():
    one = Samples(["A cat.", "a  cat", "dog", "'Dog'", "a cat!"], answer="Dog")
    other = Samples(["5", "-5", ".5", "5.", "$5"], answer="6")
    queries = table([one, other])
    np.testing.assert_allclose(score("frequency_answer", queries), [3 / 5, 1.0])
    np.testing.assert_allclose(score("frequency_top", queries), [2 / 5, 3 / 5])
    np.testing.assert_array_equal(score("distinct", queries), [2, 4])


def test_equal_counts_are_settled_by_the_alphabet():
    given = answers(Samples(["b", "a", "c", "b", "a"]))
    assert given.texts[given.top] == "a"
    assert given.find("C ") == 2
    assert given.find("d") is None
    assert same_form(" “x” ") == "“x”"


def test_the_same_answer_in_other_spellings():
    """A sign inside the text is part of it, and an option called A is not an article."""
    spellings = ["The red cat!", "-5.", "1.5", "A", "'A cat.'", "vitamin-a"]
    forms = ["red cat", "-5", "1.5", "a", "cat", "vitamin-a"]
    assert [same_form(text) for text in spellings] == forms


def test_p_true_and_neighborhood():
    known = {"p_true": [0.25, 1.0], "rephrasings": [[True, False, True, True], [False]]}
    queries = table([Samples(["x"])] * 2, semantics=known)
    np.testing.assert_allclose(score("p_true", queries), [0.75, 0.0])
    np.testing.assert_allclose(score("neighborhood", queries), [0.25, 1.0])


def test_columns_of_further_evidence():
    """NaN where a query was not asked; the paper's score counts that as no agreement."""
    known = {
        "rephrasings": [np.array([True, False, True, True]), np.array([], dtype=bool), None],
        "complement": [0.25, None, 0.0],
    }
    queries = table([Samples(["x"])] * 3, semantics=known)
    np.testing.assert_array_equal(rephrasing_column(queries), [0.25, np.nan, np.nan])
    np.testing.assert_array_equal(complement_column(queries), [0.25, np.nan, 0.0])
    bare = table([Samples(["x"])] * 3)
    for column in (rephrasing_column, complement_column):
        np.testing.assert_array_equal(column(bare), [np.nan] * 3)
    assert missing_reason(queries, ["complement"]).startswith("1 of 3 queries have no complement")


def test_graph_scores_against_the_generalised_eigenproblem():
    """(D − W)u = λDu has the eigenvalues of the normalised Laplacian, and u = D^-½ v."""
    for i, W in enumerate(known(WORLD, "similarity")):
        D = np.diag(W.sum(axis=1))
        values, vectors = scipy.linalg.eigh(D - W, D)
        assert score("eigv")[i] == pytest.approx(sum(max(0.0, 1.0 - v) for v in values))
        assert score("degree_matrix")[i] == pytest.approx(np.trace(6 * np.eye(6) - D) / 36)
        embedding = scipy.linalg.sqrtm(D) @ vectors[:, values < 0.9]
        centre = embedding.mean(axis=0)
        expected = math.hypot(*(math.dist(row, centre) for row in embedding))
        assert score("eccentricity")[i] == pytest.approx(expected)


def test_one_direction_of_entailment_counts_half():
    W = np.array([[1.0, 0.8], [0.2, 1.0]])
    both = alike(W, np.array([[1.0, 0.5], [0.5, 1.0]]))
    for name in ("degree_matrix", "eigv", "eccentricity", "kernel_language_entropy"):
        one_way, averaged = score(name, both)
        assert one_way == pytest.approx(averaged)


def test_separate_groups_are_counted_by_eigv():
    group = np.array([0, 0, 1, 2, 2, 2])
    queries = alike((group[:, None] == group).astype(float))
    assert score("eigv", queries)[0] == pytest.approx(3.0)
    assert score("eccentricity", queries)[0] == pytest.approx(math.sqrt(2.0))  # 3 axes − the mean


def test_kernel_language_entropy_against_matrix_functions():
    for i, W in enumerate(known(WORLD, "similarity")):
        graph = W + W.T
        K = scipy.linalg.expm(-0.3 * (np.diag(graph.sum(axis=1)) - graph))
        rho = K / np.sqrt(np.outer(K.diagonal(), K.diagonal())) / 6
        expected = -np.trace(rho @ scipy.linalg.logm(rho)) / math.log(6)
        assert score("kernel_language_entropy")[i] == pytest.approx(expected)


def test_kernel_language_entropy_of_strangers_is_one():
    queries = alike(np.eye(5))
    assert score("kernel_language_entropy", queries)[0] == pytest.approx(1.0)


def test_clm_scores():
    for i, one in enumerate(WORLD.samples):
        Q = [statistics.geometric_mean(np.exp(row)) for row in one.token_logprobs]
        assert score("clm_max")[i] == pytest.approx(1 - max(Q))
        assert score("clm_sum")[i] == pytest.approx(-math.fsum(Q))
        assert score("clm_geo")[i] == pytest.approx(math.log(math.prod(1 - q for q in Q)))


def test_clm_geo_of_certain_samples_is_floored():
    sure = table([Samples(["x", "x"], [[0.0], [0.0]])])
    assert score("clm_geo", sure)[0] == pytest.approx(2 * math.log(1e-8))
