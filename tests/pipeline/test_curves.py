"""AUROC over samples and criteria, and figures of a comparison by hand."""

import dataclasses

import numpy as np
import pytest

from fusevlm import metrics, simulate
from fusevlm.pipeline.curves import labels_by, over_criteria, over_samples
from fusevlm.pipeline.measure import EVERY, best_baseline, differences, measure, outcome_of
from fusevlm.pipeline.methods import fit_method
from fusevlm.scores import compute_scores
from fusevlm.settings import CalibrateConfig, EvaluateConfig
from fusevlm.types import Queries, Samples, Semantics

N_FIT = 150
CONFIG = CalibrateConfig()
FEW = EvaluateConfig(bootstrap=60)
NAMES = ["g_nll", "ln_entropy", "eigenscore_last", "practical", "paper", "paper_mean"]


@pytest.fixture(scope="module")
def queries():
    world = simulate.queries(350, n_samples=6, d=24, seed=5)
    units = [f"image {i // 2}" for i in range(350)]
    table = dataclasses.replace(world, fit=np.arange(N_FIT), units=units)
    columns, _ = compute_scores(table, NAMES[:3])
    return dataclasses.replace(table, columns={**table.columns, **columns})


@pytest.fixture(scope="module")
def outcomes(queries):
    known, new = queries.split()
    return {name: outcome_of(fit_method(name, known, CONFIG), new, FEW) for name in NAMES}


@pytest.fixture(scope="module")
def figures(queries, outcomes):
    return measure(outcomes, queries.split()[1], FEW)[0]["methods"]


def test_every_method_has_every_metric(figures):
    for name, row in figures.items():
        assert set(EVERY) <= set(row)
        assert row["auroc"]["low"] <= row["auroc"]["estimate"] <= row["auroc"]["high"], name


def test_a_figure_is_the_metric_of_its_column(figures, queries):
    new = queries.split()[1]
    assert figures["g_nll"]["auroc"]["estimate"] == metrics.auroc(new.columns["g_nll"], new.wrong)


def test_differences_are_against_the_best_baseline(figures, outcomes, queries):
    new = queries.split()[1]
    best = best_baseline(figures)
    aurocs = {n: metrics.auroc(new.columns[n], new.wrong) for n in NAMES[:3]}
    assert best == max(aurocs, key=aurocs.get)
    found = differences(outcomes, best, new, FEW)
    assert best not in found
    for name, row in found.items():
        own = figures[name]["auroc"]["estimate"]
        assert row["difference"] == pytest.approx(own - aurocs[best])
        assert row["p_holm"] >= row["p_value"]
        assert row["low"] <= row["difference"] <= row["high"]


def test_differences_resample_whole_units(outcomes, queries):
    new = queries.split()[1]
    alone = dataclasses.replace(new, units=new.ids)
    one = differences(outcomes, "g_nll", new, FEW)["practical"]
    two = differences(outcomes, "g_nll", alone, FEW)["practical"]
    assert one["difference"] == two["difference"]
    assert (one["low"], one["high"]) != (two["low"], two["high"])
    single = dataclasses.replace(new, units=["all"] * len(new))
    assert differences(outcomes, "g_nll", single, FEW) == {}


def test_stacked_learns_from_the_samples_and_labels_of_each_point(queries):
    """Fewer samples change the columns below it; so do the columns of the whole at the end."""
    curve = over_samples("here", queries, [2, 6], ["stacked", "g_nll"], CONFIG)
    known, new = queries.split()
    whole = fit_method("stacked", known, CONFIG).apply(new).u
    assert curve.values["stacked"][1] == pytest.approx(metrics.auroc(whole, new.wrong))
    short = queries.first(2)
    columns, _ = compute_scores(short, NAMES[:3])
    known, new = dataclasses.replace(short, columns=columns).split()
    few = fit_method("stacked", known, CONFIG).apply(new).u
    assert curve.values["stacked"][0] == pytest.approx(metrics.auroc(few, new.wrong))
    assert curve.values["stacked"][0] != curve.values["stacked"][1]
    assert curve.values["g_nll"][0] == curve.values["g_nll"][1]


def test_equal_rows_are_shown_equal(figures):
    for metric in ("auroc", "aurac"):
        assert figures["paper"][metric] == figures["paper_mean"][metric]


