"""Every row of FUSE, fitted and applied by the one engine."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from tests.pipeline.conftest import with_topics

from fusevlm import metrics, simulate
from fusevlm.config import make_config
from fusevlm.errors import InputError
from fusevlm.fuse.estimator import divide
from fusevlm.maths.logistic import RIDGES, unit_folds
from fusevlm.pipeline.calibrate import check as check_calibration
from fusevlm.pipeline.measure import gains, measure, outcome_of
from fusevlm.pipeline.methods import (
    EMPIRICAL,
    GUARANTEED,
    METHODS,
    check_methods,
    find_method,
    fit_method,
    load_method,
    needs_of_methods,
    rows_of,
)
from fusevlm.scores import compute_scores
from fusevlm.settings import CalibrateConfig, EvaluateConfig, RowConfig, SweepConfig

QUICK = [name for name in METHODS if "jitter" not in name and "split_half" not in name]
CONFIG = CalibrateConfig()
STACK = ("ln_entropy", "g_nll", "distinct")


def own(**row):
    """A [calibrate] with one row of its own."""
    return CalibrateConfig(row=(RowConfig(**row),))


@pytest.fixture(scope="module")
def splits():
    world = with_topics(simulate.queries(320, n_samples=6, d=24, seed=3))
    columns, _ = compute_scores(world, STACK)
    world = replace(world, columns={**world.columns, **columns})
    return world.take(np.arange(120)), world.take(np.arange(120, 320))


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
    "name", ["paper_global", "paper_ols", "paper_first", "paper_prior", "evidence-only"]
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
    for share in (0.8, 0.35):
        method = fit_method("paper_quantile", splits[0], replace(CONFIG, quantile=share))
        (theta,) = method.thresholds(0.2, 0.1).values()
        assert len(method.values.held) == 120  # the paper uses all queries for everything
        assert np.mean(method.values.held <= theta.threshold) == pytest.approx(share, abs=0.01)


def test_only_fits_that_kept_queries_apart_promise_anything(fitted):
    for name, method in fitted.items():
        promised = method.thresholds(0.2, 0.1).get(GUARANTEED)
        row = METHODS[name]
        promises = row.preset == "practical" or row.group not in ("Sensitivity", "Readings")
        assert (promised is not None) == (promises and row.readout != "quantile"), name
        if promised is not None:
            assert promised.n_calibration == 60
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
    tune = splits[0]

    def cross_entropy(name):
        p = np.clip(fitted[name].apply(tune).p_wrong, 1e-12, 1 - 1e-12)
        return -np.mean(np.where(tune.wrong, np.log(p), np.log(1 - p)))

    assert cross_entropy("paper_global") < cross_entropy("paper_logistic")


def test_global_tuning_belongs_to_the_scalar_fusion(splits, fitted):
    with pytest.raises(InputError, match="needs scalar fusion"):
        check_methods(own(name="x", readout="global"))


def stack_by_scikit_learn(known, new, tune):
    """Logistic regression on standardised columns; the ridge with the least held-out loss."""
    X, Z = (np.column_stack([q.columns[name] for name in STACK]) for q in (known, new))
    X, y = X[tune], known.wrong[tune]
    units = [known.units[k] for k in tune]
    folds = PredefinedSplit(unit_folds(units, 5, seed=CONFIG.seed))

    def model(ridge, size):
        line = LogisticRegression(C=1 / (ridge * size), tol=1e-10, max_iter=10_000)
        return make_pipeline(StandardScaler(), line)

    losses = {}
    for ridge in RIDGES:
        p = np.empty(len(y))
        for rest, held in folds.split():
            p[held] = model(ridge, len(rest)).fit(X[rest], y[rest]).predict_proba(X[held])[:, 1]
        losses[ridge] = log_loss(y, p)
    best = model(min(losses, key=losses.get), len(y)).fit(X, y)
    return best.predict_proba(Z)[:, 1]


def test_stacked_is_a_regression_on_all_baselines_there_are(fitted, applied, splits):
    """The tuning part alone teaches; the prior's statistic is not read, whatever it is."""
    known, new = splits
    tune, _ = divide(known.units, CONFIG.threshold_share, CONFIG.seed)
    found = applied["stacked"]
    np.testing.assert_allclose(found.u, stack_by_scikit_learn(known, new, tune), atol=2e-4)
    np.testing.assert_array_equal(found.p_wrong, found.u)
    assert set(fitted["stacked"].map.names) == set(STACK)
    strange = [replace(q, prior={"s": np.cos(np.arange(len(q)))}) for q in splits]
    again = fit_method("stacked", strange[0], CONFIG).apply(strange[1])
    np.testing.assert_array_equal(again.u, found.u)


