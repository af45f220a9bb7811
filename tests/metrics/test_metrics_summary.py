"""The summary is every metric's own interval, without those that are undefined."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from fusevlm.errors import InputError
from fusevlm.metrics import bootstrap, summary

OF_U = [
    "base_accuracy",
    "auroc",
    "tpr_at_fpr_0.1",
    "tpr_at_fpr_0.05",
    "tpr_at_fpr_0.01",
    "tpr_right_at_fpr_0.1",
    "tpr_right_at_fpr_0.05",
    "tpr_right_at_fpr_0.01",
    "pearson_calibration",
    "spearman_calibration",
    "aurac",
    "aurc",
    "e_aurc",
    "prr",
]
OF_P = ["ece", "ece_folded", "brier"]


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    wrong = np.arange(120) % 3 == 0
    u = rng.normal(size=120) + wrong
    return u, wrong, 1.0 / (1.0 + np.exp(-u))


def test_entries_with_and_without_probabilities(rows):
    u, wrong, p = rows
    assert list(summary(u, wrong, n_boot=20)) == OF_U
    assert list(summary(u, wrong, p, n_boot=20)) == OF_U + OF_P


def test_each_entry_is_the_bootstrap_of_that_metric(rows):
    u, wrong, p = rows
    units = np.arange(120) // 2
    settings = {"units": units, "n_boot": 40, "level": 0.8, "seed": 5}
    entries = summary(u, wrong, p, **settings)
    for name in OF_U:
        metric, _, fpr = name.partition("_fpr_")
        if fpr:
            of = "tpr_at_fpr_right" if "right" in metric else "tpr_at_fpr"
            expected = bootstrap(of, u, wrong, fpr=float(fpr), **settings)
        else:
            expected = bootstrap(metric, u, wrong, **settings)
        assert entries[name] == expected
    for name in OF_P:
        assert entries[name] == bootstrap(name, p, wrong, **settings)


def test_units_may_be_an_iterator(rows):
    u, wrong, _ = rows
    ids = [i // 2 for i in range(120)]
    assert summary(u, wrong, units=iter(ids), n_boot=20) == summary(u, wrong, units=ids, n_boot=20)


def test_undefined_metrics_are_left_out_with_a_warning(caplog):
    u = np.arange(20.0)
    with caplog.at_level(logging.WARNING):
        entries = summary(u, np.zeros(20), u / 20, n_boot=20)
    defined = {"base_accuracy", "aurac", "aurc", "e_aurc", *OF_P}
    assert set(entries) == defined
    assert entries["base_accuracy"].estimate == 1.0
    assert not any(math.isnan(entry.estimate) for entry in entries.values())
    missing = [name for name in OF_U if name not in defined]
    assert len(caplog.records) == len(missing)
    for name, record in zip(missing, caplog.records, strict=True):
        assert record.name == "fusevlm.metrics.summary"
        assert record.getMessage().startswith(f"{name} is left out of the summary: ")


def test_bad_input_is_an_error_and_not_a_missing_entry(rows):
    u, wrong, p = rows
    with pytest.raises(InputError, match="outside"):
        summary(u, wrong, p + 1.0)
    with pytest.raises(InputError, match="p has 3 value"):
        summary(u, wrong, p[:3])
    with pytest.raises(InputError, match="wrong has"):
        summary(u[:3], wrong)