def test_coverage_and_risk_are_those_of_the_threshold(figures, queries):
    """A threshold answers the surest queries: risk among them is the mean of their labels."""
    new = queries.split()[1]
    row = figures["g_nll"]
    order = np.argsort(new.columns["g_nll"], kind="stable")
    answered = new.wrong[order[: round(row["coverage_guaranteed"]["estimate"] * len(order))]]
    if len(answered):
        assert row["risk_guaranteed"]["estimate"] == pytest.approx(answered.mean())
    else:
        assert row["risk_guaranteed"] is None


def test_samples_are_nested_and_the_last_is_the_whole(queries, figures):
    curve = over_samples("here", queries, [2, 4, 6, 50], ["g_nll", "practical"], CONFIG)
    assert list(curve.points) == ["2", "4", "6"]  # 50 were not sampled
    assert len(set(curve.values["g_nll"])) == 1  # the judged answer is not one of the samples
    assert curve.values["g_nll"][-1] == figures["g_nll"]["auroc"]["estimate"]
    assert curve.values["practical"][-1] == figures["practical"]["auroc"]["estimate"]
    assert curve.values["practical"][0] != curve.values["practical"][-1]


def test_the_first_samples_cut_everything_per_sample(queries):
    n = len(queries.samples[0])
    between = np.arange((n + 1) ** 2, dtype=float).reshape(n + 1, n + 1)
    whole = Queries(
        queries.ids,
        queries.samples,
        states={"middle": [q.embeddings for q in queries.samples]},
        semantics=[Semantics(np.arange(n), between) for _ in queries.samples],
        sample_wrong=[np.zeros(n, dtype=bool) for _ in queries.samples],
    )
    cut = whole.first(3)
    np.testing.assert_array_equal(cut.semantics[0].similarity, between[:3, :3])
    np.testing.assert_array_equal(cut.semantics[0].answer_similarity, between[-1, :3])
    assert cut.states["middle"][0].shape == (3, 24)
    assert cut.semantics[0].meanings.tolist() == [0, 1, 2]
    assert len(cut.sample_wrong[0]) == len(cut.samples[0]) == 3
    own, whole_of = cut.samples[0], queries.samples[0]
    assert list(own.texts) == list(whole_of.texts[:3])
    np.testing.assert_array_equal(own.embeddings, whole_of.embeddings[:3])
    np.testing.assert_array_equal(cut.states["middle"][0], whole_of.embeddings[:3])
    for one, two in zip(own.token_logprobs, whole_of.token_logprobs[:3], strict=True):
        np.testing.assert_array_equal(one, two)
    assert cut.semantics[0].rephrasings is None
    assert cut.samples[0].answer == queries.samples[0].answer


def said(*answers):
    samples = [Samples(["x"], answer=answer) for answer in answers]
    return Queries(
        [str(k) for k in range(len(answers))], samples, references=[["red circle"]] * len(answers)
    )


def test_labels_by_criterion():
    criteria = [("exact_match", None), ("rouge_l", 0.6), ("vqa_accuracy", None)]
    labels, left_out = labels_by(said("red circle", "red"), criteria)
    found = dict(labels)
    assert "10" in left_out["vqa_accuracy"]
    assert found["exact_match"].tolist() == [False, True]
    assert found["rouge_l ≥ 0.6"].tolist() == [False, False]  # F1 of 1 word of 2 is 2/3


def test_criteria_change_the_labels(queries):
    """Rouge at a high level is exact match here, and a level nothing misses has no AUROC."""
    answers = ["right" if not w else "wrong" for w in queries.wrong]
    table = dataclasses.replace(
        queries,
        samples=[
            dataclasses.replace(q, answer=a) for q, a in zip(queries.samples, answers, strict=True)
        ],
        references=[["right"]] * len(queries),
    )
    criteria = [("exact_match", None), ("rouge_l", 0.9)]
    curve = over_criteria("here", table, criteria, ["ln_entropy", "practical"], CONFIG)
    assert curve.values["ln_entropy"][0] == curve.values["ln_entropy"][1]
    assert curve.base_accuracy[0] == pytest.approx(1 - queries.wrong[N_FIT:].mean())
