"""Bad input is refused with a typed error that says what to do; importing stays light."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

import fusevlm.metrics as metrics
from fusevlm.errors import InputError, UndefinedMetricError

OF_U = {
    "auroc": {},
    "roc_curve": {},
    "tpr_at_fpr": {"fpr": 0.1},
    "tpr_at_fpr_nearest": {"fpr": 0.1},
    "pearson_calibration": {},
    "spearman_calibration": {},
    "base_accuracy": {},
    "aurac": {},
    "aurc": {},
    "e_aurc": {},
    "prr": {},
    "risk_coverage": {},
    "rejection_accuracy": {},
}
OF_P = {"ece": {}, "ece_folded": {}, "brier": {}, "reliability": {}}
EVERY = [(name, options) for group in (OF_U, OF_P) for name, options in group.items()]


@pytest.mark.parametrize(("name", "options"), EVERY)
@pytest.mark.parametrize(
    ("score", "wrong", "message"),
    [
        ([0.1, math.nan, 0.3], [0, 1, 0], "1 NaN or infinite value.*index 1"),
        ([0.1, 0.2, math.inf], [0, 1, 0], "NaN or infinite"),
        ([0.1, 0.2, 0.3], [0, math.nan, 0], "wrong has 1 NaN"),
        ([], [], "is empty"),
        ([0.1, 0.2, 0.3], [0, 1], "wrong has 2 value.s.; expected 3"),
        ([0.1, 0.2, 0.3], [0, 1, 2], "only 0 .right. and 1 .wrong.; got 2"),
        ([0.1, 0.2, 0.3], [0, 1, 0.5], "got 0.5"),
        ([[0.1, 0.2]], [0, 1], "expected one dimension"),
        (["a", "b"], [0, 1], "not numeric"),
    ],
)
def test_bad_rows_are_refused(name, options, score, wrong, message):
    with pytest.raises(InputError, match=message):
        getattr(metrics, name)(score, wrong, **options)


@pytest.mark.parametrize("name", OF_P)
@pytest.mark.parametrize("outside", [-0.01, 1.01])
def test_probabilities_must_lie_between_zero_and_one(name, outside):
    with pytest.raises(InputError, match=r"p has 1 value\(s\) outside \[0, 1\] .* index 1"):
        getattr(metrics, name)([0.5, outside], [0, 1])


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "auroc",
        "roc_curve",
        "tpr_at_fpr",
        "tpr_at_fpr_nearest",
        "prr",
        "pearson_calibration",
        "spearman_calibration",
    ],
)
def test_one_class_is_an_undefined_metric_with_a_way_out(name, label):
    message = f"{name} has no value here: .* got 4 answer.*{4 * label} of them wrong. Add labelled"
    with pytest.raises(UndefinedMetricError, match=message):
        getattr(metrics, name)([1, 2, 3, 4], [label] * 4, **OF_U[name])


@pytest.mark.parametrize("name", ["tpr_at_fpr", "tpr_at_fpr_nearest"])
@pytest.mark.parametrize("fpr", [-0.1, 1.1, math.nan])
def test_fpr_must_be_a_rate(name, fpr):
    with pytest.raises(InputError, match="fpr"):
        getattr(metrics, name)([1, 2], [0, 1], fpr)


@pytest.mark.parametrize(
    "name", ["ece", "ece_folded", "reliability", "pearson_calibration", "spearman_calibration"]
)
@pytest.mark.parametrize("n_bins", [0, -3, 2.5])
def test_bins_must_be_a_whole_number(name, n_bins):
    with pytest.raises(InputError, match="n_bins"):
        getattr(metrics, name)([0.1, 0.9], [0, 1], n_bins)


def test_every_public_name_exists_and_the_list_is_sorted():
    assert metrics.__all__ == sorted(metrics.__all__)
    assert all(hasattr(metrics, name) for name in metrics.__all__)


def test_importing_the_metrics_does_not_load_scipy():
    code = (
        "import sys, fusevlm; before = set(sys.modules); import fusevlm.metrics; "
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] == 'scipy'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
