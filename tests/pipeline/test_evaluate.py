"""The figures of a run against scikit-learn, brute force and known truth."""

import csv
import dataclasses
import json

import numpy as np
import pyarrow.parquet as parquet
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fusevlm.config import CalibrateConfig, EvaluateConfig
from fusevlm.errors import InputError, UndefinedMetricError
from fusevlm.pipeline.causes import against, by_severity, mean_difference
from fusevlm.pipeline.data import read_queries_of
from fusevlm.pipeline.evaluate import (
    cluster_ids,
    cut,
    out_of_distribution,
    read_predictions,
    read_results,
    risk_of_answered,
)
from fusevlm.pipeline.intervals import interval
from fusevlm.pipeline.methods import EMPIRICAL, GUARANTEED, check_methods, fit_column, load_method
from fusevlm.pipeline.score import Scored, read_scored
from fusevlm.types import Query

FEW = EvaluateConfig(bootstrap=200)


def queries(**columns):
    size = len(next(iter(columns.values())))
    return [
        Query(f"q{k}", "what", metadata={name: v[k] for name, v in columns.items()})
        for k in range(size)
    ]


def test_labels_are_those_the_answers_deserve(finished):
    root, _, world = finished
    found = read_predictions(root)
    assert found["wrong"] == world.wrong[120:].tolist()
    assert found["query_id"][0] == "test/120"


def test_auroc_accuracy_coverage_and_risk_by_hand(finished):
    root, config, world = finished
    table, results = read_predictions(root), read_results(root)
    wrong = world.wrong[120:]
    whole = results["slices"][0]
    assert whole["base_accuracy"]["estimate"] == pytest.approx(1 - wrong.mean())
    assert list(whole["methods"]) == list(config.calibrate.methods)
    for name, row in whole["methods"].items():
        u = np.array(table[f"{name}.u"])
        assert row["auroc"]["estimate"] == pytest.approx(roc_auc_score(wrong, u))
        assert row["auroc"]["low"] <= row["auroc"]["estimate"] <= row["auroc"]["high"]
        theta = results["thresholds"][name]["empirical"]["threshold"]
        answered = u <= theta
        assert row["coverage_empirical"]["estimate"] == pytest.approx(answered.mean())
        assert row["risk_empirical"]["estimate"] == pytest.approx(wrong[answered].mean())
        guaranteed = np.array(table[f"{name}.answered_guaranteed"])
        assert row["coverage_guaranteed"]["estimate"] == pytest.approx(guaranteed.mean())
    assert roc_auc_score(wrong, table["prior-only.u"]) == roc_auc_score(wrong, world.s[120:])


def test_prior_and_evidence_make_the_posterior(finished):
    """m_post lies between the prior mean and the evidence, by the prior's weight."""
    table = read_predictions(finished[0])
    m0, e, m, w = (
        np.array(table[f"practical.{k}"]) for k in ("m0", "evidence", "m_post", "prior_weight")
    )
    np.testing.assert_allclose(m, w * m0 + (1 - w) * e, atol=1e-9)