def test_stacked_takes_thresholds_from_queries_it_did_not_learn_on(fitted, splits):
    known = splits[0]
    _, held = divide(known.units, CONFIG.threshold_share, CONFIG.seed)
    turned = known.wrong.copy()
    turned[held] = ~turned[held]
    other = fit_method("stacked", replace(known, wrong=turned), CONFIG)
    np.testing.assert_array_equal(other.apply(splits[1]).u, fitted["stacked"].apply(splits[1]).u)
    np.testing.assert_array_equal(other.values.wrong, turned[held])
    assert other.thresholds(0.3, 0.1) != fitted["stacked"].thresholds(0.3, 0.1)


def test_stacked_is_a_baseline_that_can_be_absent(splits):
    assert find_method("stacked").group == "Baselines"
    assert "stacked" in rows_of("ablations")
    with pytest.raises(InputError, match="no baseline to stack"):
        fit_method("stacked", replace(splits[0], columns={}), CONFIG)
    with pytest.raises(InputError, match="needs both right and wrong"):
        fit_method("stacked", replace(splits[0], wrong=np.zeros(120, bool)), CONFIG)


def test_only_forms_of_fuse_need_hidden_states():
    columns = [find_method(name) for name in ("g_nll", "umpire")]
    assert needs_of_methods(columns) == set()  # columns are computed already
    assert needs_of_methods([*columns, find_method("practical")]) == {"embeddings"}
    with pytest.raises(InputError, match="Did you mean 'practical'"):
        find_method("practicall")


@pytest.fixture(scope="module")
def scored(splits):
    """Both splits with the column of a baseline."""

    def with_column(queries):
        nll = np.array([-np.sum(q.answer_logprobs) for q in queries.samples])
        units = [str(k) for k in range(len(queries))]
        return replace(queries, columns={**queries.columns, "g_nll": nll}, units=units)

    return tuple(with_column(queries) for queries in splits)


def figures(name, scored, config):
    """The row of a method: every estimate, and its thresholds."""
    method = fit_method(name, scored[0], config)
    evaluate = EvaluateConfig(bootstrap=2, risk=0.6)
    outcome = outcome_of(method, scored[1], evaluate)
    (whole,) = measure({name: outcome}, scored[1], evaluate)
    row = {k: v and v["estimate"] for k, v in whole["methods"][name].items()}
    return row | {f"theta_{k}": v.threshold for k, v in outcome.thresholds.items()}


RANKS = {"auroc", "tpr_at_fpr_0.1", "tpr_right_at_fpr_0.1", "spearman_calibration", "aurac"}
MAPPED = {"ece", "ece_platt", "ece_min_max"}
GUARANTEE = {"coverage_guaranteed", "risk_guaranteed", "theta_guaranteed"}
EMPIRICALLY = {"coverage_empirical", "risk_empirical", "theta_empirical"}
WATCHED = RANKS | MAPPED | GUARANTEE | EMPIRICALLY
NOTHING = set()
# what a key of [calibrate] may move in each kind of method, and must move some of
SPLIT = {
    "g_nll": MAPPED | GUARANTEE | EMPIRICALLY,
    "stacked": WATCHED,
    "practical": WATCHED,
    "prior-only": WATCHED,
    "practical_quantile": WATCHED - GUARANTEE,
    "paper": GUARANTEE,
    "paper_prior": GUARANTEE,
    "paper_logistic": GUARANTEE,
    "paper_global": GUARANTEE,
    "paper_ols": GUARANTEE,
    "paper_quantile": NOTHING,
    "paper_intercept_a0": NOTHING,
}
OWN_P = (
    "paper_logistic",
    "paper_global",
    "stacked",
)  # these have a P(wrong) of their own
KEYS = {
    "threshold_share": (0.25, SPLIT),
    "seed": (5, SPLIT),
    "probability": (
        "isotonic",
        {n: NOTHING if n in OWN_P else {"ece"} for n in SPLIT}
        # P(wrong) above the cap is not answered
        | {"practical": {"ece"} | GUARANTEE | EMPIRICALLY},
    ),
    "quantile": (0.4, {n: EMPIRICALLY if "quantile" in n else NOTHING for n in SPLIT}),
}


