"""Scores of the judged answer's state against scipy and scikit-learn; folds; HUQ; FESTA."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis
from scipy.stats import rankdata
from sklearn.covariance import shrunk_covariance
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from tests.scores.score_worlds import known, run, with_known

from fusevlm.errors import InputError
from fusevlm.maths.covariance import oas_intensity
from fusevlm.scores import SCORES, compute_scores
from fusevlm.scores.densities import (
    HIGH,
    LOW,
    MIX,
    Hybrid,
    fit_density,
    rank_among,
    tune_hybrid,
)
from fusevlm.scores.held_out import out_of_fold
from fusevlm.scores.probes import best_split

LEARNT = ("mahalanobis", "relative_mahalanobis", "semantic_entropy_probe", "accuracy_probe")


def world(d, n_queries=120, seed=2):
    """Two thirds calibrate, units of two; the state says a little of right and wrong."""
    plain = run(n_queries=n_queries, n_samples=5, seed=seed)
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((n_queries, d)) * rng.uniform(0.2, 3.0, d) + 4.0
    states[:, 0] += 2.0 * plain.wrong
    units = [f"picture {k // 2}" for k in range(n_queries)]
    return replace(plain, answer_states={"last": states.astype(np.float32)}, units=units,
                   fit=np.arange(2 * n_queries // 3))  # fmt: skip


FEW, MANY = world(6), world(100)


def apart(queries):
    """(rows to learn on, rows to score): the folds, found by asking who was learnt on."""
    found = []

    def note(train, rows):
        found.append((train, rows))
        return np.zeros(len(rows))

    out_of_fold(queries, note)
    return found


def by_folds(queries, scored):
    """The column from ``scored(states to learn on, their rows, states to score)``."""
    states, column = np.float64(queries.answer_states["last"]), np.empty(len(queries))
    for train, rows in apart(queries):
        column[rows] = scored(states[train], train, states[rows])
    return column


def test_no_query_is_scored_by_a_fit_on_its_own_unit():
    folds = apart(FEW)
    units = np.array(FEW.units)
    assert len(folds) == 6
    for train, rows in folds:
        assert not set(units[train]) & set(units[rows])
        assert set(train) <= set(FEW.fit)
    scored = np.concatenate([rows for _, rows in folds])
    assert sorted(scored) == list(range(len(FEW)))
    whole = next(train for train, rows in folds if FEW.test[0] in rows)
    assert sorted(whole) == sorted(FEW.fit)


@pytest.mark.parametrize("name", LEARNT)
def test_a_label_moves_no_score_of_its_own_unit(name):
    """Turning the labels of a unit, and its meanings, leaves its own scores where they were."""
    turned = with_known(
        replace(FEW, wrong=FEW.wrong ^ (np.arange(len(FEW)) < 2)),
        meanings=[np.arange(5) if k < 2 else m for k, m in enumerate(known(FEW, "meanings"))],
    )
    before, after = SCORES[name].compute(FEW), SCORES[name].compute(turned)
    np.testing.assert_array_equal(after[:2], before[:2])
    assert (after[80:] != before[80:]).any() or name == "semantic_entropy_probe"


def test_one_unit_cannot_be_scored_by_others():
    alone = replace(FEW, units=["the only one"] * len(FEW))
    _, absent = compute_scores(alone, LEARNT)
    assert set(absent) == set(LEARNT)
    assert all("all calibration queries are of one unit" in why for why in absent.values())


def distance(rows, new):
    """scipy's distance under scikit-learn's shrunk covariance, with the paper's intensity."""
    S = np.cov(rows.T, bias=True)
    inverse = np.linalg.inv(shrunk_covariance(S, oas_intensity(S, len(rows))))
    return np.array([mahalanobis(x, rows.mean(axis=0), inverse) ** 2 for x in new])


@pytest.mark.parametrize("queries", [FEW, MANY], ids=["d < N", "d > N"])
def test_mahalanobis_against_scipy(queries):
    right = ~queries.wrong

    def to_right(states, rows, new):
        return distance(states[right[rows]], new)

    expected = by_folds(queries, to_right)
    np.testing.assert_allclose(SCORES["mahalanobis"].compute(queries), expected, rtol=1e-6)
    relative = by_folds(queries, lambda s, r, new: to_right(s, r, new) - distance(s, new))
    found = SCORES["relative_mahalanobis"].compute(queries)
    np.testing.assert_allclose(found, relative, rtol=1e-6, atol=1e-6)


def test_states_without_a_covariance_are_refused():
    for rows in (np.ones((1, 3)), np.ones((5, 3))):
        with pytest.raises(InputError, match="hidden states of right answers"):
            fit_density(rows, "right answers")
    _, absent = compute_scores(replace(FEW, wrong=np.ones(len(FEW), bool)), LEARNT)
    assert "right calibration answers" in absent["mahalanobis"]
    assert "needs both right and wrong" in absent["accuracy_probe"]
    assert "semantic_entropy_probe" not in absent


def probe(states, y, new):
    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000))
    return model.fit(states, y).predict_proba(new)[:, 1]


@pytest.mark.parametrize("queries", [FEW, MANY], ids=["d < N", "d > N"])
def test_the_probe_of_correctness_is_scikit_learns(queries):
    expected = by_folds(queries, lambda s, rows, new: probe(s, queries.wrong[rows], new))
    np.testing.assert_allclose(SCORES["accuracy_probe"].compute(queries), expected, atol=2e-4)