def test_the_csv_holds_every_interval(finished):
    root, _, _ = finished
    results = read_results(root)
    with (root / "evaluate" / "results.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    methods = results["slices"][0]["methods"]
    per_slice = 1 + sum(len(row) for row in methods.values())
    assert len(rows) == per_slice * len(results["slices"])
    found = next(r for r in rows if (r["slice"], r["method"], r["metric"]) ==
                 ("severity 3", "paper", "auroc"))  # fmt: skip
    part = next(s for s in results["slices"] if s["slice"] == "severity 3")
    assert float(found["estimate"]) == part["methods"]["paper"]["auroc"]["estimate"]


def test_slices_part_the_queries():
    asked = queries(kind=["b", "a", "b"], level=[10, 9, 10], odd=[True, False, False])
    config = EvaluateConfig(slices=("kind", "level"), out_of_distribution=("odd",))
    found = {name: mask.tolist() for name, mask in cut(asked, config).items()}
    assert list(found) == [
        "in distribution", "out of distribution", "kind a", "kind b", "level 9", "level 10",
    ]  # fmt: skip
    assert found["kind b"] == [True, False, True]
    assert found["in distribution"] == [False, True, True]
    config = EvaluateConfig(slices=("nothing",))
    with pytest.raises(InputError, match="names 'nothing', which query 'q0' lacks; it has kind"):
        cut(asked, config)
    with pytest.raises(InputError, match="'level' is not true or false"):
        out_of_distribution(asked, EvaluateConfig(out_of_distribution=("level",)))


def test_clusters_are_a_column_or_the_image():
    asked = [
        Query("a", "q", images=["x.png"], metadata={"k": 1}),
        Query("b", "q", metadata={"k": 1}),
    ]
    assert cluster_ids(asked, "") == ["x.png", "b"]
    assert cluster_ids(asked, "k") == ["1", "1"]
    with pytest.raises(InputError, match=r"evaluate\.cluster"):
        cluster_ids(asked, "none")


def test_intervals_of_risk_against_a_bootstrap_by_hand():
    rng = np.random.default_rng(1)
    answered = (rng.random(80) < 0.6).astype(float)
    wrong = rng.random(80) < 0.3
    clusters = [str(k // 4) for k in range(80)]
    config = EvaluateConfig(bootstrap=4000)
    found = interval(risk_of_answered, answered, wrong, clusters, config)
    values = []
    for _ in range(4000):
        drawn = np.concatenate([np.arange(4 * c, 4 * c + 4) for c in rng.integers(0, 20, 20)])
        chosen = drawn[answered[drawn] > 0]
        values.append(wrong[chosen].mean())
    assert found["estimate"] == pytest.approx(wrong[answered > 0].mean())
    assert [found["low"], found["high"]] == pytest.approx(
        np.quantile(values, [0.025, 0.975]).tolist(), abs=0.02
    )


def test_undefined_figures_are_none():
    assert interval("auroc", [1.0, 2.0], [False, False], ["a", "b"], FEW) is None
    assert interval(risk_of_answered, np.zeros(2), [True, False], ["a", "b"], FEW) is None
    alone = interval("base_accuracy", np.zeros(2), np.array([True, False]), ["a", "a"], FEW)
    assert alone == {"estimate": 0.5, "low": None, "high": None}
    with pytest.raises(UndefinedMetricError):
        mean_difference(np.ones(3), [1, 1, 1])


def test_severity_table_finds_the_order():
    rng = np.random.default_rng(0)
    level = rng.integers(0, 6, 300)
    names = ["clean" if at == 0 else ("fog" if k % 2 else "noise") for k, at in enumerate(level)]
    s = np.where(np.array(names) == "fog", -1.0 * level, 1.0 * level) + 0.01 * rng.random(300)
    asked = queries(severity=level.tolist(), corruption=names)
    config = EvaluateConfig(bootstrap=50, severity="severity", corruption="corruption")
    rows = {r["corruption"]: r for r in by_severity(s, asked, [q.id for q in asked], config)}
    assert list(rows) == ["all", "fog", "noise"]
    assert all(row["levels"] == [0, 1, 2, 3, 4, 5] for row in rows.values())
    assert rows["noise"]["spearman"] == pytest.approx(1.0)
    assert rows["fog"]["spearman"] == pytest.approx(-1.0)
    for kind, row in rows.items():
        for at, mean in zip(row["levels"], row["mean_s"], strict=True):
            mine = (level == at) & np.array([kind in ("all", n) or at == 0 for n in names])
            assert mean["estimate"] == pytest.approx(s[mine].mean())
    middle = [m["estimate"] for m in rows["all"]["mean_s"]]
    ranks = stats.rankdata(middle)
    gap = ranks - np.arange(1, 7)  # 1 − 6Σd²/(n³−n) holds without ties
    assert rows["all"]["spearman"] == pytest.approx(1 - 6 * np.sum(gap**2) / 210)


def test_differences_to_the_distribution_by_hand():
    rng = np.random.default_rng(3)
    flag = np.arange(200) % 5 == 0
    level = rng.integers(0, 2, 200)
    values = rng.standard_normal(200) + 2.0 * flag + 0.5 * level
    asked = queries(odd=flag.tolist(), severity=level.tolist())
    config = EvaluateConfig(bootstrap=400, out_of_distribution=("odd",), severity="severity")
    rows = against({"evidence": values}, asked, [q.id for q in asked], config)
    clean = level == 0
    expected = {
        "all, against clean in distribution": (flag, ~flag & clean),
        "clean, against clean in distribution": (flag & clean, ~flag & clean),
        "all, against all in distribution": (flag, ~flag),
    }
    assert [row["queries"] for row in rows] == list(expected)
    for row in rows:
        group, reference = expected[row["queries"]]
        assert (row["n"], row["n_reference"]) == (group.sum(), reference.sum())
        found = row["evidence"]
        assert found["estimate"] == pytest.approx(values[group].mean() - values[reference].mean())
        welch = stats.ttest_ind(values[group], values[reference], equal_var=False)
        limits = welch.confidence_interval(0.95)
        assert [found["low"], found["high"]] == pytest.approx([limits.low, limits.high], abs=0.12)
    plain = EvaluateConfig(bootstrap=20, out_of_distribution=("odd",))
    (only,) = against({"evidence": values}, asked, [q.id for q in asked], plain)
    assert only["queries"] == "all, against all in distribution"


def column_world(seed, size=200):
    rng = np.random.default_rng(seed)
    u = rng.random(size)
    return Scored([str(k) for k in range(size)], [], {"u": u}, rng.random(size) < u)


def test_a_column_keeps_its_threshold_queries_apart():
    """Labels of one part move the probability only, labels of the other the thresholds only."""
    world = column_world(0)
    config = CalibrateConfig(seed=2)
    method = fit_column("u", world.columns["u"], world.wrong, config)
    assert sorted([*method.tuning_u, *method.u]) == sorted(world.columns["u"])
    in_apart = np.isin(world.columns["u"], method.u)
    assert in_apart.sum() == 100
    for part, same, moved in ((in_apart, "p", "theta"), (~in_apart, "theta", "p")):
        flipped = Scored(world.ids, [], world.columns, np.where(part, ~world.wrong, world.wrong))
        other = fit_column("u", flipped.columns["u"], flipped.wrong, config)
        p = np.array_equal(other.judge(world).p_wrong, method.judge(world).p_wrong)
        theta = [
            other.threshold(rule, 0.3, 0.1).threshold == method.threshold(rule, 0.3, 0.1).threshold
            for rule in (GUARANTEED, EMPIRICAL)
        ]
        assert {"p": p, "theta": all(theta)} == {same: True, moved: False}


def test_the_guarantee_of_a_column_holds_where_the_truth_is_known():
    """P(wrong | u) = u and u uniform: the risk of answering u ≤ θ is θ/2."""
    risk, delta, repeats = 0.2, 0.1, 300
    missed = {GUARANTEED: 0, EMPIRICAL: 0}
    for seed in range(repeats):
        world = column_world(seed)
        config = CalibrateConfig(seed=seed)
        method = fit_column("u", world.columns["u"], world.wrong, config)
        for rule in missed:
            theta = method.threshold(rule, risk, delta).threshold
            missed[rule] += max(theta, 0.0) / 2 > risk
    assert missed[GUARANTEED] / repeats <= delta + 3 * np.sqrt(delta * (1 - delta) / repeats)
    assert missed[EMPIRICAL] / repeats > 0.3  # the rule without a guarantee really differs


def test_isotonic_columns_and_saving(tmp_path):
    world = column_world(4)
    method = fit_column(
        "u", world.columns["u"], world.wrong, CalibrateConfig(probability="isotonic")
    )
    method.save(tmp_path)
    again = load_method("u", tmp_path)
    np.testing.assert_array_equal(again.judge(world).p_wrong, method.judge(world).p_wrong)
    order = np.argsort(world.columns["u"])
    assert np.all(np.diff(method.judge(world).p_wrong[order]) >= 0)


def test_the_papers_guarantee_comes_from_queries_kept_apart(finished):
    root, _, _ = finished
    method = load_method("paper", root / "calibrate" / "paper")
    assert method.fuse.model.n_calibration == 120  # the paper's own way: all for everything
    assert method.apart.model.n_calibration == 60
    assert method.threshold(GUARANTEED, 0.2, 0.1).n_calibration == 60
    queries = read_scored(root, "test", "last")
    judged = method.judge(queries)
    own, apart = (f.score(queries.samples, s=queries.s).u for f in (method.fuse, method.apart))
    theta = method.threshold(EMPIRICAL, 0.2, 0.1)
    at = float(np.median(np.r_[own, apart]))
    for rule, u in {EMPIRICAL: own, GUARANTEED: apart}.items():
        answered = judged.answers(dataclasses.replace(theta, rule=rule, threshold=at))
        np.testing.assert_array_equal(answered, u <= at)
    assert np.any((own <= at) != (apart <= at))
    practical = load_method("practical", root / "calibrate" / "practical")
    assert practical.fuse is practical.apart


def test_unknown_methods_are_refused_with_a_suggestion():
    with pytest.raises(InputError, match="Did you mean 'umpire'"):
        check_methods(["umpyre"], ["umpire", "s"])


def test_scores_hold_no_labels(finished):
    root, _, world = finished
    names = parquet.read_schema(root / "score" / "scores.parquet").names
    assert {"query_id", "split", "s", "g_nll", "umpire"} <= set(names)
    assert "wrong" not in names
    nll = [-np.sum(q.answer_logprobs) for q in world.samples[:120]]
    scored = read_scored(root, "calibration", "last")
    np.testing.assert_allclose(scored.columns["g_nll"], nll, rtol=1e-12)
    absent = json.loads((root / "score" / "absent.json").read_text())
    assert absent["p_true"] == "the run has no p_true"


def test_stored_queries_come_back(finished):
    root, _, _ = finished
    first, *_ = read_queries_of(root)
    assert (first.id, first.references) == ("calibration/0", ["right"])
    assert first.metadata["split"] == "calibration"
    assert first.images[0].is_file()