@pytest.fixture(scope="module")
def usual(scored):
    return {name: figures(name, scored, CONFIG) for name in SPLIT}


@pytest.mark.parametrize("key", KEYS)
def test_calibrate_changes_every_cell_that_it_should_and_no_other(key, scored, usual):
    value, table = KEYS[key]
    assert getattr(CONFIG, key) != value
    for name, may in table.items():
        now = figures(name, scored, replace(CONFIG, **{key: value}))
        moved = {cell for cell in WATCHED if now.get(cell) != usual[name].get(cell)}
        assert moved <= may, f"{key} moved {moved - may} of {name}"
        assert bool(moved) == bool(may), f"{key} moved nothing of {name}"


@pytest.mark.parametrize("name", ["g_nll", "practical", "paper", "paper_global"])
def test_both_ways_to_p_wrong_are_those_of_scikit_learn(name, scored, usual):
    """Platt is a logistic regression on the scores kept apart; min–max their range, clipped."""
    known, new = scored
    found = fit_method(name, known, CONFIG)
    held = np.arange(120)
    if name in ("g_nll", "practical"):
        _, held = divide(known.units, CONFIG.threshold_share, CONFIG.seed)
    u, wrong = found.apply(known).u[held][:, None], known.wrong[held]
    applied = found.apply(new)
    # Platt's smoothed targets: each query counts as wrong by its target and as right by the rest
    target = np.where(wrong, (wrong.sum() + 1) / (wrong.sum() + 2), 1 / ((~wrong).sum() + 2))
    both = np.r_[np.ones(len(u)), np.zeros(len(u))]
    line = LogisticRegression(C=np.inf, tol=1e-10).fit(
        np.r_[u, u] - u.mean(), both, sample_weight=np.r_[target, 1 - target]
    )
    expected = line.predict_proba(applied.u[:, None] - u.mean())[:, 1]
    np.testing.assert_allclose(applied.p_platt, expected, atol=1e-3)
    scaler = MinMaxScaler(clip=True).fit(u)
    np.testing.assert_allclose(applied.p_min_max, scaler.transform(applied.u[:, None])[:, 0])
    assert usual[name]["ece_min_max"] == metrics.ece(applied.p_min_max, new.wrong)
    assert usual[name]["ece_platt"] == metrics.ece(applied.p_platt, new.wrong)
    if name != "paper_global":  # calibrate.probability is platt with few labels: the same map
        np.testing.assert_allclose(applied.p_wrong, applied.p_platt, rtol=1e-12)
    else:
        assert not np.allclose(applied.p_wrong, applied.p_platt)


def test_scores_that_are_one_number_have_no_min_max(scored):
    known, new = (replace(q, columns={**q.columns, "distinct": np.ones(len(q))}) for q in scored)
    assert fit_method("distinct", known, CONFIG).apply(new).p_min_max is None
    assert figures("distinct", (known, new), CONFIG)["ece_min_max"] is None


