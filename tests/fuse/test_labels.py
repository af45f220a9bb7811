"""How many labels: exact numbers against brute force, simulated ones against the real thing."""

import dataclasses

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn.metrics import roc_auc_score

import fusevlm
from fusevlm import thresholds
from fusevlm.errors import InputError
from fusevlm.fuse import labels
from fusevlm.fuse.estimator import divide
from fusevlm.fuse.labels import Binormal, labels_needed, why_nothing
from fusevlm.fuse.thresholds import least_answers
from fusevlm.maths import bounds

EASY = {"risk": 0.2, "coverage": 0.7, "error_rate": 0.25, "auroc": 0.85, "repetitions": 200}


@pytest.fixture(scope="module")
def plan():
    return labels_needed(**EASY)


def real_coverage(world, rng, n, risk, delta=0.1, share=0.5):
    """True coverage certified with n fresh labels by the functions Fuse calls."""
    wrong = rng.random(n) < world.error_rate
    u = rng.normal(np.where(wrong, np.sqrt(2) * stats.norm.ppf(world.auroc), 0.0))
    size = round(share * n)
    grid = thresholds.candidate_grid(u[size:], size, risk, delta, wrong=wrong[size:])
    found = thresholds.learn_then_test(u[:size], wrong[:size], risk=risk, delta=delta, grid=grid)
    crowd = rng.random(4000) < world.error_rate
    scores = rng.normal(np.where(crowd, np.sqrt(2) * stats.norm.ppf(world.auroc), 0.0))
    return found.answers(scores).mean()


@pytest.mark.parametrize(("rate", "auroc"), [(0.2, 0.85), (0.05, 0.7), (0.6, 0.97), (0.3, 0.5)])
@pytest.mark.parametrize("coverage", [0.05, 0.4, 0.9])
def test_the_error_rate_of_the_surest_by_quadrature_and_by_drawing(rate, auroc, coverage):
    found = Binormal(rate, auroc).error_at(coverage)
    shift = np.sqrt(2) * stats.norm.ppf(auroc)
    x = np.linspace(-12, 12 + shift, 200_001)
    wrong = rate * stats.norm.pdf(x, shift)
    both = wrong + (1 - rate) * stats.norm.pdf(x)
    covered = integrate.cumulative_trapezoid(both, x, initial=0)
    errors = integrate.cumulative_trapezoid(wrong, x, initial=0)
    assert found == pytest.approx(np.interp(coverage, covered, errors) / coverage, rel=1e-5)
    u, y = Binormal(rate, auroc).draw(np.random.default_rng(1), 200_000)
    surest = y[np.argsort(u)[: int(coverage * len(u))]]
    assert surest.mean() == pytest.approx(found, abs=4 * surest.std() / np.sqrt(len(surest)) + 1e-4)


def test_draws_have_the_stated_error_rate_and_auroc_and_longer_ones_begin_with_shorter():
    world = Binormal(0.2, 0.85)
    u, wrong = world.draw(np.random.default_rng(3), 100_000)
    assert wrong.mean() == pytest.approx(0.2, abs=0.005)
    assert roc_auc_score(wrong, u) == pytest.approx(0.85, abs=0.005)
    few, labelled = world.draw(np.random.default_rng(3), 50)
    np.testing.assert_array_equal(few, u[:50])
    np.testing.assert_array_equal(labelled, wrong[:50])


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.15])
def test_the_largest_coverage_is_the_last_with_an_error_rate_below_the_risk(risk):
    world = Binormal(0.2, 0.85)
    tried = np.linspace(0.001, 1, 1000)
    below = tried[[world.error_at(c) < risk for c in tried]]
    assert below.max() <= world.largest_coverage(risk) <= below.max() + 0.0011


def test_the_largest_coverage_at_its_ends():
    assert Binormal(0.2, 0.85).largest_coverage(0.3) == 1.0
    assert Binormal(0.2, 0.5).largest_coverage(0.1) == 0.0
    assert 0 <= Binormal(0.9, 0.51).largest_coverage(0.001) < 1e-9


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.25])
def test_fewest_answers_by_trying_them_all(risk, delta):
    m = next(m for m in range(1, 1000) if thresholds.learn_then_test(
        np.zeros(m), np.zeros(m), risk=risk, delta=delta, grid=[0.0]).feasible)  # fmt: skip
    assert least_answers(risk, delta) == m


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("size", [1, 11, 45])
def test_labels_in_all_are_the_fewest_that_fuse_divides_so(size, share):
    def kept(n):
        return len(divide([str(i) for i in range(n)], share, 0)[1])

    assert labels.in_all(size, share) == next(n for n in range(3, 400) if kept(n) >= size)


