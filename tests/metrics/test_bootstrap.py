"""Bootstrap intervals: known-truth coverage, units, pairs, and the resamples themselves."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from fusevlm.errors import InputError, UndefinedMetricError
from fusevlm.metrics import Difference, Interval, auroc, bootstrap, brier, paired_bootstrap
from fusevlm.metrics.bootstrap import METRICS, _resamples, _sign_p_value, _unit_of_row

MODULE = sys.modules["fusevlm.metrics.bootstrap"]  # the package attribute is the function


def binormal(seed, n, shift=1.0):
    """Right answers N(0, 1), wrong ones N(shift, 1): the true AUROC is Phi(shift / sqrt 2)."""
    rng = np.random.default_rng(seed)
    wrong = (np.arange(n) % 2).astype(int)
    return rng.normal(size=n) + shift * wrong, wrong


def test_auroc_interval_covers_the_true_value_as_often_as_it_says():
    truth = scipy.stats.norm.cdf(1.0 / math.sqrt(2.0))
    covered = 0
    for seed in range(200):
        u, wrong = binormal(seed, 150)
        interval = bootstrap("auroc", u, wrong, n_boot=400, seed=seed)
        covered += interval.low <= truth <= interval.high
    assert 0.90 <= covered / 200 <= 0.98


def test_interval_of_units_covers_where_the_plain_one_does_not():
    # 40 images with 6 queries that share most of their luck: queries are no independent draws.
    truth, images, queries = 0.5, 40, 6
    units = np.repeat(np.arange(images), queries)
    covered = {"units": 0, "plain": 0}
    for seed in range(150):
        rng = np.random.default_rng(seed)
        luck = np.repeat(rng.normal(size=images), queries)
        wrong = luck + 0.3 * rng.normal(size=luck.size) > 0
        u = rng.normal(size=luck.size)
        for kind, ids in (("units", units), ("plain", None)):
            interval = bootstrap("base_accuracy", u, wrong, units=ids, n_boot=300, seed=seed)
            covered[kind] += interval.low <= truth <= interval.high
    assert covered["units"] / 150 >= 0.88
    assert covered["plain"] / 150 <= 0.75


def test_brier_interval_agrees_with_the_normal_one_for_a_mean():
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    wrong = rng.random(2000) < p
    losses = (p - wrong) ** 2
    half = 1.96 * losses.std() / math.sqrt(losses.size)
    interval = bootstrap(brier, p, wrong, n_boot=4000)
    assert interval.estimate == pytest.approx(losses.mean())
    assert interval.low == pytest.approx(losses.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(losses.mean() + half, abs=0.1 * half)


def test_resample_counts_are_multinomial():
    counts = np.concatenate(list(_resamples(np.arange(5), 40_000, seed=0)))
    assert counts.shape == (40_000, 5)
    assert (counts.sum(axis=1) == 5).all()
    # Multinomial(5, 1/5): mean 1, variance 4/5, covariance -1/5.
    np.testing.assert_allclose(counts.mean(axis=0), 1.0, atol=0.02)
    expected = np.full((5, 5), -0.2) + np.eye(5)
    np.testing.assert_allclose(np.cov(counts.T), expected, atol=0.03)
    # One row's count is Binomial(5, 1/5).
    seen = np.bincount(counts[:, 0], minlength=6) / 40_000
    np.testing.assert_allclose(seen, scipy.stats.binom.pmf(np.arange(6), 5, 0.2), atol=0.01)


def test_whole_units_are_drawn():
    rows = _unit_of_row(["b", "a", "b", "c", "a"], 5)
    for counts in _resamples(rows, 50, seed=1):
        assert (counts[:, 0] == counts[:, 2]).all()
        assert (counts[:, 1] == counts[:, 4]).all()
        assert (counts[:, 0] + counts[:, 1] + counts[:, 3] == 3).all()


def test_chunks_change_memory_but_not_the_draws(monkeypatch):
    u, wrong = binormal(3, 60)
    whole = bootstrap("prr", u, wrong, n_boot=200, seed=9)
    for entries in (1, 61, 60 * 7 + 5):
        monkeypatch.setattr(MODULE, "MAX_COUNTS", entries)
        sizes = [chunk.shape for chunk in _resamples(np.arange(60), 200, seed=9)]
        assert all(n * width <= max(entries, 60) for n, width in sizes)
        assert sum(n for n, _ in sizes) == 200
        assert bootstrap("prr", u, wrong, n_boot=200, seed=9) == whole


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_its_name_and_a_foreign_loop_give_the_same_interval(name):
    u, wrong = binormal(4, 50)
    p = 1.0 / (1.0 + np.exp(-u))
    options = {"fpr": 0.2} if name.startswith("tpr") else {}
    public, _ = METRICS[name]

    def foreign(values, labels, **kwargs):
        return public(values, labels, **kwargs)

    by_name = bootstrap(name, p, wrong, n_boot=60, **options)
    by_function = bootstrap(public, p, wrong, n_boot=60, **options)
    by_loop = bootstrap(foreign, p, wrong, n_boot=60, **options)
    assert by_name == by_function
    assert by_loop.low == pytest.approx(by_name.low, abs=1e-9)
    assert by_loop.high == pytest.approx(by_name.high, abs=1e-9)
    assert by_loop.n_undefined == by_name.n_undefined


def test_a_metric_from_elsewhere_can_be_bootstrapped():
    u, wrong = binormal(5, 80)

    def average_precision(values, labels):
        return sklearn.metrics.average_precision_score(labels, values)

    interval = bootstrap(average_precision, u, wrong, n_boot=50)
    assert interval.estimate == average_precision(u, wrong)
    assert interval.low < interval.estimate < interval.high


def test_interval_reports_its_settings_and_follows_the_seed():
    u, wrong = binormal(6, 80)
    interval = bootstrap("auroc", u, wrong, n_boot=100, level=0.8, seed=3)
    assert (interval.level, interval.n_boot, interval.n_undefined) == (0.8, 100, 0)
    assert interval.estimate == auroc(u, wrong)
    assert interval == bootstrap("auroc", u, wrong, n_boot=100, level=0.8, seed=3)
    assert interval != bootstrap("auroc", u, wrong, n_boot=100, level=0.8, seed=4)
    wider = bootstrap("auroc", u, wrong, n_boot=100, level=0.99, seed=3)
    assert wider.low < interval.low < interval.high < wider.high


def test_undefined_resamples_are_counted_and_left_out():
    # One wrong answer in 10: a resample misses it with probability .9^10, about .35.
    u, wrong = np.arange(10.0), np.eye(10, dtype=int)[9]
    interval = bootstrap("auroc", u, wrong, n_boot=4000)
    assert interval.n_undefined / 4000 == pytest.approx(0.9**10, abs=0.03)
    assert interval == Interval(1.0, 1.0, 1.0, 0.95, 4000, interval.n_undefined)
    own = bootstrap(lambda v, w: auroc(v, w), u, wrong, n_boot=200)
    assert own.n_undefined == bootstrap("auroc", u, wrong, n_boot=200).n_undefined > 0


def test_no_defined_resample_is_an_error_and_not_a_nan():
    # Two answers, one resample, and a seed with which it is one of the answers twice.
    unlucky = next(s for s in range(50) if 0 in next(_resamples(np.arange(2), 1, seed=s)))
    with pytest.raises(UndefinedMetricError, match="undefined on all 1 resamples"):
        bootstrap("auroc", [0.0, 1.0], [0, 1], n_boot=1, seed=unlucky)
    with pytest.raises(UndefinedMetricError, match="NaN on the 4 answers themselves"):
        bootstrap(lambda v, w: math.nan, [1, 2, 3, 4], [0, 1, 0, 1])


def test_duplicated_rows_in_units_are_worth_no_more_than_the_originals():
    u, wrong = binormal(7, 60)
    copies = 5
    u5, wrong5 = np.repeat(u, copies), np.repeat(wrong, copies)
    units = np.repeat([f"image {i}" for i in range(60)], copies)
    original = bootstrap("auroc", u, wrong, n_boot=800, seed=1)
    of_units = bootstrap("auroc", u5, wrong5, units=units, n_boot=800, seed=1)
    plain = bootstrap("auroc", u5, wrong5, n_boot=800, seed=1)

    # Five copies of each row: the resamples of units are those of the originals, row for row.
    assert of_units == original
    # Taken as 300 independent rows they would seem sqrt(5) times as precise.
    ratio = (of_units.high - of_units.low) / (plain.high - plain.low)
    assert ratio == pytest.approx(math.sqrt(copies), rel=0.2)


def test_unit_and_deduplicated_bootstraps_agree_in_distribution():
    u, wrong = binormal(8, 60)
    order = np.random.default_rng(0).permutation(180)  # units in another order: other draws
    rows = np.repeat(np.arange(60), 3)[order]
    chunks = list(_resamples(_unit_of_row(rows, 180), 1500, seed=1))
    of_units = METRICS["auroc"][1](u[rows], wrong[rows].astype(bool), np.concatenate(chunks))
    chunks = list(_resamples(np.arange(60), 1500, seed=2))
    plain = METRICS["auroc"][1](u, wrong.astype(bool), np.concatenate(chunks))
    assert scipy.stats.ks_2samp(of_units, plain).pvalue > 0.01


@pytest.mark.parametrize(
    "relabel",
    [
        pytest.param(lambda i: i, id="int"),
        pytest.param(str, id="str"),
        pytest.param(lambda i: ("image", i), id="tuple"),
        pytest.param(lambda i: i if i % 2 else str(i), id="mixed"),
    ],
)
def test_unit_ids_may_be_anything_hashable(relabel):
    u, wrong = binormal(9, 40)
    ids = [i // 4 for i in range(40)]
    expected = bootstrap("auroc", u, wrong, units=np.array(ids), n_boot=50)
    assert bootstrap("auroc", u, wrong, units=[relabel(i) for i in ids], n_boot=50) == expected


def test_one_unit_per_row_is_the_plain_bootstrap():
    u, wrong = binormal(10, 40)
    plain = bootstrap("aurac", u, wrong, n_boot=50)
    assert bootstrap("aurac", u, wrong, units=range(40), n_boot=50) == plain


@pytest.mark.parametrize("name", METRICS)
def test_a_score_does_not_differ_from_itself(name):
    u, wrong = binormal(11, 60)
    p = 1.0 / (1.0 + np.exp(-u))
    options = {"fpr": 0.1} if name.startswith("tpr") else {}
    result = paired_bootstrap(name, p, p, wrong, n_boot=100, **options)
    assert result.estimate_a == result.estimate_b
    assert (result.difference, result.low, result.high) == (0.0, 0.0, 0.0)
    assert result.p_value == 1.0


def test_pairing_uses_the_same_resamples_for_both_scores():
    # b is a with a little noise: paired, the difference is known far better than either value.
    a, wrong = binormal(12, 200)
    b = a + 0.2 * np.random.default_rng(0).normal(size=a.size)
    result = paired_bootstrap("auroc", a, b, wrong, n_boot=500)
    assert result.difference == auroc(a, wrong) - auroc(b, wrong)
    single = bootstrap("auroc", a, wrong, n_boot=500)
    assert result.high - result.low < 0.5 * (single.high - single.low)
    chunks = np.concatenate(list(_resamples(np.arange(200), 500, seed=0)))
    each = [
        auroc(np.repeat(a, c), np.repeat(wrong, c)) - auroc(np.repeat(b, c), np.repeat(wrong, c))
        for c in chunks
    ]
    assert (result.low, result.high) == pytest.approx(np.quantile(each, [0.025, 0.975]))


def test_paired_bootstrap_sees_a_clear_winner_and_is_antisymmetric():
    a, wrong = binormal(13, 200, shift=3.0)
    b = np.random.default_rng(1).normal(size=200)
    result = paired_bootstrap("auroc", a, b, wrong, n_boot=999)
    assert result.low > 0.3
    assert result.p_value == pytest.approx(2 / 1000)
    other = paired_bootstrap("auroc", b, a, wrong, n_boot=999)
    assert other == Difference(
        result.estimate_b,
        result.estimate_a,
        -result.difference,
        pytest.approx(-result.high),
        pytest.approx(-result.low),
        result.p_value,
        0.95,
        999,
        0,
    )


def test_paired_p_values_are_rarely_small_when_nothing_differs():
    rejected = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        wrong = np.arange(120) % 2
        signal = wrong + rng.normal(size=120)
        a, b = signal + rng.normal(size=120), signal + rng.normal(size=120)
        rejected += paired_bootstrap("auroc", a, b, wrong, n_boot=300, seed=seed).p_value < 0.05
    assert 0.005 <= rejected / 150 <= 0.10


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0] * 9, 2 * 1 / 10),
        ([-1.0] * 9, 2 * 1 / 10),
        ([1.0] * 8 + [-1.0], 2 * 2 / 10),
        ([1.0] * 8 + [0.0], 2 * 2 / 10),
        ([1.0, -1.0], 1.0),
    ],
)
def test_sign_p_value(differences, expected):
    assert _sign_p_value(np.array(differences)) == pytest.approx(expected)


def test_paired_bootstrap_counts_resamples_undefined_for_either_score():
    wrong = np.array([0, 0, 0, 1])
    result = paired_bootstrap("auroc", [1, 2, 3, 4], [4, 3, 2, 1], wrong, n_boot=2000)
    assert result.n_undefined / 2000 == pytest.approx(0.75**4 + 0.25**4, abs=0.03)
    assert (result.estimate_a, result.estimate_b) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "auc"}, "metric is 'auc'; expected one of 'auroc'"),
        ({"metric": 3}, "expected a function of .u, wrong. or one of the names auroc"),
        ({"level": 95}, "level is 95"),
        ({"n_boot": 0}, "n_boot is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"units": [1, 2]}, "units has 2 id.s.; expected 4"),
        ({"units": [1, 1, 1, 1]}, "all rows are one unit"),
        ({"units": [1, 2, None, 3]}, "missing id"),
        ({"units": [1.0, 2.0, math.nan, 3.0]}, "missing id"),
        ({"units": [[1], [2], [3], [4]]}, "unhashable"),
        ({"u": [1, 2, 3]}, "wrong has 4 value"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes, message):
    arguments = {"metric": "auroc", "u": [1, 2, 3, 4], "wrong": [0, 1, 0, 1]} | changes
    metric, u, wrong = (arguments.pop(key) for key in ("metric", "u", "wrong"))
    with pytest.raises(InputError, match=message):
        bootstrap(metric, u, wrong, **arguments)


def test_a_single_answer_cannot_be_resampled():
    with pytest.raises(InputError, match="at least two"):
        bootstrap("brier", [0.5], [1])


def test_paired_scores_must_be_equally_long():
    with pytest.raises(InputError, match="u_b has 3 value"):
        paired_bootstrap("auroc", [1, 2, 3, 4], [1, 2, 3], [0, 1, 0, 1])


def test_an_option_the_metric_does_not_know_is_refused():
    with pytest.raises(TypeError, match="n_bins"):
        bootstrap("auroc", [1, 2], [0, 1], n_bins=3)
    with pytest.raises(TypeError, match="clusters"):
        bootstrap("auroc", [1, 2], [0, 1], clusters=[1, 2])