def test_rows_of_ones_own(scored):
    """A row is the preset with its options, whichever way it is named."""
    known, new = scored
    fitted = {}
    for name, row in {
        "mine": {"preset": "paper", "options": {"alpha": 0.0}},
        "few": {"preset": "practical", "options": {"threshold_share": 0.1}},
        "alone": {"preset": "paper", "uses": "evidence"},
        "middling": {"preset": "paper", "readout": "quantile", "quantile": 0.3},
        "platt": {"preset": "practical", "options": {"probability": "platt"}},
    }.items():
        fitted[name] = fit_method(name, known, own(name=name, **row))
    usual = {n: fit_method(n, known, CONFIG) for n in ("paper_unweighted", "paper_evidence",
                                                       "practical")}  # fmt: skip
    for name, same in {"mine": "paper_unweighted", "alone": "paper_evidence"}.items():
        np.testing.assert_array_equal(fitted[name].apply(new).u, usual[same].apply(new).u)
        assert fitted[name].thresholds(0.3, 0.1) == usual[same].thresholds(0.3, 0.1)
    assert fitted["few"].thresholds(0.3, 0.1)[GUARANTEED].n_calibration == 12  # the row wins
    (theta,) = fitted["middling"].thresholds(0.3, 0.1).values()
    assert np.mean(fitted["middling"].values.held <= theta.threshold) == pytest.approx(0.3)
    one, other = fitted["platt"].apply(new), usual["practical"].apply(new)
    np.testing.assert_array_equal(one.u, other.u)
    np.testing.assert_allclose(one.p_wrong, other.p_platt, rtol=1e-12)


def test_a_sweep_is_a_row_for_each_value():
    sweep = SweepConfig("jitter", (1e-4, 1e-2), preset="paper", options={"alpha": 0.5})
    z = SweepConfig("z", (0, 2.5), name="shift")
    layer = SweepConfig("layer", ("last", "middle"))
    config = CalibrateConfig(methods=("paper",), sweep=(sweep, z, layer))
    assert config.names() == (
        "paper", "paper_jitter_0.0001", "paper_jitter_0.01", "shift_z_0", "shift_z_2.5",
        "practical_layer_last", "practical_layer_middle",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"'paper_jitter_0\.0001' has the name of"):
        check_methods(config)  # the bench has these jitters already
    config = replace(config, sweep=(replace(sweep, name="half"), z, layer))
    found = [find_method(name, config) for name in config.names()[1:]]
    assert [dict(m.options) for m in found[:3]] == [
        {"alpha": 0.5, "jitter": 1e-4}, {"alpha": 0.5, "jitter": 1e-2}, {"z": 0},
    ]  # fmt: skip
    assert [(m.layer, m.preset) for m in found[4:]] == [("last", "practical"),
                                                        ("middle", "practical")]  # fmt: skip
    assert found[0].title == "jitter 0.0001 (half)"
    assert "alpha = 0.5" in found[0].note


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "x", "options": {"jiter": 1.0}}, "row 'x': unknown option 'jiter'. Did you mean"),
        ({"name": "x", "options": {"jitter": -1.0}}, "row 'x': jitter is -1.0; expected"),
        ({"name": "x", "preset": "papr"}, "row 'x': preset 'papr' is not known. Did you mean"),
        ({"name": "umpire"}, "row 'umpire' has the name of another method"),
        ({"name": "paper"}, "row 'paper' has the name of another method"),
    ],
)
def test_rows_that_cannot_be_are_refused(row, message):
    with pytest.raises(InputError, match=message):
        check_methods(own(**row))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"row": [{"preset": "paper"}]}, r"\[\[calibrate.row\]\] has no name"),
        ({"row": [{"name": "x", "opions": {}}]}, "has no key 'opions'. Did you mean 'options'"),
        (
            {"row": [{"name": "x", "options": 3}]},
            "calibrate.row.options is 3; expected a table",
        ),
        ({"row": [{"name": "x", "uses": "prior"}]}, "row 'x': uses is 'prior'; expected one of"),
        ({"row": [{"name": "x", "readout": "n"}]}, "row 'x': readout is 'n'; expected one of"),
        ({"row": [{"name": "../x"}]}, "row '../x': a name is letters"),
        ({"row": [{"name": "x"}, {"name": "x"}]}, "two rows are called 'x'"),
        ({"row": [{"name": "x", "layer": "first"}]}, "layer is 'first', which sample.layers"),
        ({"row": [{"name": "x", "quantile": 1.0, "readout": "quantile"}]}, "quantile is 1.0; exp"),
        ({"row": [{"name": "x", "quantile": 0.5}]}, "quantile belongs to readout = 'quantile'"),
        ({"row": {"name": "x"}}, r"expected tables \[\[calibrate.row\]\]"),
        ({"sweep": [{"option": "z", "values": []}]}, "expected a list with at least one value"),
        ({"sweep": [{"option": "z", "values": 2}]}, "values is 2; expected a list"),
        ({"sweep": [{"option": "z", "values": [1, 1]}]}, "two rows are called 'practical_z_1'"),
        ({"sweep": [{"values": [1]}]}, r"\[\[calibrate.sweep\]\] has no option"),
        ({"sweep": [{"option": "quantile", "values": [0]}]}, "0 is not a number above 0 and below"),
        ({"sweep": [{"option": "layer", "values": [3]}]}, "layer is 3, which sample.layers does"),
        ({"quantile": 1.0}, "calibrate.quantile is 1.0; expected a number above 0 and below 1"),
        ({"quantile": 0}, "calibrate.quantile is 0.0; expected"),
    ],
)
def test_rows_and_sweeps_that_no_config_may_hold(tree, message):
    with pytest.raises(InputError, match=message):
        make_config({"calibrate": tree}, "mine.toml")


