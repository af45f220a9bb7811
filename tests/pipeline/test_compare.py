import numpy as np
import pytest

from fusevlm import metrics, simulate
from fusevlm.config import EvaluateConfig
from fusevlm.pipeline.ablations import ABLATIONS, Split
from fusevlm.pipeline.bench_compare import Data, best_baseline, compare, group_of
from fusevlm.pipeline.bench_results import METRICS
from fusevlm.pipeline.curves import first_inputs, over_criteria, over_generations
from fusevlm.scores import compute_scores
from fusevlm.scores.interface import Inputs

N_FIT = 150


@pytest.fixture(scope="module")
def world():
    return simulate.queries(350, n_samples=6, d=24, seed=5)


@pytest.fixture(scope="module")
def inputs(world):
    return Inputs(world.samples, fit=np.arange(N_FIT), wrong=world.wrong)


@pytest.fixture(scope="module")
def data(world, inputs):
    columns, _ = compute_scores(inputs, ["g_nll", "ln_entropy", "eigenscore_last"])
    parts = [slice(0, N_FIT), slice(N_FIT, None)]
    splits = [Split(world.samples[c], world.s[c], world.wrong[c]) for c in parts]
    halves = [{name: column[c] for name, column in columns.items()} for c in parts]
    images = [f"image {i // 2}" for i in range(len(splits[1].wrong))]
    return Data(*splits, *halves, images)


@pytest.fixture(scope="module")
def cells(data):
    return compare(data, EvaluateConfig(bootstrap=60), ["practical", "paper", "paper_mean"])


def test_every_method_has_every_metric(cells):
    assert set(cells) == {
        "g_nll", "ln_entropy", "eigenscore_last", "practical", "paper", "paper_mean"
    }  # fmt: skip
    for cell in cells.values():
        assert set(cell.metrics) == set(METRICS)
        assert all(v.low <= v.estimate <= v.high for k, v in cell.metrics.items() if k == "auroc")
        assert cell.seconds is not None


def test_a_cell_is_the_metric_of_its_column(cells, data):
    assert cells["g_nll"].metrics["auroc"].estimate == metrics.auroc(
        data.columns["g_nll"], data.test.wrong
    )


def test_differences_are_against_the_best_column(cells, data):
    best = best_baseline({n: cells[n] for n in data.columns})
    aurocs = {n: metrics.auroc(u, data.test.wrong) for n, u in data.columns.items()}
    assert best == max(aurocs, key=aurocs.get)
    assert cells[best].against is None
    for name, cell in cells.items():
        if name != best:
            own = cell.metrics["auroc"].estimate
            assert cell.against.difference == pytest.approx(own - aurocs[best])
            assert cell.p_holm >= cell.against.p_value


def test_equal_rows_are_shown_equal(cells):
    assert cells["paper"].metrics["auroc"] == cells["paper_mean"].metrics["auroc"]
    assert cells["paper"].metrics["aurac"] == cells["paper_mean"].metrics["aurac"]


def test_coverage_and_risk_are_those_of_the_threshold(cells, data):
    """A threshold answers the surest queries: risk among them is the mean of their labels."""
    cell = cells["g_nll"]
    order = np.argsort(data.columns["g_nll"], kind="stable")
    answered = data.test.wrong[order[: round(cell.coverage * len(order))]]
    assert cell.risk == (pytest.approx(answered.mean()) if len(answered) else None)


def test_a_row_that_cannot_be_made_is_explained(data):
    few = Split(data.fit.samples[:2], data.fit.s[:2], np.array([True, False]))
    broken = Data(few, data.test, {}, {}, data.clusters)
    found = compare(broken, EvaluateConfig(bootstrap=20), ["paper"])
    assert "at least 3" in found["paper"].missing


def test_groups():
    assert group_of(ABLATIONS["paper"]) == "FUSE"
    assert group_of(ABLATIONS["paper_mean"]) == "Ablations"
    assert group_of(ABLATIONS["practical_prior"]) == "Sources"
    assert group_of(ABLATIONS["paper_jitter_1e-08"]) == "Sensitivity"


def test_generations_are_nested_and_the_last_is_the_whole(world, inputs, data, cells):
    curve = over_generations("here", inputs, world.s, [2, 4, 6, 50], ["g_nll", "practical"])
    assert list(curve.points) == ["2", "4", "6"]  # 50 were not sampled
    assert len(set(curve.values["g_nll"])) == 1  # the judged answer is not one of the samples
    whole = metrics.auroc(data.columns["g_nll"], data.test.wrong)
    assert curve.values["g_nll"][-1] == whole
    assert curve.values["practical"][-1] == cells["practical"].metrics["auroc"].estimate
    assert curve.values["practical"][0] != curve.values["practical"][-1]


def test_first_inputs_cuts_everything_per_sample(world):
    n = len(world.samples[0])
    square = [np.eye(n) for _ in world.samples]
    whole = Inputs(
        world.samples,
        middle=[q.embeddings for q in world.samples],
        clusters=[np.arange(n) for _ in world.samples],
        similarity=square,
        sample_wrong=[np.zeros(n, dtype=bool) for _ in world.samples],
    )
    cut = first_inputs(whole, 3)
    assert cut.similarity[0].shape == (3, 3)
    assert cut.middle[0].shape == (3, 24)
    assert cut.clusters[0].tolist() == [0, 1, 2]
    assert len(cut.sample_wrong[0]) == len(cut.samples[0]) == 3
    assert cut.agreement is None


def test_criteria_change_the_labels_and_nothing_else(world, inputs):
    flipped = ~world.wrong
    labels = [("as it is", world.wrong), ("the reverse", flipped)]
    curve = over_criteria("here", inputs, world.s, labels, ["ln_entropy", "practical"], {})
    assert sum(curve.values["ln_entropy"]) == pytest.approx(1.0)
    assert sum(curve.base_accuracy) == pytest.approx(1.0)
    # FUSE is fitted anew to each criterion, so it turns round with the labels
    assert min(curve.values["practical"]) > 0.5
