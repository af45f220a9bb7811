"""The figures of a run against scikit-learn, brute force and known truth."""

import csv
import dataclasses
import json

import numpy as np
import pyarrow.parquet as parquet
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score
from tests.pipeline.synthetic_runs import config_of, write_tables
from tests.pipeline.test_score import renote

from fusevlm.config import change_config
from fusevlm.errors import ArtefactError, InputError, UndefinedMetricError
from fusevlm.pipeline.causes import against, by_severity, mean_difference
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.evaluate import read_predictions, read_results
from fusevlm.pipeline.measure import cut, interval, out_of_distribution, risk_of_answered
from fusevlm.pipeline.methods import (
    EMPIRICAL,
    GUARANTEED,
    check_methods,
    find_method,
    fit_method,
    load_method,
)
from fusevlm.pipeline.run import run_stages
from fusevlm.pipeline.score import read_scored
from fusevlm.settings import CalibrateConfig, EvaluateConfig
from fusevlm.types import Queries, Samples

FEW = EvaluateConfig(bootstrap=200)


def queries(s=None, **columns):
    size = len(next(iter(columns.values())))
    samples = [Samples(["yes"])] * size
    prior = {} if s is None else {"s": s}
    return Queries([f"q{k}" for k in range(size)], samples, prior=prior, columns=columns)


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
    auroc = roc_auc_score(wrong, table["prior-only.u"])
    assert auroc == pytest.approx(roc_auc_score(wrong, world.s[120:]))


def test_only_test_queries_are_measured(small):
    root, config, world = small
    run_stages(root, config, to="evaluate")
    results = read_results(root)
    whole = results["slices"][0]
    assert (results["calibration"], whole["queries"]) == (40, 30)
    nll = np.array([-np.sum(q.answer_logprobs) for q in world.samples])
    auroc = roc_auc_score(world.wrong[40:], nll[40:])
    assert whole["methods"]["g_nll"]["auroc"]["estimate"] == pytest.approx(auroc)
    assert read_predictions(root)["query_id"] == [f"test/{k}" for k in range(40, 70)]


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
    expected = [1 + sum(len(row) for row in part["methods"].values()) for part in results["slices"]]
    assert len(rows) == sum(expected)
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
    with pytest.raises(
        InputError, match=r"evaluate\.slices names the column 'nothing'.*Known are: kind"
    ):
        cut(asked, config)
    with pytest.raises(InputError, match="'level' is not true or false"):
        out_of_distribution(asked, EvaluateConfig(out_of_distribution=("level",)))


