"""CLM: sets drawn one sample at a time, tests against scipy, the guarantee by simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from fusevlm.errors import InputError
from fusevlm.scores.clm import (
    CONFIDENCES,
    Certified,
    Config,
    certify,
    fixed_sequence,
    grid,
    kept_samples,
    losses_and_costs,
    members,
    pad_draws,
    pareto_order,
)

F_OF = {
    "first_k": len,
    "max": lambda Q: max(Q, default=0.0),
    "sum": math.fsum,
    "geo": lambda Q: -math.fsum(math.log(max(1 - q, 1e-8)) for q in Q),
}


def one_at_a_time(quality, similarity, config, kind):
    """The set and the number of draws of one query, sample after sample."""
    kept = []
    for k, q in enumerate(quality):
        near = max((similarity[k][j] for j in kept), default=0.0)
        if q >= config.quality and near <= config.similarity:
            kept.append(k)
        if F_OF[kind]([quality[j] for j in kept]) >= config.confidence:
            return kept, k + 1
    return kept, len(quality)


def world(n_queries, rng, n_samples=None):
    """Better samples are more often right; equal answers are similar and right together."""
    quality, similarity, right = [], [], []
    for _ in range(n_queries):
        n = n_samples or int(rng.integers(1, 7))
        ease = rng.beta(1.5, 1.0)
        group = rng.integers(0, 4, n)
        is_right = rng.uniform(size=4) < ease
        Q = np.clip(0.6 * is_right[group] + 0.4 * rng.uniform(size=n), 0.0, 1.0)
        near = rng.uniform(0.0, 0.6, (n, n))
        near = 0.5 * (near + near.T)
        quality.append(Q)
        similarity.append(np.where(group[:, None] == group, 1.0, near))
        right.append(is_right[group])
    taken = pad_draws(quality, similarity)
    marks = np.zeros_like(taken.quality, dtype=bool)
    for row, r in zip(marks, right, strict=True):
        row[: len(r)] = r
    return taken, marks, quality, similarity


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_sets_against_drawing_one_at_a_time(kind):
    taken, right, quality, similarity = world(40, np.random.default_rng(2))
    stops = {"first_k": [1, 2, 4], "max": [0.3, 0.9], "sum": [0.5, 1.5], "geo": [0.2, 2.0]}[kind]
    rejections = itertools.product([0.3, 0.7, 1.0], [0.0, quality[0][0], 0.8])
    for (l1, l2), l3 in itertools.product(rejections, [*stops, np.inf]):
        config = Config(l1, l2, l3)
        inside, drawn = members(taken, kept_samples(taken, l1, l2), kind, l3)
        (losses,), (cost,) = losses_and_costs(taken, right, [config], kind)
        sizes = []
        for i, (Q, W) in enumerate(zip(quality, similarity, strict=True)):
            expected, n_drawn = one_at_a_time(Q, W, config, kind)
            assert np.flatnonzero(inside[i]).tolist() == expected
            assert drawn[i] == n_drawn
            assert losses[i] == (not any(right[i, k] for k in expected))
            sizes.append(len(expected) + n_drawn)
        assert cost == pytest.approx(np.mean(sizes))
        again = Certified(config, kind, 0.1, 0.1).answer_sets(taken)
        np.testing.assert_array_equal(again, inside)


def test_the_pareto_order_against_comparing_all_pairs():
    rng = np.random.default_rng(3)
    chance = rng.uniform(size=60)
    losses = rng.uniform(size=(60, 20)) < chance[:, None]
    costs = rng.integers(1, 6, 60) + np.round(10 * (1 - chance))  # safer sets cost more
    risk = losses.mean(axis=1)
    order = pareto_order(losses, costs)
    points = list(zip(risk, costs, strict=True))

    def beaten(p):
        return any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)

    front = sorted({p for p in points if not beaten(p)})
    assert [points[c] for c in order] == front
    assert len(front) > 2


def test_the_fixed_sequence_stops_at_the_first_failure():
    m, risk, delta = 50, 0.2, 0.1
    most = max(k for k in range(m) if binom.cdf(k, m, risk) <= delta)

    def table(*errors):
        return np.array([np.arange(m) < e for e in errors])

    assert fixed_sequence(table(0, most, most), risk, delta) == 2
    assert fixed_sequence(table(0, most, most + 1, 0), risk, delta) == 1
    assert fixed_sequence(table(most + 1, 0, 0), risk, delta) is None


def test_the_grid_spans_from_everything_to_nothing():
    taken, right, *_ = world(60, np.random.default_rng(5))
    configs = grid(taken, "sum")
    losses, costs = losses_and_costs(taken, right, configs, "sum")
    held = right.any(axis=1)
    assert losses.mean(axis=1).min() == pytest.approx(1.0 - held.mean())
    assert costs.max() == pytest.approx(2.0 * np.isfinite(taken.quality).sum(axis=1).mean())
    assert costs.min() < 2.5


def test_certified_sets_from_end_to_end():
    rng = np.random.default_rng(6)
    taken, right, *_ = world(600, rng, n_samples=6)
    sets = certify(taken, right, order_on=np.arange(200), risk=0.25, delta=0.1)
    assert sets is not None
    losses = ~(sets.answer_sets(taken) & right).any(axis=1)
    assert binom.cdf(losses[200:].sum(), 400, 0.25) <= 0.1
    new, new_right, *_ = world(3000, rng, n_samples=6)
    inside = sets.answer_sets(new)
    assert np.mean(~(inside & new_right).any(axis=1)) <= 0.25
    assert inside.sum(axis=1).mean() < 4.0  # smaller than keeping all six samples


def test_what_cannot_be_certified_is_none():
    taken, right, *_ = world(60, np.random.default_rng(6))
    assert certify(taken, np.zeros_like(right), order_on=np.arange(20), risk=0.25) is None


def test_bad_input_is_refused():
    taken, right, *_ = world(10, np.random.default_rng(6))
    with pytest.raises(InputError, match="some must order"):
        certify(taken, right, order_on=np.arange(10), risk=0.2)
    with pytest.raises(InputError, match="right has shape"):
        certify(taken, right[:3], order_on=[0], risk=0.2)
    with pytest.raises(InputError, match="expected one of 'first_k', 'max', 'sum', 'geo'"):
        certify(taken, right, order_on=[0], risk=0.2, confidence="mean")


DELTA, REPETITIONS = 0.1, 400
BAR = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / REPETITIONS)


@pytest.fixture(scope="module")
def population():
    """Losses and costs of a fixed grid on 1500 queries, and the risk ε that is hardest to hold.

    The mean losses are the true risks. ε lies a hair below that of a configuration on the Pareto
    front: accepting this one is a miss, and no miss is more tempting.
    """
    taken, right, *_ = world(1500, np.random.default_rng(9), n_samples=6)
    configs = grid(taken.take(slice(0, 50)), "sum")
    losses, costs = losses_and_costs(taken, right, configs, "sum")
    front = losses.mean(axis=1)[pareto_order(losses, costs)]
    return losses, costs, front[front > 0.25].min() - 1e-9


def misses(choose, population):
    """How often the true risk of the configuration chosen is above ε."""
    losses, costs, risk = population
    truth = losses.mean(axis=1)
    rng = np.random.default_rng(10)
    count = 0
    for _ in range(REPETITIONS):
        learn, test = rng.integers(0, losses.shape[1], (2, 100))
        order = pareto_order(losses[:, learn], costs)
        found = choose(losses[order][:, test], risk)
        count += found is not None and truth[order[found]] > risk
    return count / REPETITIONS


def test_the_risk_is_held_with_the_stated_probability(population):
    rate = misses(lambda losses, risk: fixed_sequence(losses, risk, DELTA), population)
    assert 0.0 < rate <= BAR  # never missing would mean that ε is too easy


def test_without_the_test_it_is_not(population):
    """The control: the cheapest configuration whose empirical risk is at most ε."""

    def cheapest(losses, risk):
        passing = np.flatnonzero(losses.mean(axis=1) <= risk)
        return int(passing[-1]) if passing.size else None

    assert misses(cheapest, population) > BAR
