"""When to stop looking, against brute force, and the promise of the whole rule by simulation."""

import numpy as np
import pytest
from scipy import stats

from fusevlm.fuse.rounds import Gone, Rounds, Tier, _Saved, applies, at_tier, costs, usual_tiers
from fusevlm.fuse.stopping import Rule, choose_rule, expected_theta, explained, taken
from fusevlm.fuse.thresholds import learn_then_test
from fusevlm.types import Queries, Samples

COST = np.array([1.0, 5.0, 9.0, 17.0])


def world(size, seed, *, noise=(1.5, 1.5, 1.5, 1.5), t=0.9, crooked=False):
    """u, labels and P(wrong) [N, K] by measurements of u that come one by one."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal(size)
    wrong = u > t
    seen = u[:, None] + rng.standard_normal((size, len(noise))) * noise
    precision = 1 + np.cumsum(1 / np.array(noise) ** 2)
    m = np.cumsum(seen / np.array(noise) ** 2, axis=1) / precision
    x = (m - t) * np.sqrt(precision)
    if crooked:  # tiers whose P is anything but the probability
        x = x * np.array([0.5, 2.0, 1.0, 3.0]) + np.array([0.7, -0.4, 0.0, 0.5])
    return wrong, stats.norm.cdf(x), 1 / precision


def test_what_tiers_explain_is_the_drop_of_the_variance():
    rho = explained(np.array([0.8, 0.5, 0.6, 0.2]))
    assert rho[0, 1] ** 2 == pytest.approx(1 - 0.5 / 0.8)
    assert rho[1, 2] == 0.0  # more evidence never leaves more open
    assert rho[1, 3] ** 2 == pytest.approx(1 - 0.2 / 0.5)
    assert not np.tril(rho).any()


def test_each_query_stops_where_no_later_tier_is_worth_its_price():
    _, p, variance = world(300, 1)
    rule = Rule(0.15, 2e-3, explained(variance))
    cost = np.tile(COST, (300, 1))
    found = rule.stops(p, cost, np.zeros(300, dtype=bool))
    for i in range(300):
        k = 0
        while k < 3:  # by the definition, one query and one tier at a time
            worth = [rule.gains(p[[i], k], k)[0, j] - 2e-3 * (COST[j] - COST[k])
                     for j in range(k + 1, 4)]  # fmt: skip
            if max(worth) <= 0:
                break
            k += 1
        assert found[i] == k
        for at in range(4):
            going = rule.go_on(p[[i], at], at, cost[[i]])[0]
            assert going == (at < found[i]) or at > found[i]
    assert set(found) == {0, 1, 2, 3}
    novel = rule.stops(p, cost, np.arange(300) % 2 == 0)
    assert not novel[::2].any()
    np.testing.assert_array_equal(novel[1::2], found[1::2])


def test_a_budget_is_kept_on_average():
    _, p, variance = world(2000, 2)
    cost = np.tile(COST, (2000, 1))
    spent = []
    for budget in (0.0, 1.0, 4.0, 9.0, 100.0):
        rule = choose_rule(p, cost, variance, 0.15, budget=budget)
        stop = rule.stops(p, cost, np.zeros(2000, dtype=bool))
        spent.append(np.mean(COST[stop] - 1))
        assert spent[-1] <= budget + 1e-9
    assert spent[0] == 0
    assert spent[2] == pytest.approx(4.0, abs=0.05)
    assert spent[1] == pytest.approx(1.0, abs=0.05)
    assert rule.price == 0.0


def test_without_a_budget_a_look_that_tells_nothing_is_not_bought():
    _, p, variance = world(2000, 3)
    cost = np.tile(COST, (2000, 1))
    same = np.repeat(p[:, :1], 4, axis=1)
    rule = choose_rule(same, cost, np.full(4, variance[0]), 0.15)
    assert not rule.stops(same, cost, np.zeros(2000, dtype=bool)).any()
    telling = choose_rule(p, cost, variance, 0.15)
    assert telling.stops(p, cost, np.zeros(2000, dtype=bool)).mean() > 0.3


def test_samples_are_bought_where_the_decision_is_open():
    _, p, variance = world(4000, 4)
    cost = np.tile(COST, (4000, 1))
    rule = choose_rule(p, cost, variance, 0.15, budget=4)
    stop = rule.stops(p, cost, np.zeros(4000, dtype=bool))
    far = (p[:, 0] < 0.01) | (p[:, 0] > 0.7)
    near = np.abs(p[:, 0] - 0.15) < 0.05
    assert stop[far].mean() < 0.2 < 1.0 < stop[near].mean()


def test_the_expected_threshold_is_where_the_test_of_the_risk_would_end():
    """By trying every threshold on many label sets of other queries."""
    _, p, _ = world(4000, 5)
    size, risk, delta = 300, 0.1, 0.1
    theta = expected_theta(p[:, -1], size, risk, delta, cap=0.5)
    ends = []
    for seed in range(60):
        wrong, own, _ = world(size, 700 + seed)
        found = learn_then_test(own[:, -1], wrong, risk=risk, delta=delta)
        ends.append(found.threshold if found.feasible else 0.0)
    assert np.quantile(ends, 0.25) < theta < np.quantile(ends, 0.75)
    assert expected_theta(np.full(9, 0.5), 300, 0.1, 0.1, cap=0.5) == 0.1
    assert expected_theta(p[:, -1], size, 0.45, delta, cap=0.2) == 0.2


def rounds_of(tuning, kept, variance, *, apart=True):
    """Rounds as a fit would leave them, of P(wrong) that is known."""
    tiers = tuple(Tier(str(k), int(c) - 1, (), c) for k, c in enumerate(COST))
    rounds = Rounds(tiers)

    def gone(wrong, p):
        size = len(wrong)
        cost = np.tile(COST, (size, 1))
        return Gone(p, cost, wrong, np.full(size, np.nan), np.arange(size))

    rounds._saved = _Saved(
        tiers, rounds.options, (), variance, gone(*tuning), gone(*kept), apart, 0.0
    )
    return rounds


def run(rounds, p, plan):
    """What the rule does to new queries: answered, answers generated."""
    cost = np.tile(COST, (len(p), 1))
    stop = plan.rule.stops(p, cost, np.zeros(len(p), dtype=bool))
    u = taken(p, stop)
    allowed = plan.score_map(u) <= rounds.options.cap
    return allowed & (u <= plan.threshold.threshold), COST[stop]


def naive(kept, p, risk, delta):
    """Answered as soon as any tier's own threshold, tested on the same labels, lets it."""
    wrong, own = kept
    thetas = [learn_then_test(own[:, k], wrong, risk=risk, delta=delta) for k in range(4)]
    return np.any([theta.answers(p[:, k]) for k, theta in enumerate(thetas)], axis=0)


