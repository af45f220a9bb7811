"""AURAC, AURC, E-AURC and PRR, against averages over all orders of the ties."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusevlm.metrics import (
    aurac,
    aurc,
    base_accuracy,
    e_aurc,
    prr,
    rejection_accuracy,
    risk_coverage,
)

unhurried = settings(deadline=None, max_examples=60)

few_rows = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)
many_rows = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=60)
both_classes = many_rows.filter(lambda rows: len({wrong for _, wrong in rows}) == 2)


def columns(rows):
    u, wrong = zip(*rows, strict=True)
    return np.array(u, dtype=float), np.array(wrong, dtype=int)


def area_of_order(wrong_in_order):
    """Mean over k of the error rate among the first k, in plain Python."""
    errors, rates = 0, []
    for k, label in enumerate(wrong_in_order, start=1):
        errors += label
        rates.append(errors / k)
    return sum(rates) / len(rates)


def area_over_all_orders(u, wrong):
    """The same, averaged over all input orders, each then sorted stably by u."""
    rows = list(zip(u.tolist(), wrong.tolist(), strict=True))
    areas = [
        area_of_order([label for _, label in sorted(order, key=lambda row: row[0])])
        for order in permutations(rows)
    ]
    return sum(areas) / len(areas)


@unhurried
@given(few_rows)
def test_areas_average_over_all_orders_of_the_ties(rows):
    u, wrong = columns(rows)
    expected = area_over_all_orders(u, wrong)
    assert aurc(u, wrong) == pytest.approx(expected, abs=1e-12)
    assert aurac(u, wrong) == pytest.approx(1.0 - expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 50, 3000])
def test_areas_without_ties_agree_with_a_loop(n):
    rng = np.random.default_rng(n)
    u, wrong = rng.normal(size=n), rng.integers(0, 2, size=n)
    by_certainty = wrong[np.argsort(u)].tolist()
    accuracies = [1.0 - sum(by_certainty[:k]) / k for k in range(1, n + 1)]
    assert aurac(u, wrong) == pytest.approx(sum(accuracies) / n, abs=1e-12)
    assert aurc(u, wrong) == pytest.approx(area_of_order(by_certainty), abs=1e-12)
    assert e_aurc(u, wrong) == pytest.approx(
        area_of_order(by_certainty) - area_of_order(sorted(by_certainty)), abs=1e-12
    )


@unhurried
@given(few_rows.filter(lambda rows: len({wrong for _, wrong in rows}) == 2))
def test_prr_against_the_average_random_order_and_the_best_order(rows):
    u, wrong = columns(rows)
    random = area_over_all_orders(np.zeros(u.size), wrong)
    best = min(area_of_order(order) for order in permutations(wrong.tolist()))
    expected = (random - area_over_all_orders(u, wrong)) / (random - best)
    assert prr(u, wrong) == pytest.approx(expected, abs=1e-9)


@unhurried
@given(many_rows)
def test_aurc_and_aurac_add_up_to_one(rows):
    u, wrong = columns(rows)
    assert aurc(u, wrong) + aurac(u, wrong) == pytest.approx(1.0, abs=1e-15)


@unhurried
@given(both_classes, st.randoms(use_true_random=False))
def test_areas_ignore_order_and_monotone_transforms(rows, random):
    u, wrong = columns(rows)
    expected = [metric(u, wrong) for metric in (aurac, aurc, e_aurc, prr)]
    random.shuffle(rows)
    for v, w in [columns(rows), (np.expm1(u), wrong), (u / 7.0 + 3.0, wrong)]:
        values = [metric(v, w) for metric in (aurac, aurc, e_aurc, prr)]
        assert values == pytest.approx(expected, abs=1e-12)


@unhurried
@given(both_classes)
def test_the_oracle_has_prr_one_and_no_excess_and_nothing_beats_it(rows):
    u, wrong = columns(rows)
    for oracle in (wrong, wrong * 100.0 + u):
        assert prr(oracle, wrong) == pytest.approx(1.0, abs=1e-9)
        assert e_aurc(oracle, wrong) == pytest.approx(0.0, abs=1e-12)
    assert e_aurc(u, wrong) >= -1e-12
    assert prr(u, wrong) <= 1.0 + 1e-9


@unhurried
@given(both_classes)
def test_a_constant_score_has_prr_zero_and_the_base_rate_as_area(rows):
    _, wrong = columns(rows)
    constant = np.full(wrong.size, 0.3)
    assert prr(constant, wrong) == pytest.approx(0.0, abs=1e-9)
    assert aurac(constant, wrong) == pytest.approx(base_accuracy(constant, wrong), abs=1e-12)


def test_a_hand_computed_case():
    # Kept in the order right, wrong, right: risks 0, 1/2, 1/3. Oracle 0, 0, 1/3.
    u, wrong = [0.1, 0.2, 0.3], [0, 1, 0]
    assert aurc(u, wrong) == pytest.approx(5 / 18)
    assert e_aurc(u, wrong) == pytest.approx(1 / 6)
    assert prr(u, wrong) == pytest.approx((1 / 3 - 5 / 18) / (1 / 3 - 1 / 9))
    assert base_accuracy(u, wrong) == pytest.approx(2 / 3)


@pytest.mark.parametrize("label", [0, 1])
def test_areas_are_defined_with_one_class(label):
    u, wrong = [1.0, 2.0, 2.0], [label] * 3
    assert aurc(u, wrong) == pytest.approx(label, abs=1e-12)
    assert aurac(u, wrong) == pytest.approx(1 - label, abs=1e-12)
    assert e_aurc(u, wrong) == pytest.approx(0.0, abs=1e-12)


@unhurried
@given(many_rows)
def test_risk_coverage_points_are_what_each_threshold_keeps(rows):
    u, wrong = columns(rows)
    curve = risk_coverage(u, wrong)
    assert curve.threshold.tolist() == sorted(set(u.tolist()))
    for coverage, risk, threshold in zip(curve.coverage, curve.risk, curve.threshold, strict=True):
        kept = u <= threshold
        assert coverage == pytest.approx(kept.mean())
        assert risk == pytest.approx(wrong[kept].mean())
    assert curve.coverage[-1] == 1.0


@unhurried
@given(many_rows)
def test_rejection_accuracy_points_are_what_each_threshold_leaves(rows):
    u, wrong = columns(rows)
    curve = rejection_accuracy(u, wrong)
    assert curve.threshold.tolist() == sorted(set(u.tolist()), reverse=True)
    for rejection, accuracy, threshold in zip(
        curve.rejection, curve.accuracy, curve.threshold, strict=True
    ):
        assert rejection == pytest.approx(np.mean(u > threshold))
        assert accuracy == pytest.approx(np.mean(wrong[u <= threshold] == 0))
    assert curve.rejection[0] == 0.0
    assert curve.accuracy[0] == base_accuracy(u, wrong)
