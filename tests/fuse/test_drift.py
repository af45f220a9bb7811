"""Drift against scipy's two-sample tests, enumeration of all permutations, and simulation."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy import integrate, special, stats

from fusevlm import store
from fusevlm.errors import InputError
from fusevlm.fuse import drift
from fusevlm.fuse import monitor as betting
from fusevlm.fuse.drift import Reference, check
from fusevlm.fuse.monitor import Monitor

PAIRS = (("s", "logdet"), ("s", "surprisal"))


def usual(rng, size, hard=None):
    """Columns with a common cause, one skewed, one with ties, one with gaps, one of the input."""
    u = rng.standard_normal(size) if hard is None else hard
    own = rng.standard_normal((size, 5))
    return {
        "s": 0.7 * u + 0.7 * own[:, 0],
        "surprisal": np.exp(0.8 * u + 0.6 * own[:, 1]),
        "logdet": np.round(0.8 * u + 0.6 * own[:, 2], 1),
        "festa": np.where(rng.random(size) < 0.5, own[:, 3], np.nan),
        "image": own[:, 4],
    }


def mixed(rng, size):
    foreign = rng.random(size) < 0.3
    columns = usual(rng, size, rng.standard_normal(size) + 2 * foreign)
    return {**columns, "image": columns["image"] + 3 * foreign}


def easy(rng, size):
    return usual(rng, size, -np.abs(rng.standard_normal(size)))


def changed(name, change):
    def draw(rng, size):
        columns = usual(rng, size)
        return {**columns, name: change(columns[name], rng)}

    return draw


CASES = {  # how to draw it, a part that moves, and where
    "s constant": (changed("s", lambda v, rng: 0 * v), "s", "narrower"),
    "s flipped": (changed("s", lambda v, rng: -v), "s × logdet", "lower"),
    "s shuffled": (changed("s", lambda v, rng: rng.permutation(v)), "s × logdet", "lower"),
    "all easy": (easy, "logdet", "lower"),
    "evidence up": (changed("logdet", lambda v, rng: v + 0.8), "logdet", "higher"),
    "spread doubled": (changed("s", lambda v, rng: 2 * v), "s", "wider"),
    "input moved": (changed("image", lambda v, rng: v - 1), "image", "lower"),
    "30 % foreign": (mixed, "image", "higher"),
}


def reference(rng, size=300, draw=usual):
    columns = draw(rng, size)
    return Reference(tuple(columns), np.column_stack(list(columns.values())), PAIRS)


def features_of(before, now, order):
    x = drift.ranks(np.r_[before, now])
    is_new = np.r_[np.zeros(len(before)), np.ones(len(now))][None]
    return float(drift.standardised(drift.legendre(x)[:, [order]], is_new)[0, 0])


# ------------------------------------------------------------------------------- the statistics


@pytest.mark.parametrize("decimals", [0, 1, 9])  # with ties and without
def test_the_first_polynomial_is_wilcoxons_test(decimals):
    rng = np.random.default_rng(1)
    before, now = rng.normal(size=40).round(decimals), rng.normal(0.3, 1, 23).round(decimals)
    known = stats.mannwhitneyu(now, before, method="asymptotic", use_continuity=False)
    assert 2 * stats.norm.sf(features_of(before, now, 0)) == pytest.approx(known.pvalue, rel=1e-9)


def test_the_second_polynomial_is_moods_test():
    rng = np.random.default_rng(2)
    before, now = rng.normal(size=40), rng.normal(0, 2, 23)
    assert features_of(before, now, 1) == pytest.approx(abs(stats.mood(now, before).statistic))


def test_the_polynomials_are_legendres():
    x = np.linspace(-1, 1, 9)
    for k in range(4):
        expected = special.eval_legendre(k + 1, x)
        np.testing.assert_allclose(drift.legendre(x)[:, k], expected, atol=1e-14)


def test_ranks_are_scipys_midranks_and_gaps_stay():
    values = np.array([3.0, np.nan, 1.0, 3.0, 2.0, np.nan, 3.0])
    known = ~np.isnan(values)
    found = drift.ranks(values)
    expected = (2 * stats.rankdata(values[known]) - 6) / 5
    np.testing.assert_allclose(found[known], expected)
    assert np.isnan(found[~known]).all()
    assert np.isnan(drift.ranks(np.array([np.nan, np.nan]))).all()


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    a = rng.normal(size=50).round(1)
    b = a + rng.normal(size=50)
    assert drift.rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(drift.rank_correlation(a, 0 * a))


def test_sums_are_standardised_by_their_deviation_over_all_permutations():
    rng = np.random.default_rng(3)
    f = np.column_stack([rng.normal(size=8), rng.exponential(size=8), np.ones(8)])
    chosen = np.array([[i in rows for i in range(8)] for rows in combinations(range(8), 3)], float)
    sums = chosen @ f
    found = drift.standardised(f, chosen)
    brute = np.abs(sums - sums.mean(axis=0))[:, :2] / sums.std(axis=0)[:2]
    np.testing.assert_allclose(found[:, :2], brute, atol=1e-12)
    np.testing.assert_array_equal(found[:, 2], 0)  # what does not vary says nothing


# ------------------------------------------------------------------------------------- the test


def test_p_is_exact_over_all_labellings():
    """Each of the C(8, 3) labellings is as probable: P(p ≤ a) must never be above a."""
    rng = np.random.default_rng(4)
    f = rng.normal(size=(8, 3)).round(1)
    chosen = np.array([[i in rows for i in range(8)] for rows in combinations(range(8), 3)], float)
    T = drift.standardised(f, chosen)
    # the observed one is left out of the permutations: p's 1 + … counts it
    p = np.array([drift.adjusted(T[k], np.delete(T, k, axis=0)) for k in range(len(T))])
    top = T.max(axis=1)
    brute = [(top >= value * (1 - 1e-9)).mean() for value in top]
    np.testing.assert_allclose(p.min(axis=1), brute)
    for a in np.unique(p):
        assert (p.min(axis=1) <= a).mean() <= a + 1e-12


def test_step_down_by_its_definition():
    rng = np.random.default_rng(5)
    observed, drawn = np.array([1.2, 2.5, 0.3, 1.9]), np.abs(rng.normal(size=(199, 4)))
    found = drift.adjusted(observed, drawn)
    highest, left = 0.0, {0, 1, 2, 3}
    for j in sorted(left, key=lambda j: -observed[j]):
        tops = [max(row[k] for k in left) for row in drawn]
        highest = max(highest, (1 + sum(top >= observed[j] for top in tops)) / 200)
        assert found[j] == pytest.approx(highest)
        left.remove(j)


@pytest.mark.parametrize("size", [8, 60])
def test_the_level_is_kept(size):
    rng = np.random.default_rng([6, size])
    found = [
        check(reference(rng, 80), usual(rng, size), permutations=39, seed=k) for k in range(500)
    ]
    share = np.mean([one.drifted for one in found])
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 500)
    assert np.mean([one.p_value <= 0.5 for one in found]) == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize("case", CASES)
def test_drift_is_found_and_named(case):
    draw, part, direction = CASES[case]
    found = [
        check(reference(rng), draw(rng, 100), permutations=199)
        for rng in map(np.random.default_rng, range(10))
    ]
    assert sum(one.drifted for one in found) >= 9
    named = [m for one in found for m in one.moved if m.name == part]
    assert len(named) >= 8
    assert sum(m.direction == direction for m in named) >= 0.9 * len(named)


def test_what_moved_is_told_with_its_figures():
    rng = np.random.default_rng(7)
    base, new = reference(rng), usual(rng, 80)
    new["s"] = np.full(80, 0.1)
    new["festa"] = np.where(np.arange(80) < 76, 0.0 * new["s"] + rng.normal(size=80), np.nan)
    found = check(base, new)
    by_name = {one.name: one for one in found.moved}
    assert set(by_name) == {"s", "festa (known)"}  # no pair: their products move with s
    assert by_name["s"].before == pytest.approx(stats.iqr(base.values[:, 0]))
    assert by_name["s"].now == 0
    assert by_name["festa (known)"].now == pytest.approx(0.95)
    assert by_name["festa (known)"].direction == "higher"
    assert found.p_value == min(one.p_value for one in found.moved) <= found.level
    assert (found.n_reference, found.n_new) == (300, 80)
    for word in ("drift (p = ", "narrower: interquartile range", "300 of the calibration",
                 "may not hold"):  # fmt: skip
        assert word in str(found)
    assert "<table>" in found._repr_html_()
    quiet = check(base, usual(rng, 80))
    assert "no drift found" in str(quiet)
    assert quiet.moved == ()


def test_other_orders_of_rows_and_monotone_scales_change_nothing():
    rng = np.random.default_rng(8)
    base, new = reference(rng), mixed(rng, 40)
    first = check(base, new)
    squashed = Reference(base.names, np.arctan(base.values), PAIRS)
    assert check(squashed, {k: np.arctan(v) for k, v in new.items()}).p_value == first.p_value
    reordered = dict(reversed(list(new.items())))
    assert check(base, reordered) == first
    assert check(base, new, seed=0) == first


def test_blocks_of_permutations_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(9)
    base, new = reference(rng), mixed(rng, 30)
    whole = check(base, new)
    monkeypatch.setattr(drift, "BLOCK", 10_000)
    assert check(base, new) == whole


def test_a_column_that_is_never_known_or_never_varies_is_silent():
    rng = np.random.default_rng(10)
    columns = {"a": rng.normal(size=60), "b": np.full(60, np.nan), "c": np.ones(60)}
    base = Reference(tuple(columns), np.column_stack(list(columns.values())))
    new = {"a": rng.normal(size=20), "b": np.full(20, np.nan), "c": np.ones(20)}
    assert not check(base, new).drifted
    assert Monitor(base).update(new).n == 20


def test_what_cannot_be_compared_is_refused():
    rng = np.random.default_rng(11)
    base, new = reference(rng), usual(rng, 20)
    with pytest.raises(InputError, match=r"logdett.*Did you mean 'logdet'"):
        check(base, {**new, "logdett": new["logdet"]})
    with pytest.raises(InputError, match="lacks 'image'"):
        check(base, {k: v for k, v in new.items() if k != "image"})
    with pytest.raises(InputError, match="expected 20"):
        check(base, {**new, "image": new["image"][:9]})
    with pytest.raises(InputError, match="4 new queries"):
        check(base, {k: v[:4] for k, v in new.items()})
    with pytest.raises(InputError, match="10 of the reference"):
        check(Reference(base.names, base.values[:10]), new)
    with pytest.raises(InputError, match="10 of the reference"):
        Monitor(Reference(base.names, base.values[:10]))
    with pytest.raises(InputError, match="at least 19"):
        check(base, new, permutations=10)
    with pytest.raises(InputError, match="infinite"):
        check(base, {**new, "s": np.full(20, np.inf)})
    with pytest.raises(InputError, match="infinite"):
        Reference(("a",), np.full((30, 1), np.inf))
    with pytest.raises(InputError, match="same name"):
        Reference(("a", "a"), np.zeros((30, 2)))
    with pytest.raises(InputError, match="shape"):
        Reference(("a",), np.zeros((30, 2)))
    with pytest.raises(InputError, match="Did you mean"):
        Reference(("first", "b"), np.zeros((30, 2)), (("firts", "b"),))


def test_a_reference_is_plain_data(tmp_path):
    base = reference(np.random.default_rng(12))
    store.save_object(tmp_path, "reference.json", "reference", 1, base)
    again = store.load_object(
        tmp_path, "reference.json", "reference", 1, {"Reference": Reference}, {}
    )
    np.testing.assert_array_equal(again.values, base.values)
    assert (again.names, again.pairs) == (base.names, base.pairs)


# ---------------------------------------------------------------------------------- the monitor


def test_smoothed_p_values_are_uniform_and_independent_over_all_orders():
    """Each cell of (p of the 3rd value, of the 4th) is as frequent, over all orders and chances."""
    for values in ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 2.0, 2.0], [5.0, 5.0, 5.0, 5.0]):
        cells = np.zeros((3, 4))
        chances = (np.arange(12) + 0.5) / 12
        for order in permutations(values):
            for a, b in product(chances, chances):
                bag = sorted(order[:2])
                p = betting.conformal_p(bag, order[2], a)
                q = betting.conformal_p(bag, order[3], b)
                cells[int(p * 3), int(q * 4)] += 1
                assert bag == sorted(order)
        np.testing.assert_allclose(cells, cells.mean())


def test_p_values_of_one_column_are_not_uniform_given_anothers_past():
    """Why capitals of parts are not averaged: the past of both columns tells the next of one."""
    last = []
    for rows in permutations([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]):
        second, third = [], []
        for column in zip(*rows, strict=True):
            bag = [column[0]]
            second.append(betting.conformal_p(bag, column[1], 0.5))
            third.append(betting.conformal_p(bag, column[2], 0.5))
        if second[0] != second[1]:
            last += third
    assert last == pytest.approx([5 / 6] * 4)  # always the lowest


def test_a_high_value_has_a_low_p():
    assert betting.conformal_p([1.0, 2.0, 3.0], 9.0, 0.5) == pytest.approx(0.125)
    assert betting.conformal_p([1.0, 2.0, 3.0], 0.0, 0.5) == pytest.approx(0.875)
    bag = [1.0]
    assert np.isnan(betting.conformal_p(bag, float("nan"), 0.5))
    assert bag == [1.0]


def test_no_bet_has_an_expected_gain():
    for k in range(8):
        gain, _ = integrate.quad(
            lambda p, k=k: float(np.exp(betting.log_bets(np.array([p]))[0, k])), 0, 1,
            points=[0.5], limit=500,
        )  # fmt: skip
        assert gain == pytest.approx(1, abs=2e-3)
        assert gain <= 1 + 1e-6
    assert (betting.log_bets(np.array([np.nan])) == 0).all()
    assert np.isfinite(betting.log_bets(np.array([0.0, 0.5, 1.0]))).all()


@pytest.mark.parametrize(("p", "direction"), [(0.01, 0), (0.99, 1), (0.5, 3)])
def test_bets_win_where_their_name_says(p, direction):
    bets = betting.log_bets(np.array([p]))[0].reshape(4, 2).sum(axis=1)
    assert int(np.argmax(bets)) == direction
    both = betting.log_bets(np.array([0.01, 0.99])).sum(axis=0).reshape(4, 2).sum(axis=1)
    assert int(np.argmax(both)) == 2  # both ends: wider


def test_capital_is_a_mixture_over_bets_and_over_when_they_begin():
    """By definition: Σ over bets and starts of (laid · product of the gains since), plus the kept.

    With all gains 1 nothing is won or lost.
    """
    rng = np.random.default_rng(13)
    gains = rng.normal(size=(6, 2, 8))
    start = np.full((2, 8), betting._log_laid(0))
    found = np.exp(betting.capitals(start, gains, 0))
    for t in range(1, 7):
        by_hand = sum(
            np.exp(betting._log_laid(r)) * np.exp(gains[max(r - 1, 0) : t].sum(axis=0))
            for r in range(t + 1)
        )
        np.testing.assert_allclose(found[t - 1], by_hand)
    still = np.exp(betting.capitals(start, np.zeros((6, 2, 8)), 0)).sum(axis=2)
    np.testing.assert_allclose(still + np.array([[betting.kept(t)] for t in range(1, 7)]), 1)
    assert betting.kept(0) == 0.5
    assert 0.1 < betting.kept(10_000) < betting.kept(100)


def cell_mean(low, high, k):
    """The mean of bet k over p in a cell, by quadrature."""
    inside = [0.5] if low < 0.5 < high else None
    area, _ = integrate.quad(
        lambda p: float(np.exp(betting.log_bets(np.array([p]))[0, k])), low, high, points=inside
    )
    return area / (high - low)


def test_the_mean_capital_is_one_over_all_orders():
    """Two new values of a bag of four: the cells of the test of p-values, equally frequent."""
    first, second = (
        [[cell_mean(i / n, (i + 1) / n, k) for k in range(8)] for i in range(n)] for n in (3, 4)
    )
    total = []
    for one, other in product(first, second):
        gains = np.log([one, other])[:, None]
        laid = np.exp(betting.capitals(np.full((1, 8), betting._log_laid(0)), gains, 0))[-1]
        total.append(laid.sum() + betting.kept(2))
    assert np.ptp(total) > 0.1  # something is won and lost
    assert np.mean(total) == pytest.approx(1, abs=2e-3)


def test_false_alarms_are_rarer_than_the_level():
    rng = np.random.default_rng(14)
    alarms = 0
    for k in range(200):
        monitor = Monitor(reference(rng, 60), level=0.1, seed=k)
        alarms += monitor.update(usual(rng, 300)).alarm
    assert alarms / 200 <= 0.1 + 3 * np.sqrt(0.09 / 200)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("before", [0, 300])
def test_the_monitor_finds_it_soon(case, before):
    draw, part, _ = CASES[case]
    delays, parts = [], []
    for seed in range(5):
        rng = np.random.default_rng([15, seed])
        monitor = Monitor(reference(rng), seed=seed)
        if before and monitor.update(usual(rng, before)).alarm:
            continue
        state = monitor.update(draw(rng, 400))
        delays.append(np.inf if state.since is None else state.since - before)
        parts.append(state.worst)
    assert np.median(delays) <= {"s constant": 25, "s shuffled": 400}.get(case, 200)
    if case in ("s constant", "s flipped", "input moved"):
        assert parts.count(part) + parts.count("s × surprisal") >= 3


def test_one_by_one_is_as_all_at_once_and_what_was_seen_is_enough():
    rng = np.random.default_rng(16)
    base, new = reference(rng), usual(rng, 40)
    whole, single = Monitor(base), Monitor(base)
    for k in range(40):
        last = single.update({name: v[k] for name, v in new.items()})
    assert whole.update(new).capital == pytest.approx(last.capital, rel=1e-12)
    again = Monitor(base)
    assert again.update(single.seen).capital == pytest.approx(last.capital, rel=1e-12)


def test_an_alarm_stays_until_reset():
    rng = np.random.default_rng(17)
    base = reference(rng)
    monitor = Monitor(base)
    assert "no drift found" in str(monitor.state)
    draw, part, direction = CASES["s constant"]
    first = monitor.update(draw(rng, 60))
    assert first.alarm
    assert (first.worst, first.direction) == (part, direction)
    later = monitor.update(usual(rng, 2000))
    assert later.alarm
    assert later.since == first.since
    assert f"query {first.since}" in str(later)
    assert "<table>" in later._repr_html_()
    monitor.reset()
    assert not monitor.state.alarm
    assert monitor.state.n == 0
    assert monitor.seen["s"].size == 0
    assert not monitor.update(usual(np.random.default_rng(18), 100)).alarm


def test_gaps_that_never_were_are_noticed():
    rng = np.random.default_rng(19)
    monitor = Monitor(reference(rng))
    new = usual(rng, 100)
    state = monitor.update({**new, "logdet": np.full(100, np.nan)})
    assert state.alarm
    assert state.worst == betting.KNOWN


def test_capitals_beyond_any_float_are_safe():
    rng = np.random.default_rng(20)
    monitor = Monitor(reference(rng, 3000))
    state = monitor.update({k: v + 1e6 for k, v in usual(rng, 1500).items()})
    assert np.isfinite(state.capital)
    assert state.alarm
