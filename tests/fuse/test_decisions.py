"""The rule that decides: θ, the cap, novelty; its reasons, and its guarantee as a whole."""

import logging

import numpy as np
import pytest

from fusevlm import Fuse, simulate
from fusevlm.errors import NotFittedError
from fusevlm.fuse.results import eligible

CALIBRATION = simulate.queries(900, n_samples=4, d=8, seed=1)
TEST = simulate.queries(600, n_samples=4, d=8, seed=2)


def looks(queries, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return {"image": rng.standard_normal((len(queries), 4)) + shift,
            "question": ["what is it?"] * len(queries)}  # fmt: skip


def given(queries, **views):
    return {"s": queries.s, "views": views or looks(queries)}


@pytest.fixture(scope="module")
def fuse():
    return Fuse().fit(CALIBRATION.samples, CALIBRATION.wrong, **given(CALIBRATION))


def test_every_abstention_has_its_reason(fuse):
    views = looks(TEST, seed=5)
    views["image"][:5] = 30.0
    views["question"][5:10] = ["who wrote it?"] * 5
    found = fuse.decide(TEST.samples, s=TEST.s, views=views, risk=0.2)
    reason = np.array(found.reason)
    assert set(reason[:5]) == {"unlike the calibration (image)"}
    assert set(reason[5:10]) == {"unlike the calibration (question)"}
    assert not found.answer[:10].any()
    rest = np.arange(10, len(TEST))
    answered = reason[rest] == ""
    np.testing.assert_array_equal(found.answer[rest], answered)
    theta = found.threshold.threshold
    assert (found.u[rest][answered] <= theta).all()
    for row in rest[~answered]:
        assert (reason[row] == "too likely wrong") == (found.p_wrong[row] > 0.5) or reason[
            row
        ].startswith("unlike")
        assert reason[row] != "too uncertain" or found.u[row] > theta
    assert {"too uncertain", "too likely wrong"} <= set(reason)
    nothing = fuse.decide(TEST.samples, s=TEST.s, views=looks(TEST), risk=0.001)
    assert set(nothing.reason) - {"unlike the calibration (image)"} == {"nothing certified"}


@pytest.mark.parametrize("risk", [0.2, 0.4, 0.6, 0.9])
def test_nothing_is_answered_above_the_cap(fuse, risk):
    for cap in (0.5, 0.25):
        fuse.set_params()  # nothing: the fit stays
        other = Fuse(cap=cap).fit(CALIBRATION.samples, CALIBRATION.wrong, **given(CALIBRATION))
        found = other.decide(TEST.samples, risk=risk, **given(TEST))
        assert found.answer.any()
        assert found.p_wrong[found.answer].max() <= cap


def test_the_cap_also_holds_for_the_models_own_probability():
    own = Fuse(probability="model", cap=0.3).fit(
        CALIBRATION.samples, CALIBRATION.wrong, **given(CALIBRATION)
    )
    found = own.decide(TEST.samples, risk=0.4, **given(TEST))
    assert found.answer.any()
    assert found.p_wrong[found.answer].max() <= 0.3


def test_the_rule_that_is_tested_is_the_rule_that_decides():
    """Coverage of θ is that of the whole rule on the queries kept for it."""
    fuse = Fuse(novelty_level=0.2)
    fuse.fit(CALIBRATION.samples, CALIBRATION.wrong, **given(CALIBRATION))
    kept = fuse._threshold_data
    theta = fuse.threshold(risk=0.2)
    answered = (kept.u <= theta.threshold) & eligible(kept.p_wrong, kept.novelty, fuse.options)
    assert theta.coverage == pytest.approx(answered.mean())
    assert 0.05 < np.mean(kept.novelty <= 0.2) < 0.35
    assert theta.empirical_risk == pytest.approx(kept.wrong[answered].mean())
    assert theta.n_calibration == len(kept.u)


def test_without_labels_there_is_no_cap_and_with_them_a_threshold():
    blind = Fuse().fit(CALIBRATION.samples, s=CALIBRATION.s)
    with pytest.raises(NotFittedError):
        blind.decide(TEST, risk=0.2)
    more = simulate.queries(400, n_samples=4, d=8, seed=9)
    found = blind.fit_threshold(more.samples, more.wrong, s=more.s).decide(TEST, risk=0.2)
    assert found.answer.any()
    assert np.isnan(found.p_wrong).all()


def test_a_group_that_one_threshold_does_not_keep_is_named(caplog):
    hard = CALIBRATION.wrong & (np.arange(900) % 2 == 0)
    groups = np.where(hard | (np.random.default_rng(0).random(900) < 0.1), "night", "day")
    fuse = Fuse().fit(CALIBRATION.samples, CALIBRATION.wrong, s=CALIBRATION.s, groups=groups)
    with caplog.at_level(logging.WARNING):
        fuse.threshold(risk=0.2)
    assert "not in every group: it was exceeded in 'night' (" in caplog.text
    assert "'day'" not in caplog.text


def test_nothing_certified_is_explained(caplog):
    few = simulate.queries(40, n_samples=4, d=8, seed=3)
    fuse = Fuse().fit(few)
    with caplog.at_level(logging.WARNING):
        found = fuse.decide(TEST, risk=0.02)
    assert set(found.reason) == {"nothing certified"}
    assert "at least 114 answered labels are needed" in caplog.text
    assert "40 were kept" in caplog.text


def test_saved_fits_decide_alike(fuse, tmp_path):
    fuse.save(tmp_path / "fit")
    again = Fuse.load(tmp_path / "fit")
    one, two = (f.decide(TEST.samples, risk=0.2, **given(TEST)) for f in (fuse, again))
    assert one.reason == two.reason
    assert (
        again.check_drift(TEST.samples, s=TEST.s).p_value
        == fuse.check_drift(TEST.samples, s=TEST.s).p_value
    )