@pytest.mark.parametrize("case", ["informed", "crooked", "blind"])
def test_the_promise_holds_for_the_whole_rule(case):
    """Stopping early keeps it; looking at every tier's threshold does not."""
    risk, delta, repetitions = 0.1, 0.1, 120
    options = {"crooked": case == "crooked", "noise": (1.2, 3.0, 3.0, 3.0)}
    fresh_wrong, fresh, variance = world(4000, 99, **options)
    over, peeked, shares, spent = 0, 0, [], []
    for k in range(repetitions):
        tuning = world(200, 1000 + k, **options)[:2]
        kept = world(200, 5000 + k, **options)[:2]
        apart = case != "blind"
        rounds = rounds_of(tuning if apart else kept, kept, variance, apart=apart)
        plan = rounds.plan(risk, delta, 3.0 if k % 2 else None)
        answered, answers = run(rounds, fresh, plan)
        shares.append(answered.mean())
        spent.append(answers.mean())
        over += bool(answered.any()) and fresh_wrong[answered].mean() > risk
        looked = naive(kept, fresh, risk, delta)
        peeked += bool(looked.any()) and fresh_wrong[looked].mean() > risk
    bar = delta + 3 * np.sqrt(delta * (1 - delta) / repetitions)
    assert over / repetitions <= bar
    assert peeked / repetitions > bar  # the rule that peeks is seen to break it
    assert np.mean(shares) > 0.2
    # without labels for weights every sample is bought that could matter
    assert np.mean(spent) < COST[-1] * (0.75 if case == "blind" else 0.5)


def test_tiers_and_their_costs():
    tiers = usual_tiers(20, {"complement": 1})
    assert [t.samples for t in tiers] == [0, 0, 4, 8, 16, 20]
    assert [t.answers for t in tiers] == [1, 2, 6, 10, 18, 22]
    assert [t.samples for t in usual_tiers(4)] == [0, 4]
    assert [t.samples for t in usual_tiers(0)] == [0]
    assert [t.samples for t in usual_tiers(10, sizes=[2, 5, 50])] == [0, 2, 5, 10]
    samples = [Samples(["a"] * 20, answer="a")] * 2
    queries = Queries(["x", "y"], samples, evidence={"complement": [np.nan, 0.5]})
    asked = applies(tiers, queries)
    assert asked.tolist() == [False, True]
    np.testing.assert_array_equal(
        costs(tiers, asked), [[1, 1, 5, 9, 17, 21], [1, 2, 6, 10, 18, 22]]
    )
    early, later = at_tier(queries, tiers[0]), at_tier(queries, tiers[2])
    assert (len(early.samples[0]), list(early.evidence)) == (0, [])
    assert (len(later.samples[0]), list(later.evidence)) == (4, ["complement"])
