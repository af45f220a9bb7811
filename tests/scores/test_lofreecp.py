"""LoFreeCP: its score by hand, its quantile against numpy, its coverage by simulation."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from tests.scores.score_worlds import run, table, with_answer

from fusevlm.errors import InputError
from fusevlm.scores import SCORES
from fusevlm.scores.lofreecp import (
    GRID,
    AnswerSets,
    Weights,
    calibrate,
    conformal_quantile,
    find_candidates,
    right_nonconformity,
    tune_weights,
)
from fusevlm.types import Samples


def by_hand(texts, similarity, answer, to_answer, l1, l2):
    """N(x, answer) from counts; the top answer is the most frequent, then the alphabet."""
    texts, answer = [text.lower() for text in texts], answer.lower()
    counts, n = Counter(texts), len(texts)
    top = min(counts, key=lambda text: (-counts[text], text))
    entropy = -sum(c / n * math.log(c / n, n) for c in counts.values())
    places = [k for k, text in enumerate(texts) if text == top]
    mine = [k for k, text in enumerate(texts) if text == answer]
    if answer == top:
        near = 1.0
    elif mine:
        pairs = list(itertools.product(mine, places))
        near = sum(similarity[a][b] for a, b in pairs) / len(pairs)
    else:
        near = sum(to_answer[b] for b in places) / len(places)
    return -counts[answer] / n + l1 * entropy - l2 * near


WORLD = run(n_queries=40, n_samples=9, seed=8)


def hand_score(i, answer, l1, l2):
    one = WORLD.samples[i]
    about = WORLD.semantics[i]
    return by_hand(one.texts, about.similarity, answer, about.answer_similarity, l1, l2)


def test_the_score_is_n_of_the_judged_answer_under_the_weights_with_the_smallest_sets():
    known = [i for i in range(20) if not WORLD.wrong[i]]
    rank = math.ceil((len(known) + 1) * 0.7)
    best = None
    for l1, l2 in itertools.product(np.linspace(0, 2, 11), repeat=2):
        judged = sorted(hand_score(i, WORLD.samples[i].answer, l1, l2) for i in known)
        size = sum(
            hand_score(i, text, l1, l2) <= judged[rank - 1] + 1e-12
            for i in range(20)
            for text in set(WORLD.samples[i].texts)
        )
        if best is None or size < best[0]:
            best = (size, l1, l2)
    expected = [hand_score(i, WORLD.samples[i].answer, *best[1:]) for i in range(40)]
    np.testing.assert_allclose(SCORES["lofreecp"].compute(WORLD), expected, atol=1e-12)
    assert best[1:] != (0.0, 0.0)


def test_the_entropy_is_one_when_all_samples_differ():
    found = find_candidates(Samples(["a", "b", "c", "d"]), np.eye(4))
    np.testing.assert_allclose(found.terms.entropy, 1.0)
    np.testing.assert_allclose(found.terms.to_top, [1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(("m", "alpha"), [(5, 0.2), (9, 0.1), (19, 0.3), (100, 0.05), (57, 0.37)])
def test_the_quantile_against_numpy(m, alpha):
    scores = np.random.default_rng(m).standard_normal(m)
    level = np.ceil(round((m + 1) * (1 - alpha), 9)) / m
    assert level <= 1.0
    expected = np.quantile(scores, level, method="inverted_cdf")
    assert conformal_quantile(scores, alpha) == expected


def test_too_few_calibration_queries_make_every_answer_possible():
    assert conformal_quantile([1.0, 2.0, 3.0], 0.2) == np.inf
    assert conformal_quantile([1.0, 2.0, 3.0, np.inf], 0.2) == np.inf
    assert conformal_quantile([1.0, 2.0, 3.0, 4.0], 0.2) == 4.0
    everything = AnswerSets(Weights(0.0, 0.0), np.inf, 0.2)
    found = find_candidates(Samples(["b", "a", "b"]), np.ones((3, 3)))
    assert everything.answer_set(found) == ("a", "b")


def test_a_right_answer_that_nobody_sampled_is_infinitely_strange():
    found = find_candidates(Samples(["b", "a", "b"]), np.ones((3, 3)))
    weights = Weights(0.0, 0.0)
    assert right_nonconformity(found, [False] * 3, weights) == np.inf
    assert right_nonconformity(found, [False, True, False], weights) == pytest.approx(-1 / 3)
    assert right_nonconformity(found, [True] * 3, weights) == pytest.approx(-2 / 3)


def test_bad_input_is_refused():
    found = find_candidates(Samples(["b", "a", "b"]), np.ones((3, 3)))
    with pytest.raises(InputError, match="expected \\(3,\\), one per sample"):
        right_nonconformity(found, [True], Weights(0.0, 0.0))
    with pytest.raises(InputError, match="expected \\(3, 3\\)"):
        find_candidates(Samples(["b", "a", "b"]), np.ones((2, 2)))
    with pytest.raises(InputError, match="1 queries and 2 rows"):
        calibrate([found], [[True] * 3] * 2, Weights(0.0, 0.0), 0.1)
    for scores in ([np.nan], [], 1.0):
        with pytest.raises(InputError, match="not NaN"):
            conformal_quantile(scores, 0.1)
    with pytest.raises(InputError, match="strictly between"):
        conformal_quantile([1.0], 0.0)


def simulated(n_queries, rng):
    """Six answers, ten samples; the right answer is drawn like a sample, so it may be missing."""
    queries, right = [], []
    for _ in range(n_queries):
        p = rng.dirichlet(np.full(6, 0.6))
        group = rng.choice(6, 10, p=p)
        near = rng.uniform(size=(6, 6))
        near = 0.5 * (near + near.T)
        W = np.where(group[:, None] == group, 1.0, near[group][:, group])
        queries.append(find_candidates(Samples([f"answer {g}" for g in group]), W))
        right.append(group == rng.choice(6, p=p))
    return queries, right


def right_scores(queries, right, weights):
    pairs = zip(queries, right, strict=True)
    return np.array([right_nonconformity(query, marks, weights) for query, marks in pairs])


@pytest.fixture(scope="module")
def scores():
    """N of the right answers of 700 queries, the weights tuned on 200 others."""
    queries, right = simulated(900, np.random.default_rng(7))
    weights = tune_weights(queries[:200], lambda w: right_scores(queries[:200], right[:200], w))
    return right_scores(queries[200:], right[200:], weights)


def coverage(threshold_of, scores, *, alpha, m=5, repetitions=1500):
    """Share of new queries whose right answer has N within the threshold of m others."""
    rng = np.random.default_rng(8)
    hits = []
    for _ in range(repetitions):
        drawn = scores[rng.integers(0, len(scores), m + 1)]
        hits.append(drawn[-1] <= threshold_of(drawn[:-1], alpha))
    return np.mean(hits), math.sqrt(alpha * (1 - alpha) / repetitions)


def test_sets_cover_at_the_stated_rate(scores):
    covered, error = coverage(conformal_quantile, scores, alpha=0.2)
    assert covered >= 0.8 - 3 * error


def test_without_the_correction_for_m_they_do_not(scores):
    """The control: the plain 1 − α quantile of five scores covers 4 of 6."""
    covered, error = coverage(
        lambda drawn, alpha: np.sort(drawn)[math.ceil(len(drawn) * (1 - alpha) - 1e-9) - 1],
        scores,
        alpha=0.2,
    )
    assert covered < 0.8 - 3 * error


def test_the_sets_themselves_hold_a_right_answer_as_often_as_promised():
    """From candidates to sets, where right answers are almost always sampled and α is larger."""
    rng = np.random.default_rng(11)
    queries, right = simulated(1600, rng)
    sets = calibrate(queries[:600], right[:600], Weights(0.2, 0.4), 0.3)
    assert np.isfinite(sets.threshold)
    hits, sizes = [], []
    for query, marks in zip(queries[600:], right[600:], strict=True):
        inside = sets.answer_set(query)
        names = {query.answers.texts[g] for g in query.answers.group[marks]}
        hits.append(bool(names & set(inside)))
        sizes.append(len(inside) / len(query.answers.texts))
    spread = math.sqrt(0.3 * 0.7 * (1 / 600 + 1 / 1000))
    assert 0.7 - 3 * spread <= np.mean(hits) <= 0.7 + 3 * spread + 0.02  # ties cover a little more
    assert np.mean(sizes) < 0.9


def test_ties_go_to_the_smallest_weights():
    """One answer per query: no weight changes any set."""
    queries = [find_candidates(Samples(["a"] * 3), np.ones((3, 3)))] * 5
    tuned = tune_weights(
        queries, lambda weights: [q.terms.nonconformity(weights)[0] for q in queries]
    )
    assert tuned == Weights(GRID[0], GRID[0])


def test_a_judged_answer_is_recognised_in_another_spelling():
    one = Samples(["Cat", "cat.", "dog"], answer="CAT")
    alike = {"between": [with_answer(np.ones((3, 3)))]}
    queries = table([one], semantics=alike, fit=[0], wrong=[False])
    assert SCORES["lofreecp"].compute(queries)[0] == pytest.approx(-2 / 3)