@pytest.mark.parametrize(("risk", "delta"), [(0.05, 0.1), (0.2, 0.05), (0.5, 0.4)])
def test_allowed_errors_by_trying_them_all(risk, delta):
    for m, most in enumerate(bounds.allowed_errors(np.arange(120), risk, delta)):
        passed = np.flatnonzero(stats.binom.cdf(np.arange(m), m, risk) <= delta)
        assert most == max(passed, default=-1)


def single_power(n, coverage, error, risk, delta):
    """The double sum, over m answered and k of them wrong."""
    m, k = np.mgrid[1 : n + 1, : n + 1]
    passed = (stats.binom.cdf(k, m, risk) <= delta) & (k <= m)
    both = stats.binom.pmf(m, n, coverage) * stats.binom.pmf(k, m, error)
    return both[passed].sum()


def test_the_power_of_one_test_by_enumeration():
    setting = (0.6, 0.08, 0.2, 0.1)
    found = labels.single_powers(*setting, 60)[::4]
    assert found == pytest.approx([single_power(n, *setting) for n in range(0, 61, 4)], abs=1e-12)


def test_the_power_of_one_test_by_simulation():
    rng = np.random.default_rng(0)
    m = rng.binomial(150, 0.5, size=20_000)
    passed = stats.binom.cdf(rng.binomial(m, 0.09), m, 0.2) <= 0.1
    assert labels.single_powers(0.5, 0.09, 0.2, 0.1, 150)[-1] == pytest.approx(
        passed.mean(), abs=4 * passed.std() / np.sqrt(len(m))
    )


def test_a_single_test_holds_from_its_number_on():
    setting, power = (0.6, 0.08, 0.2, 0.1), 0.8
    found = labels.single_test(*setting, power, 160)
    tried = [single_power(n, *setting) for n in range(found - 1, found + 30)]
    assert tried[0] < power <= min(tried[1:])
    assert labels.single_test(*setting, power, found - 1) is None
    assert labels.single_test(*setting, 1e-9, 160) == least_answers(0.2, 0.1)


@pytest.mark.parametrize(
    ("n", "risk", "share"), [(40, 0.2, 0.5), (101, 0.1, 0.5), (500, 0.05, 0.3), (900, 0.1, 0.7)]
)
def test_the_simulation_is_the_procedure(n, risk, share):
    trials = labels._Trials(Binormal(0.2, 0.85), risk, 0.1, share, 5, 100)
    u, wrong, apart = trials.draws(n, range(25))
    assert apart.sum() == round(share * n)
    for mine, y, theta in zip(u, wrong, trials.thresholds(u, wrong, apart), strict=True):
        size = int(apart.sum())
        grid = thresholds.candidate_grid(mine[~apart], size, risk, 0.1, wrong=y[~apart])
        real = thresholds.learn_then_test(mine[apart], y[apart], risk=risk, delta=0.1, grid=grid)
        assert theta == pytest.approx(real.threshold, abs=1e-12)


def test_what_the_plan_promises_happens_to_other_label_sets(plan):
    world, rng = Binormal(0.25, 0.85), np.random.default_rng(99)

    def shares(n):
        reached = np.array([real_coverage(world, rng, n, 0.2) for _ in range(120)])
        return (reached > 0).mean(), (reached > 0.69).mean()  # a crowd of 4,000 has an error

    slack = 3 * np.sqrt(0.09 / 120)
    assert shares(plan.first)[0] > 0.9 - slack
    assert shares(plan.needed)[1] > 0.9 - slack
    assert shares(plan.first // 2)[0] < 0.9 - slack  # and not because the plan is lavish
    assert shares(plan.needed // 2)[1] < 0.9 - slack


def test_the_numbers_stand_in_their_order(plan):
    assert plan.possible
    assert plan.least < plan.first < plan.needed
    assert plan.least < plan.single < plan.needed
    assert plan.first_share > 0.9
    assert plan.needed_share > 0.9
    assert plan.error_at_coverage < plan.risk < plan.error_rate
    assert plan.coverage < plan.largest_coverage < 1


@pytest.mark.parametrize(
    "harder", [{"risk": 0.17}, {"coverage": 0.8}, {"power": 0.97}, {"auroc": 0.8}, {"delta": 0.05}]
)
def test_more_labels_for_more(plan, harder):
    found = labels_needed(**EASY | harder)
    assert found.single > plan.single
    assert found.needed > plan.needed
    assert found.first >= plan.first
    assert found.least >= plan.least


def test_a_seed_gives_the_same_plan_and_another_nearly(plan):
    assert labels_needed(**EASY) == plan
    other = labels_needed(**EASY, seed=8)
    assert other.needed == pytest.approx(plan.needed, rel=0.2)
    assert (other.single, other.least) == (plan.single, plan.least)


def test_the_impossible_is_a_result():
    found = labels_needed(risk=0.1, coverage=0.9, error_rate=0.2, repetitions=100)
    assert not found.possible
    assert (found.single, found.needed, found.needed_share) == (None, None, None)
    assert Binormal(0.2, 0.85).error_at(found.largest_coverage) == pytest.approx(0.1)
    assert found.first is not None
    assert f"below {found.largest_coverage:.3g}" in str(found)


def test_where_nothing_can_be_certified_ever():
    found = labels_needed(risk=0.1, error_rate=0.2, auroc=0.5)
    assert (found.first, found.needed, found.largest_coverage) == (None, None, 0.0)
    assert "not with 20,000 labels" in str(found)
    strict = labels_needed(risk=1e-5, error_rate=1e-6)
    assert strict.least > labels.MAX_LABELS
    assert (strict.first, strict.single, strict.needed) == (None, None, None)


def test_a_plan_is_shown_in_words(plan):
    for text in (str(plan), plan._repr_html_()):
        assert f"{plan.needed:,} labels" in text
        assert f"below {plan.least:,} labels" in text
        assert "± 0.0" in text
    assert fusevlm.labels_needed is labels_needed
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.needed = 3


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"risk": 0}, "risk is 0"),
        ({"error_rate": 20}, "error_rate is 20"),
        ({"coverage": 1.0}, "coverage is 1"),
        ({"auroc": 0.4}, "ranks the wrong way.*0.6"),
        ({"power": 1.5}, "power is 1.5"),
        ({"share": 0.0}, "share is 0"),
        ({"repetitions": 5}, "repetitions is 5"),
    ],
)
def test_refusals(bad, says):
    with pytest.raises(InputError, match=says):
        labels_needed(**{"risk": 0.1, "error_rate": 0.2} | bad)


