"""Figures of methods whose scores are given: by hand, over units, and blind to the test labels."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.pipeline.test_evaluate import column_world

from fusevlm import metrics
from fusevlm.fuse import thresholds
from fusevlm.pipeline.measure import Outcome, differences, measure, outcome_of
from fusevlm.pipeline.methods import EMPIRICAL, GUARANTEED, Applied, Compared, fit_method
from fusevlm.settings import CalibrateConfig, EvaluateConfig
from fusevlm.types import Queries, Samples

FEW = EvaluateConfig(bootstrap=50)


def queries(wrong, units=None):
    size = len(wrong)
    ids = [str(k) for k in range(size)]
    return Queries(ids, [Samples(["yes"])] * size, wrong=wrong, units=units)


def outcome(u, p, answered):
    return Outcome(
        Applied(u, p, None, None, Compared(u), Compared(u), {}), {}, {EMPIRICAL: answered}
    )


def world(size=60, seed=0):
    """Labels, two scores (one follows them), probabilities of neither, and who is answered."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(size) < 0.4
    good, poor = wrong + rng.normal(size=size), rng.normal(size=size)
    return wrong, good, poor, rng.random(size), rng.random(size) < 0.7


def test_every_figure_is_of_its_own_column():
    wrong, good, poor, p, answered = world()
    found = measure(
        {"practical": outcome(good, p, answered), "g_nll": outcome(poor, p, ~answered)},
        queries(wrong), FEW,
    )[0]["methods"]  # fmt: skip
    for name, u, chosen in (("practical", good, answered), ("g_nll", poor, ~answered)):
        row = {k: v and v["estimate"] for k, v in found[name].items()}
        assert row["auroc"] == pytest.approx(roc_auc_score(wrong, u))
        assert row["ece"] == pytest.approx(metrics.ece(p, wrong))
        assert row["coverage_empirical"] == pytest.approx(chosen.mean())
        assert row["risk_empirical"] == pytest.approx(wrong[chosen].mean())
        assert row["coverage_guaranteed"] is None


def test_whole_units_are_resampled():
    """Three copies of each query in one unit say no more than the query itself."""
    wrong, good, poor, p, answered = world()
    single = {"practical": outcome(good, p, answered), "g_nll": outcome(poor, p, answered)}
    of = [np.repeat(column, 3) for column in (wrong, good, poor, p, answered)]
    tripled = {"practical": outcome(of[1], of[3], of[4]), "g_nll": outcome(of[2], of[3], of[4])}
    units = [str(k // 3) for k in range(3 * len(wrong))]
    once, thrice = queries(wrong), queries(of[0], units)
    one, two = (
        measure(outcomes, asked, FEW)[0]["methods"]
        for outcomes, asked in ((single, once), (tripled, thrice))
    )
    for name, metric in (("practical", "auroc"), ("g_nll", "ece"), ("g_nll", "risk_empirical")):
        assert one[name][metric]["low"] < one[name][metric]["high"]
        assert two[name][metric] == pytest.approx(one[name][metric])
    one, two = (
        differences(outcomes, "g_nll", asked, FEW)["practical"]
        for outcomes, asked in ((single, once), (tripled, thrice))
    )
    assert two == pytest.approx(one)
    aurocs = [roc_auc_score(wrong, u) for u in (good, poor)]
    assert one["difference"] == pytest.approx(aurocs[0] - aurocs[1])
    assert 0 < one["low"] < one["difference"]


def test_decisions_do_not_look_at_the_labels_of_the_queries_they_are_about():
    known, new = column_world(0), column_world(1)
    method = fit_method("g_nll", known, CalibrateConfig())
    config = EvaluateConfig(risk=0.3, delta=0.05)
    found = outcome_of(method, new, config)
    turned = outcome_of(method, replace(new, wrong=~new.wrong), config)
    assert found.thresholds == turned.thresholds
    u, held, labels = new.columns["g_nll"], method.values.held, method.values.wrong
    expected = {
        EMPIRICAL: thresholds.empirical(held, labels, risk=0.3),
        GUARANTEED: method.thresholds(0.3, 0.05)[GUARANTEED],
    }
    assert expected[GUARANTEED].delta == 0.05
    for rule, theta in expected.items():
        assert found.thresholds[rule] == theta
        for one in (found, turned):
            np.testing.assert_array_equal(one.answered[rule], u <= theta.threshold)


def test_the_guaranteed_threshold_is_compared_with_its_own_scores():
    own, apart = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    applied = Applied(own, np.zeros(2), None, None, Compared(apart), Compared(own), {})
    theta = thresholds.empirical([0.0, 0.5, 1.0], [False, False, True], risk=0.2)
    assert applied.decide(EMPIRICAL, theta)[0].tolist() == [True, False]
    assert applied.decide(GUARANTEED, theta)[0].tolist() == [False, True]
    assert applied.decide(GUARANTEED, theta)[1] == ("too uncertain", "")
