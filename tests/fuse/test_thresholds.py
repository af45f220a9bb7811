"""Threshold rules against brute force over all candidates, and MAPIE where definitions agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.risk_control.fwer_control import control_fwer
from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value
from scipy import stats

from fusevlm import thresholds
from fusevlm.errors import InputError
from fusevlm.maths.bounds import hoeffding_bentkus_p_value


def world(size=400, seed=0, decimals=2):
    rng = np.random.default_rng(seed)
    u = np.round(rng.standard_normal(size), decimals)  # with ties
    return u, rng.random(size) < stats.norm.cdf(1.2 * u - 0.6)


def brute(u, wrong, accept):
    """The largest observed score whose answered set is accepted, by trying them all."""
    best = -np.inf
    for theta in sorted(set(u)):
        chosen = wrong[u <= theta]
        if accept(int(chosen.sum()), len(chosen)):
            best = theta
    return best


@pytest.mark.parametrize("seed", range(5))
def test_empirical_is_the_largest_threshold_with_low_risk(seed):
    u, wrong = world(seed=seed)
    found = thresholds.empirical(u, wrong, risk=0.2)
    assert found.threshold == brute(u, wrong, lambda k, m: k / m <= 0.2)
    answered = found.answers(u)
    assert found.coverage == pytest.approx(answered.mean())
    assert found.empirical_risk == pytest.approx(wrong[answered].mean())
    assert found.guaranteed_risk is None


def test_a_score_equal_to_the_threshold_is_answered():
    found = thresholds.empirical([1.0, 2.0, 3.0], [0, 0, 1], risk=0.2)
    assert found.threshold == 2.0
    np.testing.assert_array_equal(found.answers([1.9, 2.0, 2.1]), [True, True, False])


def test_non_monotone_risk_takes_the_last_feasible_threshold():
    wrong = np.array([0, 1, 0, 0, 0, 0, 0, 0, 0, 0])  # risk 0, ½, ⅓, ¼, ⅕, …
    assert thresholds.empirical(np.arange(10.0), wrong, risk=0.15).threshold == 9.0


@pytest.mark.parametrize("seed", range(3))
def test_clopper_pearson_by_brute_force(seed):
    u, wrong = world(seed=seed, size=800)
    share = 0.1 / len(set(u))

    def accept(k, m):
        test = stats.binomtest(k, m, alternative="less")
        return test.proportion_ci(1 - share, method="exact").high <= 0.3

    found = thresholds.clopper_pearson(u, wrong, risk=0.3, delta=0.1)
    assert found.threshold == brute(u, wrong, accept)
    assert found.guaranteed_risk <= 0.3


def test_paper_bound_by_its_theorem():
    u, wrong = world()
    found = thresholds.paper_bound(u, wrong, risk=0.2, delta=0.1, min_answered=60)
    assert found.threshold == brute(u, wrong, lambda k, m: m >= 60 and k / m <= 0.2)
    epsilon = np.sqrt(np.log(2 * 401 / 0.1) / 120)
    assert found.guaranteed_risk == pytest.approx(found.empirical_risk + epsilon)


@pytest.mark.parametrize("seed", range(5))
def test_learn_then_test_against_mapies_fixed_sequence(seed):
    u, wrong = world(seed=seed)
    grid = np.quantile(np.random.default_rng(99).standard_normal(1000), np.linspace(0.1, 1, 60))
    p = [
        stats.binomtest(int(wrong[u <= g].sum()), int((u <= g).sum()), 0.2, "less").pvalue
        for g in grid
    ]
    rejected = control_fwer(np.array(p), 0.1, "fixed_sequence")
    expected = grid[rejected.max()] if len(rejected) else -np.inf
    found = thresholds.learn_then_test(u, wrong, risk=0.2, delta=0.1, grid=grid)
    assert found.threshold == pytest.approx(expected)
    assert found.guaranteed_risk == 0.2


def test_learn_then_test_starts_at_a_fixed_coverage():
    # the two most certain answers are wrong; the sequence does not begin there
    wrong = np.r_[[1, 1], np.zeros(398, int)]
    found = thresholds.learn_then_test(np.arange(400.0), wrong, risk=0.2, delta=0.1)
    assert found.threshold == 399.0
    few = thresholds.learn_then_test(np.arange(10.0), np.zeros(10), risk=0.2, delta=0.1)
    assert not few.feasible  # 0.8^10 > 0.1: ten right answers prove nothing
    enough = thresholds.learn_then_test(np.arange(11.0), np.zeros(11), risk=0.2, delta=0.1)
    assert enough.threshold == 10.0


def tuning(size, seed, rate=0.25, shift=1.6):
    """Scores of labelled queries, ascending, normal among right and wrong answers."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(size) < rate
    u = rng.normal(shift * wrong)
    order = np.argsort(u)
    return u[order], wrong[order]