# ---------------------------------------------------------------------------- why nothing


def halves(rate, auroc, size, seed=0):
    u, wrong = Binormal(rate, auroc).draw(np.random.default_rng(seed), 2 * size)
    tuning = {"tuning_u": u[size:], "tuning_wrong": wrong[size:]}
    return u[:size], wrong[:size], tuning


def test_too_few_even_with_all_of_them_right():
    u, wrong, tuning = halves(0.2, 0.9, 40)
    found = why_nothing(u, wrong, risk=0.02, **tuning)
    assert "at risk 0.02 and delta 0.1" in found
    assert "at least 114 answered labels are needed" in found
    assert "40 were kept" in found


def test_one_class_only():
    u = np.arange(50.0)
    assert "all 50 labels kept for the threshold are wrong" in why_nothing(u, u > -1, risk=0.2)
    found = why_nothing(u, u < -1, risk=0.05)
    assert "all 50 labels kept for the threshold are right" in found
    assert "at least 45" in found
    assert "about 180 labels" in found


def test_more_labels_do_not_help_where_the_surest_are_wrong_too_often():
    rng = np.random.default_rng(0)
    u, wrong = rng.random(600), rng.random(600) < 0.3
    found = why_nothing(u, wrong, risk=0.1, tuning_u=u, tuning_wrong=wrong)
    assert "more labels will not help" in found
    assert "in all should do" not in found
    few = why_nothing(u[:40], wrong[:40], risk=0.1)  # cannot know
    assert "more labels will hardly help" in few


@pytest.mark.parametrize(("rate", "auroc", "risk"), [(0.2, 0.85, 0.1), (0.3, 0.8, 0.15)])
def test_too_few_for_this_error_rate_with_an_estimate_near_the_plan(rate, auroc, risk):
    numbers = []
    for seed in range(15):
        u, wrong, tuning = halves(rate, auroc, 100, seed)
        found = why_nothing(u, wrong, risk=risk, **tuning)
        if "labels in all should do" in found:
            numbers.append(int(found.split("about ")[-1].split(" labels")[0].replace(",", "")))
    first = labels_needed(risk=risk, error_rate=rate, auroc=auroc, repetitions=100).first
    assert len(numbers) > 8
    assert first / 2 < np.median(numbers) < 2 * first


def test_enough_labels_and_bad_luck():
    u, wrong, tuning = halves(0.1, 0.9, 2000)
    assert "these had more errors than that" in why_nothing(u, wrong, risk=0.2, **tuning)


def test_the_sentence_is_one_and_takes_the_threshold_queries_alone():
    u, wrong, _ = halves(0.3, 0.7, 100)
    found = why_nothing(u, wrong, risk=0.05, share=1.0)
    assert found.startswith("nothing is certified at risk 0.05 and delta 0.1: ")
    assert "\n" not in found
    with pytest.raises(InputError, match="expected 100"):
        why_nothing(u, wrong, risk=0.05, tuning_u=u, tuning_wrong=wrong[:5])
