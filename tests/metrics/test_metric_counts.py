"""The counts form of every metric is the metric on the rows repeated that many times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusevlm.errors import UndefinedMetricError
from fusevlm.metrics.bootstrap import METRICS

unhurried = settings(deadline=None, max_examples=40)

OPTIONS = {
    "tpr_at_fpr": [{"fpr": 0.0}, {"fpr": 0.1}, {"fpr": 0.37}, {"fpr": 1.0}],
    "tpr_at_fpr_nearest": [{"fpr": 0.0}, {"fpr": 0.1}, {"fpr": 0.37}, {"fpr": 1.0}],
    "tpr_at_fpr_right": [{"fpr": 0.0}, {"fpr": 0.1}, {"fpr": 0.37}, {"fpr": 1.0}],
    "ece": [{}, {"n_bins": 4}],
    "ece_folded": [{}, {"n_bins": 4}],
    "pearson_calibration": [{}, {"n_bins": 4}],
    "spearman_calibration": [{}, {"n_bins": 4}],
}
CASES = [(name, options) for name in METRICS for options in OPTIONS.get(name, [{}])]
IDS = [name + "".join(f"-{v}" for v in options.values()) for name, options in CASES]


def on_repeated_rows(public, u, wrong, counts, options):
    """The public metric on np.repeat-ed data, NaN where it refuses."""
    try:
        return public(np.repeat(u, counts), np.repeat(wrong, counts), **options)
    except UndefinedMetricError:
        return np.nan


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@unhurried
@given(data=st.data())
def test_counts_form_is_the_metric_on_repeated_rows(name, options, data):
    public, counts_form = METRICS[name]
    n = data.draw(st.integers(1, 12))
    u = np.array(data.draw(st.lists(st.integers(0, 8), min_size=n, max_size=n))) / 8
    wrong = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    row_counts = st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(any)
    counts = np.array(data.draw(st.lists(row_counts, min_size=1, max_size=4)))
    expected = [on_repeated_rows(public, u, wrong, c, options) for c in counts]
    np.testing.assert_allclose(counts_form(u, wrong, counts, **options), expected, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_counts_form_keeps_any_leading_axes(name, options):
    rng = np.random.default_rng(2)
    u, wrong = rng.random(40), rng.random(40) < 0.4
    counts = rng.multinomial(40, np.full(40, 1 / 40), size=(2, 3))
    _, counts_form = METRICS[name]
    values = counts_form(u, wrong, counts, **options)
    assert values.shape == (2, 3)
    assert values.dtype == np.float64
    one = counts_form(u, wrong, counts[1, 2], **options)
    assert one.shape == ()
    assert one == pytest.approx(values[1, 2], abs=1e-12)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_one_undefined_resample_does_not_spoil_its_neighbours(name, options):
    u, wrong = np.array([0.1, 0.4, 0.6, 0.9]), np.array([False, True, False, True])
    counts = np.array([[1, 1, 1, 1], [2, 0, 2, 0], [1, 1, 1, 1]])
    _, counts_form = METRICS[name]
    values = counts_form(u, wrong, counts, **options)
    assert values[0] == values[2] == METRICS[name][0](u, wrong, **options)
    defined_on_one_class = {"ece", "ece_folded", "brier", "base_accuracy", "aurac", "aurc"}
    assert np.isnan(values[1]) == (name not in defined_on_one_class | {"e_aurc"})