def test_intervals_of_risk_against_a_bootstrap_by_hand():
    rng = np.random.default_rng(1)
    answered = (rng.random(80) < 0.6).astype(float)
    wrong = rng.random(80) < 0.3
    units = [str(k // 4) for k in range(80)]
    config = EvaluateConfig(bootstrap=4000)
    found = interval(risk_of_answered, answered, wrong, units, config)
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
    asked = queries(s, severity=level.tolist(), corruption=names)
    config = EvaluateConfig(bootstrap=50, severity="severity", corruption="corruption")
    rows = {r["corruption"]: r for r in by_severity(asked, config)}
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
    rows = against({"evidence": values}, asked, config)
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
    (only,) = against({"evidence": values}, asked, plain)
    assert only["queries"] == "all, against all in distribution"


def column_world(seed, size=200):
    """A score column (under the name of a baseline) with P(wrong | u) = u."""
    rng = np.random.default_rng(seed)
    u = rng.random(size)
    ids = [str(k) for k in range(size)]
    samples = [Samples(["yes"])] * size
    return Queries(ids, samples, wrong=rng.random(size) < u, columns={"g_nll": u})


def test_a_column_keeps_its_threshold_queries_apart():
    """Labels of the tuning part decide where the tests begin, those kept apart all else."""
    world = column_world(0)
    u, config = world.columns["g_nll"], CalibrateConfig(seed=2)
    method = fit_method("g_nll", world, config)
    assert sorted([*method.values.tuning, *method.values.held]) == sorted(u)
    in_apart = np.isin(u, method.values.held)
    assert in_apart.sum() == 100
    for part, moved in ((in_apart, True), (~in_apart, False)):
        flipped = dataclasses.replace(world, wrong=np.where(part, ~world.wrong, world.wrong))
        other = fit_method("g_nll", flipped, config)
        p = np.array_equal(other.apply(world).p_wrong, method.apply(world).p_wrong)
        theta, before = (m.thresholds(0.3, 0.1)[EMPIRICAL] for m in (other, method))
        assert (p, theta == before) == (not moved, not moved)
        np.testing.assert_array_equal(
            other.values.tuning_wrong == method.values.tuning_wrong, moved
        )


def test_candidates_of_the_guarantee_come_from_the_tuning_scores():
    """The queries that test a threshold must not propose it: moved a hair, they change nothing."""
    world = column_world(3)
    method = fit_method("g_nll", world, CalibrateConfig())
    u = world.columns["g_nll"]
    moved = dataclasses.replace(
        world, columns={"g_nll": np.where(np.isin(u, method.values.held), u + 1e-9, u)}
    )
    again = fit_method("g_nll", moved, CalibrateConfig())
    one, two = (m.thresholds(0.4, 0.1) for m in (method, again))
    assert one[GUARANTEED].feasible
    assert one[GUARANTEED] == two[GUARANTEED]
    assert one[EMPIRICAL].threshold + 1e-9 == pytest.approx(two[EMPIRICAL].threshold, abs=1e-15)


def test_the_guarantee_of_a_column_holds_where_the_truth_is_known():
    """P(wrong | u) = u and u uniform: the risk of answering u ≤ θ is θ/2."""
    risk, delta, repeats = 0.2, 0.1, 300
    missed = {GUARANTEED: 0, EMPIRICAL: 0}
    for seed in range(repeats):
        method = fit_method("g_nll", column_world(seed), CalibrateConfig(seed=seed))
        for rule, theta in method.thresholds(risk, delta).items():
            missed[rule] += max(theta.threshold, 0.0) / 2 > risk
    assert missed[GUARANTEED] / repeats <= delta + 3 * np.sqrt(delta * (1 - delta) / repeats)
    assert missed[EMPIRICAL] / repeats > 0.3  # the rule without a guarantee really differs


def test_isotonic_columns_and_saving(tmp_path):
    world = column_world(4)
    method = fit_method("g_nll", world, CalibrateConfig(probability="isotonic"))
    method.save(tmp_path)
    again = load_method(tmp_path)
    np.testing.assert_array_equal(again.apply(world).p_wrong, method.apply(world).p_wrong)
    assert again.thresholds(0.3, 0.1) == method.thresholds(0.3, 0.1)
    order = np.argsort(world.columns["g_nll"])
    assert np.all(np.diff(method.apply(world).p_wrong[order]) >= 0)


def test_the_papers_guarantee_comes_from_queries_kept_apart(finished):
    root, config, _ = finished
    method = load_method(root / "calibrate" / "paper")
    assert method.fuse.model.n_calibration == 120  # the paper's own way: all for everything
    assert method.apart.fuse.model.n_calibration == 60
    assert method.thresholds(0.2, 0.1)[GUARANTEED].n_calibration == 60
    whole, _ = read_scored(root, config, states={"embeddings"})
    queries = whole.take(whole.test)
    applied = method.apply(queries)
    given = dataclasses.replace(queries, inputs={})
    own, apart = (f.score(given).u for f in (method.fuse, method.apart.fuse))
    theta = method.thresholds(0.2, 0.1)[EMPIRICAL]
    at = float(np.median(np.r_[own, apart]))
    for rule, u in {EMPIRICAL: own, GUARANTEED: apart}.items():
        answered, _ = applied.decide(rule, dataclasses.replace(theta, threshold=at))
        np.testing.assert_array_equal(answered, u <= at)
    assert np.any((own <= at) != (apart <= at))
    assert load_method(root / "calibrate" / "practical").apart is None


def test_unknown_methods_are_refused_with_a_suggestion():
    with pytest.raises(InputError, match="Did you mean 'umpire'"):
        check_methods(CalibrateConfig(methods=("umpyre",)))


def test_scores_hold_no_labels(finished):
    root, config, world = finished
    names = parquet.read_schema(root / "score" / "scores.parquet").names
    assert {"query_id", "g_nll", "umpire"} <= set(names)
    assert "wrong" not in names
    nll = [-np.sum(q.answer_logprobs) for q in world.samples]
    scored, absent = read_scored(root, config)
    np.testing.assert_allclose(scored.columns["g_nll"], nll, rtol=1e-12)
    assert scored.samples[0].embeddings is None  # nobody needed hidden states
    assert "semantics.p_true = true" in absent["p_true"]


def test_the_unit_of_resampling_is_the_datasets(run):
    """Another unit changes every interval, and nothing but intervals."""
    folder, config = run
    before = read_results(folder)["slices"][0]
    runs_of_units = json.loads((folder / "data" / "stage.json").read_text())["settings"]
    assert runs_of_units["data.unit"] == "image_id"
    table = pa_table(folder / "data" / "queries.parquet")
    table["unit"] = table["query_id"]
    write_table(folder / "data" / "queries.parquet", table)
    renote(folder, "data")
    run_stages(folder, config, only="evaluate", redo="evaluate")
    after = read_results(folder)["slices"][0]
    for name, row in before["methods"].items():
        for metric in ("auroc", "aurac", "coverage_empirical"):
            old, new = row[metric], after["methods"][name][metric]
            assert old["estimate"] == new["estimate"]
            assert (old["low"], old["high"]) != (new["low"], new["high"])


def pa_table(path):
    return parquet.read_table(path).to_pydict()


def write_table(path, columns):
    import pyarrow as pa

    parquet.write_table(pa.table(columns), path)


def test_prior_only_is_m0_of_the_fit(finished):
    root, _, _ = finished
    table = read_predictions(root)
    np.testing.assert_allclose(table["prior-only.u"], table["practical.m0"], rtol=1e-12)


def test_a_method_that_cannot_be_fitted_is_named_with_its_setting(run):
    folder, config = run
    config = change_config(config, ['calibrate.methods=["practical", "eigv", "p_true"]'])
    run_stages(folder, config, redo="calibrate")
    results = read_results(folder)
    assert list(results["slices"][0]["methods"]) == ["practical"]
    assert "semantics.similarity" in results["absent"]["eigv"]
    assert "semantics.p_true = true" in results["absent"]["p_true"]


def test_groups_of_methods():
    assert find_method("paper").group == "FUSE"
    assert find_method("paper_mean").group == "Ablations"
    assert find_method("prior-only").group == "Sources"
    assert find_method("paper_jitter_1e-08").group == "Sensitivity"
    assert find_method("umpire").group == "Baselines"


@pytest.mark.parametrize("split", ["calibration", "test"])
def test_a_split_that_failed_as_a_whole_is_told_with_its_reason(tmp_path, split):
    """Not as one that nobody named, nor by a division by nothing."""
    write_tables(tmp_path, n_calibration=40, n_test=12)
    rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
    shown = [json.dumps({**row, "images": ["nowhere.png"]}) for row in rows]
    (tmp_path / f"{split}.jsonl").write_text("\n".join(shown))
    message = rf"all {len(rows)} {split} queries failed: .*nowhere\.png does not exist"
    with pytest.raises(ArtefactError, match=message):
        run_stages(tmp_path / "run", config_of(tmp_path), to="evaluate")


def test_stored_queries_come_back(finished):
    root, _, _ = finished
    first, *_ = read_asked(root)
    assert (first.id, first.references) == ("calibration/0", ("right",))
    assert first.metadata["split"] == "calibration"
    assert first.images[0].is_file()
