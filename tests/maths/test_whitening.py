"""Whitened Grams against an explicit inverse of the covariance."""

import numpy as np
import pytest

from fusevlm.errors import InputError
from fusevlm.maths.covariance import CovarianceAccumulator, ResponseShape
from fusevlm.maths.whitening import (
    exact_whitening,
    low_rank_whitening,
    no_whitening,
    pca_whitening,
    uncentred,
)


def shape_of(Sigma, mean=None):
    d = len(Sigma)
    return ResponseShape(np.zeros(d) if mean is None else mean, Sigma, 1.0, 0.0, 10, 10)


def random_covariance(d, seed=0, decay=1.0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.arange(1, d + 1) ** -decay
    Sigma = Q @ np.diag(values) @ Q.T
    return Sigma / (np.trace(Sigma) / d)


def test_exact_gram_is_the_mahalanobis_product():
    rng = np.random.default_rng(0)
    Sigma, mean, R = random_covariance(9), rng.standard_normal(9), rng.standard_normal((5, 9))
    expected = (R - mean) @ np.linalg.inv(Sigma) @ (R - mean).T
    np.testing.assert_allclose(exact_whitening(shape_of(Sigma, mean)).gram(R), expected, rtol=1e-9)


def test_whitened_responses_have_identity_covariance():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((4000, 6)) @ np.linalg.cholesky(random_covariance(6)).T + 3
    accumulator = CovarianceAccumulator(6)
    accumulator.update(rows)
    whitener = exact_whitening(accumulator.estimate("none"))
    # the trace of the whitened Gram of all rows is n·d·scale; its rank is d with equal eigenvalues
    values = np.linalg.eigvalsh(whitener.gram(rows))[-6:]
    np.testing.assert_allclose(values, values.mean(), rtol=1e-8)


def test_low_rank_is_exact_when_the_covariance_is_low_rank_plus_diagonal():
    rng = np.random.default_rng(2)
    d, k = 40, 3
    F = rng.standard_normal((d, k)) * 5
    Sigma = F @ F.T + np.eye(d)
    R = rng.standard_normal((6, d))
    expected = R @ np.linalg.inv(Sigma) @ R.T
    got = low_rank_whitening(shape_of(Sigma), rank=k, n_passes=6).gram(R)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_low_rank_equals_its_own_dense_inverse():
    rng = np.random.default_rng(3)
    Sigma, R = random_covariance(30), rng.standard_normal((5, 30))
    whitener = low_rank_whitening(shape_of(Sigma), rank=8, n_passes=30)
    values, vectors = np.linalg.eigh(Sigma)
    top = values[-8:] - values[:-8].mean()
    low = vectors[:, -8:] @ np.diag(top) @ vectors[:, -8:].T
    dense = low + np.diag(np.diag(Sigma - low))
    np.testing.assert_allclose(whitener.gram(R), R @ np.linalg.inv(dense) @ R.T, rtol=1e-6)


def test_more_rank_comes_closer_to_exact():
    rng = np.random.default_rng(4)
    Sigma = random_covariance(60)
    R = rng.standard_normal((10, 60)) @ np.linalg.cholesky(Sigma).T
    exact = np.linalg.slogdet(exact_whitening(shape_of(Sigma)).gram(R))[1]
    errors = [
        abs(np.linalg.slogdet(low_rank_whitening(shape_of(Sigma), r).gram(R))[1] - exact)
        for r in (1, 10, 30, 55)
    ]
    assert errors == sorted(errors, reverse=True)


def test_pca_keeps_the_leading_directions_and_whitens_them():
    rng = np.random.default_rng(5)
    Sigma, mean, R = random_covariance(12), np.ones(12), rng.standard_normal((4, 12))
    values, vectors = np.linalg.eigh(Sigma)
    white = (R - mean) @ vectors[:, -5:] / np.sqrt(values[-5:])
    whitener = pca_whitening(shape_of(Sigma, mean), rank=5, n_passes=30)
    np.testing.assert_allclose(whitener.gram(R), white @ white.T, rtol=1e-6)
    assert whitener.d == 5


def test_no_whitening_only_centres():
    R, mean = np.arange(6.0).reshape(2, 3), np.array([1.0, 0.0, 2.0])
    C = R - mean
    np.testing.assert_allclose(no_whitening(mean).gram(R), C @ C.T)
    np.testing.assert_allclose(uncentred(no_whitening(mean)).gram(R), R @ R.T)


def test_errors_name_the_way_out():
    Sigma = np.diag([1.0, 1.0, 0.0])
    with pytest.raises(InputError, match=r"singular.*ledoit_wolf"):
        exact_whitening(shape_of(Sigma))
    with pytest.raises(InputError, match="rank < 3"):
        low_rank_whitening(shape_of(np.eye(3)), rank=3)
    with pytest.raises(InputError, match="at most 3"):
        pca_whitening(shape_of(np.eye(3)), rank=4)
    with pytest.raises(InputError, match="fewer than 3 directions"):
        pca_whitening(shape_of(Sigma), rank=3)
    with pytest.raises(InputError, match="nothing is left"):
        low_rank_whitening(shape_of(np.diag([2.0, 1.0, 1e-16])), rank=2)