def test_a_sequence_begins_where_its_first_test_mostly_succeeds():
    """The power of a first test at each start, by drawing calibration sets from the same world."""
    size, risk = 250, 0.1
    starts = np.linspace(0.15, 0.9, 16)
    scores = tuning(200_000, 0)[0]
    passed = []
    for seed in range(300):
        u, wrong = tuning(size, 1000 + seed)
        m = np.searchsorted(u, np.quantile(scores, starts), side="right")
        errors = np.r_[0, np.cumsum(wrong)][m]
        passed.append(stats.binom.cdf(errors, m, risk) <= 0.1)
    power = np.mean(passed, axis=0)
    near = starts[power >= power.max() - thresholds.NEARLY]
    found = [thresholds.first_coverage(tuning(size, k)[1], size, risk, 0.1) for k in range(40)]
    at = np.interp(found, starts, power)
    assert np.mean(found) == pytest.approx(np.median(near), abs=0.05)
    assert at.mean() > power.max() - 0.1  # though each was told by 250 labels alone
    assert power[0] < power.max() - 0.1  # an early start will not do, nor a late one
    assert power[8] < power.max() - 0.3


@pytest.mark.parametrize("top", [0.05, 0.3, 0.6])
def test_a_sequence_begins_below_the_limit_of_what_is_answered(top):
    u, wrong = tuning(500, 3, rate=0.05)  # nearly all starts are as powerful
    free = thresholds.candidate_grid(u, 500, 0.3, 0.1, wrong=wrong)[0]
    limit = float(np.quantile(u, top))
    for labels in (wrong, None):
        grid = thresholds.candidate_grid(u, 500, 0.3, 0.1, wrong=labels, limit=limit)
        assert grid[0] <= limit < grid[-1] == u[-1]  # those above are the caller's to leave out
    assert free > np.quantile(u, 0.4)


@pytest.mark.parametrize("labels", [np.zeros(60), np.ones(60)])
def test_a_start_is_found_whatever_the_labels(labels):
    u = np.sort(np.random.default_rng(0).standard_normal(60))
    for risk in (1e-4, 0.05, 0.5, 0.999):
        grid = thresholds.candidate_grid(u, 60, risk, 0.1, wrong=labels, limit=-9.0)
        assert len(grid) >= 1
        assert np.isfinite(grid).all()


def test_hoeffding_bentkus_p_value_against_mapie():
    mean, m = np.array([0.05, 0.1, 0.15, 0.19, 0.3]), np.array([50, 80, 200, 500, 70])
    expected = compute_hoeffding_bentkus_p_value(mean, m, 0.2)[:, 0]
    np.testing.assert_allclose(
        hoeffding_bentkus_p_value(mean, m, 0.2), np.minimum(expected, 1), rtol=1e-9
    )


def test_graded_losses_are_certified_more_cautiously_than_binary_ones():
    u, wrong = world()
    grid = np.quantile(u, np.linspace(0.2, 1, 50))
    binary = thresholds.learn_then_test(u, wrong, risk=0.25, grid=grid)
    graded = thresholds.hoeffding_bentkus(u, wrong, risk=0.25, grid=grid)
    assert graded.coverage <= binary.coverage
    half = thresholds.hoeffding_bentkus(u, wrong * 0.5, risk=0.25, grid=grid)
    assert half.coverage > graded.coverage
    assert half.empirical_risk == pytest.approx(np.mean(wrong[u <= half.threshold]) / 2)


@pytest.mark.parametrize(
    "rule",
    [
        thresholds.empirical,
        thresholds.learn_then_test,
        thresholds.clopper_pearson,
        thresholds.hoeffding_bentkus,
        thresholds.paper_bound,
    ],
)
def test_abstains_always_when_nothing_is_feasible(rule):
    found = rule(np.arange(50.0), np.ones(50), risk=0.2)
    assert found.threshold == -np.inf
    assert (found.feasible, found.coverage, found.empirical_risk) == (False, 0.0, None)
    assert found.guaranteed_risk is None
    assert not found.answers([-1e300, 0.0]).any()


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 0.99), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_quantile_is_the_smallest_threshold_that_covers_enough(coverage, size, seed):
    u = np.round(np.random.default_rng(seed).standard_normal(size), 1)
    found = thresholds.quantile(u, coverage=coverage).threshold
    assert np.mean(u <= found) >= coverage - 1e-9
    assert np.mean(u < found) < coverage
    assert found in u


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_order_of_queries_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    u, wrong = world(seed=seed % 1000, size=60)
    order = rng.permutation(60)
    for rule in (thresholds.empirical, thresholds.learn_then_test, thresholds.clopper_pearson):
        assert rule(u[order], wrong[order], risk=0.3) == rule(u, wrong, risk=0.3)


def test_risk_table_rows_by_hand():
    u, wrong = world()
    table = thresholds.risk_table(u, wrong, delta=0.1, n_rows=8)
    for row in table.rows():
        chosen = wrong[u <= row["threshold"]]
        assert row["coverage"] == pytest.approx(len(chosen) / 400)
        assert row["empirical_risk"] == pytest.approx(chosen.mean())
        test = stats.binomtest(int(chosen.sum()), len(chosen), alternative="less")
        upper = test.proportion_ci(1 - 0.1 / len(table.threshold), method="exact").high
        assert row["guaranteed_risk"] == pytest.approx(upper)
    assert table.coverage[-1] == 1.0


