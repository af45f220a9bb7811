"""The streaming covariance against numpy on all rows at once, shrinkage against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf_shrinkage

from fusevlm.errors import InputError
from fusevlm.maths import covariance
from fusevlm.maths.covariance import CovarianceAccumulator, oas_intensity


def accumulate(parts, d):
    accumulator = CovarianceAccumulator(d)
    for rows in parts:
        accumulator.update(rows)
    return accumulator


def normalised(S):
    return S / (np.trace(S) / len(S))


@pytest.mark.parametrize("block", [1, 7, 1024])
def test_streaming_equals_all_at_once(monkeypatch, block):
    monkeypatch.setattr(covariance, "_BLOCK_ROWS", block)
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((k, 6)) * 3 + 100 for k in (4, 1, 9, 30, 2)]
    shape = accumulate(parts, 6).estimate("none")
    rows = np.concatenate(parts)
    np.testing.assert_allclose(shape.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        shape.Sigma_r, normalised(np.cov(rows, rowvar=False, ddof=0)), rtol=1e-8, atol=1e-10
    )
    assert (shape.n_samples, shape.n_queries) == (46, 5)
    assert np.trace(shape.Sigma_r) == pytest.approx(6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=3, max_size=12), st.integers(0, 2**32 - 1))
def test_merging_parts_in_any_grouping_changes_nothing(assignment, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((rng.integers(1, 6), 4)) * 5 - 20 for _ in assignment]
    together = accumulate(parts, 4)
    merged = CovarianceAccumulator(4)
    for worker in range(3):
        own = [rows for rows, w in zip(parts, assignment, strict=True) if w == worker]
        other = accumulate(own, 4)
        merged.merge(other)
        other.update(np.ones((2, 4)))  # the merged-in accumulator stays its own
    for rule in ("none", "ledoit_wolf"):
        left, right = together.estimate(rule), merged.estimate(rule)
        np.testing.assert_allclose(left.Sigma_r, right.Sigma_r, rtol=1e-7, atol=1e-9)
        assert left.intensity == pytest.approx(right.intensity, rel=1e-6, abs=1e-9)
    assert merged.n_queries == together.n_queries


def test_never_holds_all_hidden_states(monkeypatch):
    monkeypatch.setattr(covariance, "_BLOCK_ROWS", 50)
    accumulator = CovarianceAccumulator(3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        accumulator.update(rng.standard_normal((7, 3)))
        assert sum(len(rows) for rows in accumulator._pending) < 50
    assert accumulator.n_samples == 700


def test_ledoit_wolf_equals_scikit_learn_when_every_query_has_one_sample():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((60, 20)) @ np.diag(np.linspace(1, 4, 20)) + 7
    shape = accumulate(rows[:, None, :], 20).estimate("ledoit_wolf")
    assert shape.intensity == pytest.approx(ledoit_wolf_shrinkage(rows), rel=1e-9)
    assert 0 < shape.intensity < 1


def test_counting_queries_gives_the_intensity_of_the_distinct_rows():
    # repeating every row nine times adds no information; counting samples would think it does
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((40, 15)) * np.linspace(1, 3, 15)
    accumulator = accumulate([np.tile(row, (9, 1)) for row in rows], 15)
    truth = ledoit_wolf_shrinkage(rows)
    assert accumulator.estimate("ledoit_wolf").intensity == pytest.approx(truth, rel=1e-9)
    counted = accumulator.estimate("ledoit_wolf", counted_in="samples").intensity
    assert counted == pytest.approx(truth / 9, rel=1e-9)


def test_oas_is_the_fixed_point_of_its_own_iteration():
    # Chen et al. 2010, eqs 21-22: iterate the oracle with the current estimate plugged in
    rng = np.random.default_rng(5)
    n, p = 30, 12
    rows = rng.standard_normal((n, p)) * np.linspace(1, 2, p)
    S = rows.T @ rows / n
    F, rho = np.trace(S) / p * np.eye(p), 0.5
    for _ in range(2000):
        Sigma = (1 - rho) * S + rho * F
        cross, square = np.trace(Sigma @ S), np.trace(Sigma) ** 2
        rho = ((1 - 2 / p) * cross + square) / ((n + 1 - 2 / p) * cross + (1 - n / p) * square)
    assert oas_intensity(S, n) == pytest.approx(rho, rel=1e-9)


def test_shrinkage_pulls_towards_the_identity_and_keeps_the_trace():
    rng = np.random.default_rng(6)
    accumulator = accumulate([rng.standard_normal((5, 8)) for _ in range(4)], 8)
    plain = accumulator.estimate("none").Sigma_r
    np.testing.assert_allclose(accumulator.estimate(1.0).Sigma_r, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(
        accumulator.estimate(0.25).Sigma_r, 0.75 * plain + 0.25 * np.eye(8), atol=1e-12
    )


def test_bad_input_is_named():
    accumulator = CovarianceAccumulator(3)
    with pytest.raises(InputError, match="at least 2 samples"):
        accumulator.estimate()
    with pytest.raises(InputError, match="has 4 features; this run has 3"):
        accumulator.update(np.zeros((2, 4)))
    with pytest.raises(InputError, match="cannot merge"):
        accumulator.merge(CovarianceAccumulator(4))
    accumulator.update(np.full((5, 3), 2.5))
    with pytest.raises(InputError, match="all response embeddings are equal"):
        accumulator.estimate()
    accumulator.update(np.eye(3))
    with pytest.raises(InputError, match="shrinkage"):
        accumulator.estimate("lw")
    with pytest.raises(InputError, match="from 0 to 1"):
        accumulator.estimate(1.5)