@pytest.mark.parametrize("queries", [FEW, MANY], ids=["d < N", "d > N"])
def test_the_probe_of_semantic_entropy_learns_high_or_low(queries):
    """High and low are the two leaves of the best regression stump."""
    entropy = SCORES["semantic_entropy_rao"].compute(queries)

    def high(states, rows, new):
        stump = DecisionTreeRegressor(max_depth=1).fit(entropy[rows, None], entropy[rows])
        return probe(states, entropy[rows] > stump.tree_.threshold[0], new)

    found = SCORES["semantic_entropy_probe"].compute(queries)
    np.testing.assert_allclose(found, by_folds(queries, high), atol=2e-4)


def test_the_best_split_by_trying_all():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = np.round(rng.gamma(1.0, 1.0, 12), 1)

        def within(cut, values=values):
            sides = (values[values <= cut], values[values > cut])
            return sum(side.size * side.var() for side in sides if side.size)

        least = min(within(cut) for cut in values)
        assert within(best_split(values)) == pytest.approx(least)
    assert best_split(np.full(4, 2.5)) == 2.5


def test_ranks_among_others():
    rng = np.random.default_rng(1)
    values = np.round(rng.standard_normal(40), 1)  # with ties
    np.testing.assert_allclose(rank_among(values, values), (rankdata(values) - 0.5) / 40)
    wide = np.sort(rng.normal(0, 5, 200))
    ranks = rank_among(wide, values)
    assert (np.diff(ranks) > 0).all()  # also beyond the smallest and the largest
    assert ranks[0] > 0
    assert ranks[-1] < 1
    for value, rank in zip(wide, ranks, strict=True):
        assert np.mean(values < value) - 0.06 <= rank <= np.mean(values <= value) + 0.06


def released(density, doubt, low, high, mix):
    """HUQ by ranks within the batch, region by region, as its authors define it."""
    n = len(density)
    far, unsure = rankdata(density), rankdata(doubt)
    familiar = [k for k in range(n) if far[k] <= int(n * low)]
    found = []
    for k in range(n):
        if k not in familiar:
            found.append((1 - mix) * far[k] + mix * unsure[k])
        elif unsure[k] > int(n * high):
            found.append(unsure[k])
        else:
            found.append(sum(doubt[j] < doubt[k] for j in familiar) + 1)
    return np.array(found)


@pytest.mark.parametrize(
    "setting", list(itertools.product((0.0, 0.1, 0.3), (0.9, 1.0), (0.0, 0.7)))
)
def test_huq_on_its_calibration_queries_is_the_released_one(setting):
    """Its ranks are those of the release, half a rank lower and as shares."""
    rng = np.random.default_rng(4)
    density, doubt = rng.standard_normal((2, 100))
    found = Hybrid(density, doubt, *setting)(density, doubt)
    np.testing.assert_allclose(100 * found + 0.5, released(density, doubt, *setting), atol=1e-9)


def mean_risk(score, wrong):
    """Mean error rate of the k surest, k = 1…N."""
    ordered = np.asarray(wrong, float)[np.argsort(score, kind="stable")]
    return np.mean(np.cumsum(ordered) / np.arange(1, len(ordered) + 1))


def test_huq_is_tuned_by_risk_and_coverage():
    rng = np.random.default_rng(6)
    density, doubt = rng.standard_normal((2, 300))
    familiar = density < -0.8
    wrong = np.where(familiar, doubt > 1.0, rng.logistic(size=300) < 1 + 2 * density)
    tuned = tune_hybrid(density, doubt, wrong)
    risks = {
        (low, high, mix): mean_risk(Hybrid(density, doubt, low, high, mix)(density, doubt), wrong)
        for low, high, mix in itertools.product(LOW, HIGH, MIX)
    }
    assert risks[tuned.low, tuned.high, tuned.mix] == pytest.approx(min(risks.values()), abs=2e-3)
    assert tuned.low > 0
    assert mean_risk(tuned(density, doubt), wrong) < min(
        mean_risk(density, wrong), mean_risk(doubt, wrong)
    )


def test_huq_scores_a_query_whatever_others_are_scored():
    column = SCORES["huq"].compute(FEW)
    fewer = FEW.take(np.arange(100))
    some = SCORES["huq"].compute(replace(fewer, fit=FEW.fit))
    np.testing.assert_allclose(some, column[:100], rtol=1e-9)


def test_festa_is_the_mean_of_both_failures():
    world = run(n_queries=4)
    agreed = [[True, True, False, False], [True] * 4, [False] * 4, [True, True, True, False]]
    asked = with_known(world, rephrasings=[np.array(a) for a in agreed],
                       complement=[1.0, 0.5, None, 0.0])  # fmt: skip
    np.testing.assert_allclose(SCORES["festa"].compute(asked), [0.75, 0.25, 1.0, 0.125])
    _, absent = compute_scores(with_known(asked, complement=[1.5] * 4), ["festa"])
    assert "complement is 1.5" in absent["festa"]


def test_answer_states_go_with_their_queries():
    first = FEW.first(2)
    assert first.answer_states is FEW.answer_states
    calibration, test = replace(FEW, fit=[3, 1]).split()
    states = FEW.answer_states["last"]
    np.testing.assert_array_equal(calibration.answer_states["last"], states[[3, 1]])
    np.testing.assert_array_equal(test.answer_states["last"][0], states[0])
    with pytest.raises(InputError, match="answer_states 'last' has 2 entries for 120 queries"):
        replace(FEW, answer_states={"last": states[:2]})
