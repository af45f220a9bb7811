"""Every row of FUSE, fitted and applied by the one engine."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata

from fusevlm import metrics, simulate
from fusevlm.config import CalibrateConfig
from fusevlm.errors import InputError
from fusevlm.pipeline.methods import (
    COVERAGE,
    EMPIRICAL,
    GUARANTEED,
    METHODS,
    Method,
    _read_out,
    find_method,
    fit_method,
    load_method,
    needs_of_methods,
)

QUICK = [name for name in METHODS if "jitter" not in name and "split_half" not in name]
CONFIG = CalibrateConfig()


@pytest.fixture(scope="module")
def splits():
    world = simulate.queries(500, n_samples=8, d=32, seed=3)
    return world.take(np.arange(200)), world.take(np.arange(200, 500))


@pytest.fixture(scope="module")
def fitted(splits):
    return {name: fit_method(name, splits[0], CONFIG) for name in QUICK}


@pytest.fixture(scope="module")
def applied(fitted, splits):
    return {name: method.apply(splits[1]) for name, method in fitted.items()}


def test_every_row_gives_finite_scores_and_probabilities(applied, splits):
    for name, found in applied.items():
        assert found.u.shape == found.p_wrong.shape == splits[1].wrong.shape, name
        assert np.isfinite(found.u).all(), name
        assert ((found.p_wrong >= 0) & (found.p_wrong <= 1)).all(), name


@pytest.mark.parametrize("name", [n for n in QUICK if METHODS[n].equals])
def test_rows_that_must_be_equal_rank_alike(applied, name):
    row = METHODS[name]
    assert row.reason
    own, other = applied[name].u, applied[row.equals].u
    own, other = rankdata(np.round(own, 9)), rankdata(np.round(other, 9))
    if row.readout == "logistic" and np.corrcoef(own, other)[0, 1] < 0:
        own = len(own) + 1 - own  # the labels turned the sigmoid round
    np.testing.assert_allclose(own, other, atol=0.51)  # rounding may tie two neighbours


@pytest.mark.parametrize(
    "name", ["paper_global", "paper_ols", "paper_unweighted", "paper_prior", "evidence-only"]
)
def test_other_rows_rank_otherwise(applied, splits, name):
    base = METHODS[name].preset
    aurocs = [metrics.auroc(applied[n].u, splits[1].wrong) for n in (name, base)]
    assert aurocs[0] != aurocs[1]


def test_prior_only_ranks_by_s_alone(applied, splits):
    for name in ("paper_prior", "prior-only"):
        correlation = np.corrcoef(rankdata(applied[name].u), rankdata(splits[1].s))[0, 1]
        assert abs(correlation) == pytest.approx(1.0)


def test_evidence_only_is_blind_to_s(splits):
    known, new = (replace(x, prior={"s": np.cos(np.arange(len(x)))}) for x in splits)
    for name in ("paper_evidence", "evidence-only"):
        one = fit_method(name, splits[0], CONFIG).apply(splits[1])
        two = fit_method(name, known, CONFIG).apply(new)
        np.testing.assert_array_equal(one.u, two.u)


def test_prior_only_knows_which_way_a_statistic_points(splits):
    """A statistic that falls where errors rise, turned round by the labels, ranks as well."""
    one, two = (
        fit_method("prior-only", known, CONFIG).apply(new)
        for known, new in (splits, [replace(x, prior={"s": -x.s}) for x in splits])
    )
    assert metrics.auroc(one.u, splits[1].wrong) > 0.6
    np.testing.assert_allclose(one.u, two.u, atol=1e-12)


def test_the_quantile_rule_answers_its_share(fitted, splits):
    method = fitted["paper_quantile"]
    (theta,) = method.thresholds(0.2, 0.1).values()
    assert np.mean(method.values.held <= theta.threshold) == pytest.approx(COVERAGE, abs=0.01)


def test_only_fits_that_kept_queries_apart_promise_anything(fitted):
    for name, method in fitted.items():
        promised = method.thresholds(0.2, 0.1).get(GUARANTEED)
        apart = METHODS[name].preset == "practical" or name in ("paper", "paper_evidence")
        quantile = METHODS[name].readout == "quantile"
        assert (promised is not None) == (apart and not quantile), name
        if promised is not None:
            assert promised.n_calibration == 100
        assert EMPIRICAL in method.thresholds(0.2, 0.1)


def test_every_row_is_the_same_after_saving(fitted, applied, splits, tmp_path):
    for name, method in fitted.items():
        method.save(tmp_path / name)
        again = load_method(tmp_path / name)
        np.testing.assert_array_equal(again.apply(splits[1]).u, applied[name].u)
        np.testing.assert_array_equal(again.apply(splits[1]).p_wrong, applied[name].p_wrong)
        assert again.thresholds(0.2, 0.1) == method.thresholds(0.2, 0.1)


def test_global_tuning_beats_the_logistic_readout_on_what_it_saw(fitted, splits):
    """Labels buy likelihood: its cross-entropy on the tuning queries is below the other's."""
    known = splits[0]
    order = np.random.default_rng(CONFIG.seed).permutation(len(known))
    tune = known.take(np.sort(order[100:]))

    def cross_entropy(name):
        p = np.clip(fitted[name].apply(tune).p_wrong, 1e-12, 1 - 1e-12)
        return -np.mean(np.where(tune.wrong, np.log(p), np.log(1 - p)))

    assert cross_entropy("paper_global") < cross_entropy("paper_logistic")


def test_global_tuning_belongs_to_the_scalar_fusion(splits, fitted):
    row = Method("x", "x", "Ablations", "practical", readout="global")
    with pytest.raises(InputError, match="scalar"):
        _read_out(row, fitted["practical"].fuse, splits[0], CONFIG)


def test_only_forms_of_fuse_need_hidden_states():
    assert needs_of_methods(["g_nll", "umpire"]) == set()  # columns are computed already
    assert needs_of_methods(["g_nll", "practical"]) == {"embeddings"}
    with pytest.raises(InputError, match="Did you mean 'practical'"):
        find_method("practicall")


def test_calibrate_changes_what_it_should(splits):
    """Seed, share and kind of probability reach every method."""
    known, new = splits
    world = known.columns | {"g_nll": np.array([-np.sum(q.answer_logprobs) for q in known.samples])}
    known = replace(known, columns=world)
    nll = {"g_nll": np.array([-np.sum(q.answer_logprobs) for q in new.samples])}
    new = replace(new, columns=new.columns | nll)
    for name in ("g_nll", "practical", "prior-only", "paper"):
        base = fit_method(name, known, CONFIG)
        other = fit_method(name, known, replace(CONFIG, seed=5))
        if name == "paper":
            assert not np.array_equal(base.apart.model.u, other.apart.model.u)
        else:
            assert base.thresholds(0.3, 0.1) != other.thresholds(0.3, 0.1), name
        smaller = fit_method(name, known, replace(CONFIG, threshold_share=0.25))
        assert smaller.thresholds(0.3, 0.1)[GUARANTEED].n_calibration == 50, name
    isotonic = replace(CONFIG, probability="isotonic")
    for name in ("g_nll", "prior-only"):
        p = [fit_method(name, known, c).apply(new).p_wrong for c in (CONFIG, isotonic)]
        assert not np.array_equal(*p)