def test_groups_share_the_error_budget():
    u, wrong = world(size=900)
    groups = ["yes/no", "number", "other"] * 300
    found = thresholds.per_group(
        thresholds.learn_then_test, u, wrong, groups, risk=0.25, delta=0.15
    )
    for i, name in enumerate(["yes/no", "number", "other"]):
        alone = thresholds.learn_then_test(u[i::3], wrong[i::3], risk=0.25, delta=0.05)
        assert found.by_group[name].threshold == alone.threshold
        assert found.by_group[name].delta == pytest.approx(0.05)
    answered = found.answers(u, groups)
    expected = [a <= found.by_group[g].threshold for a, g in zip(u, groups, strict=True)]
    np.testing.assert_array_equal(answered, expected)
    with pytest.raises(InputError, match="'colour' was not in the calibration set"):
        found.answers([0.0], ["colour"])
    with pytest.raises(InputError, match="no guarantee to correct"):
        thresholds.per_group(thresholds.empirical, u, wrong, groups, risk=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [0, 1, 1]), "2 value"),
        (([1.0, np.nan], [0, 1]), "NaN"),
        (([], []), "empty"),
        (([1.0, 2.0], [0, 2]), "only 0"),
        ((["a", "b"], [0, 1]), "not numeric"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        thresholds.learn_then_test(*arguments, risk=0.2, delta=0.1)


@pytest.mark.parametrize("options", [{"risk": 0.0}, {"risk": 1.2}, {"risk": 0.2, "delta": 0}])
def test_risk_and_delta_are_fractions(options):
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        thresholds.learn_then_test([1.0, 2.0], [0, 1], **options)
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        thresholds.hoeffding_bentkus([1.0, 2.0], [0, 1.5], risk=0.2)


def test_the_design_effect_by_its_definition():
    rng = np.random.default_rng(0)
    units = rng.integers(0, 12, 60)
    order = rng.permutation(60)
    found = thresholds.Dependence(units, 0.4).effect(order)
    assert found[0] == 1.0
    for m in (1, 2, 17, 60):
        sizes = np.unique(units[order[:m]], return_counts=True)[1]
        assert found[m] == pytest.approx(1 + (np.sum(sizes**2) / m - 1) * 0.4)
    alone = thresholds.Dependence(np.arange(60), 0.9).effect(order)
    np.testing.assert_array_equal(alone, np.ones(61))


def test_shared_errors_are_the_correlation_of_pairs():
    rng = np.random.default_rng(1)
    units = rng.integers(0, 15, 50)
    residuals = rng.standard_normal(15)[units] + rng.standard_normal(50)
    pairs = [
        (residuals[i] * residuals[j])
        for i in range(50)
        for j in range(50)
        if i != j and units[i] == units[j]
    ]
    expected = np.mean(pairs) / np.mean(residuals**2)
    assert 0 < expected < 1
    assert thresholds.shared_errors(residuals, units) == pytest.approx(expected)
    assert thresholds.shared_errors(residuals, np.arange(50)) == 0.0
    assert thresholds.shared_errors(-np.ones(4), [0, 0, 1, 1]) == 1.0


def test_queries_that_go_wrong_together_break_the_plain_test_and_not_this_one():
    """Six queries of a unit are hard together: 400 calibration sets, wanted risk .1, δ = .1."""
    from scipy.special import ndtr

    rng = np.random.default_rng(3)
    n, k, line = 1200, 6, 1.8
    grid = np.linspace(-1.5, 3, 181)
    dense = np.linspace(-6, 3, 9001)
    mass = np.exp(-(dense**2) / 2)
    rate = ndtr((dense - line) / np.sqrt(1 + 0.49))  # P(wrong | u)
    true = np.interp(grid, dense, np.cumsum(mass * rate) / np.cumsum(mass))
    violations = {"plain": 0, "by unit": 0}
    for _ in range(400):
        units = np.repeat(np.arange(n // k), k)
        u = rng.standard_normal(n)
        hard = rng.standard_normal(n // k)[units] + 0.7 * rng.standard_normal(n)
        wrong = u + hard > line
        half = units < n // k // 2
        residuals = wrong[half] - ndtr((u[half] - line) / np.sqrt(1 + 0.49))
        shared = thresholds.shared_errors(residuals, units[half])
        for name, dependence in (
            ("plain", None),
            ("by unit", thresholds.Dependence(units[~half], shared)),
        ):
            theta = thresholds.learn_then_test(
                u[~half], wrong[~half], risk=0.1, delta=0.1, grid=grid, dependence=dependence
            )
            violations[name] += theta.feasible and np.interp(theta.threshold, grid, true) > 0.1
    assert violations["plain"] / 400 > 0.1 + 3 * np.sqrt(0.09 / 400)
    assert violations["by unit"] / 400 <= 0.1 + 3 * np.sqrt(0.09 / 400)