def test_the_algorithm_box_is_taken_at_its_word(fitted, applied, splits):
    """u* = m + z·σ², and its last line: answer iff m_post ≤ θ*, with θ* chosen on u*."""
    found, shown = applied["paper_box"], applied["paper_box"].shown
    z = fitted["paper_box"].fuse.model.scalar.z
    np.testing.assert_allclose(found.u, shown["m_post"] + z * shown["sigma_post"] ** 2)
    thetas = fitted["paper_box"].thresholds(0.2, 0.1)
    assert set(thetas) == {EMPIRICAL}
    answered, _ = found.decide(EMPIRICAL, thetas[EMPIRICAL])
    np.testing.assert_array_equal(answered, shown["m_post"] <= thetas[EMPIRICAL].threshold)
    as_defined = fitted["paper"].thresholds(0.2, 0.1)[EMPIRICAL]
    assert answered.sum() > applied["paper"].decide(EMPIRICAL, as_defined)[0].sum()


def test_gain_of_fusing_over_each_source(fitted, splits):
    names = ("practical", "paper", "evidence-only", "paper_prior", "paper_ols")
    config = EvaluateConfig(bootstrap=20)
    outcomes = {name: outcome_of(fitted[name], splits[1], config) for name in names}
    found = gains(outcomes, splits[1], config)
    assert {name: row["fused"] for name, row in found.items()} == {
        "evidence-only": "practical", "paper_prior": "paper",
    }  # fmt: skip
    for name, row in found.items():
        both, alone = (outcomes[n].applied.u for n in (row["fused"], name))
        gap = roc_auc_score(splits[1].wrong, both) - roc_auc_score(splits[1].wrong, alone)
        assert row["difference"] == pytest.approx(gap)
        assert row["low"] <= row["difference"] <= row["high"]
    assert gains(outcomes, replace(splits[1], wrong=np.ones(200)), config) == {}  # no AUROC
    del outcomes["paper"]
    assert set(gains(outcomes, splits[1], config)) == {"evidence-only"}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"calibrate": {"evidence": ["complement"]}}, "set semantics.complement"),
        ({"calibrate": {"evidence": ["rephrasing"]}}, "set semantics.rephrase"),
        (
            {
                "calibrate": {"evidence": ["rephrasing"]},
                "semantics": {"rephrase": "templates"},
                "score": {"baselines": ["g_nll"]},
            },
            "have 'neighborhood' among score.baselines",
        ),
        (
            {"calibrate": {"evidence": ["distinct"]}, "score": {"baselines": ["g_nll"]}},
            "which score.baselines leaves out",
        ),
        ({"calibrate": {"evidence": ["marginn"]}}, "Did you mean 'margin'"),
    ],
)
def test_evidence_that_the_settings_cannot_bring_is_refused_at_once(tree, message):
    with pytest.raises(InputError, match=message):
        check_calibration(make_config(tree, "here"))
    good = {
        "calibrate": {"evidence": ["complement", "rephrasing", "margin", "distinct"]},
        "semantics": {"complement": "templates", "rephrase": "templates"},
    }
    check_calibration(make_config(good, "here"))
