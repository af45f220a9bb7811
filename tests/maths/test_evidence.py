"""Ṽ, weights and intercepts against determinants, Monte Carlo and UMPIRE's own formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusevlm
from fusevlm.errors import InputError
from fusevlm.maths.evidence import (
    effective_size,
    gram_evidence,
    intercept,
    log_weights,
    semantic_evidence,
    taylor_log_det,
)
from fusevlm.maths.wishart import wishart_moments


def test_is_the_log_of_a_plain_determinant():
    rng = np.random.default_rng(0)
    R, w = rng.standard_normal((4, 9)), rng.uniform(0.5, 3, 4)
    W = np.diag(np.sqrt(w))
    found = fusevlm.semantic_evidence(R, w, jitter=0.0)
    assert float(found) == pytest.approx(np.log(np.linalg.det(W @ R @ R.T @ W)), rel=1e-10)
    assert (found.slope, found.n, found.d, found.jitter) == (4, 4, 9, 0.0)


def test_jitter_is_relative_reported_and_added_before_the_weights():
    rng = np.random.default_rng(1)
    R, w = 50 * rng.standard_normal((3, 7)), np.array([1.0, 10.0, 100.0])
    found = semantic_evidence(R, w, jitter=1e-2)
    amount = 1e-2 * np.mean(np.sum(R**2, axis=1))
    W = np.diag(np.sqrt(w))
    before = W @ (R @ R.T + amount * np.eye(3)) @ W
    assert found.jitter == pytest.approx(amount)
    assert found.value == pytest.approx(np.linalg.slogdet(before)[1], rel=1e-12)
    after = W @ R @ R.T @ W + amount * np.eye(3)
    assert abs(found.value - np.linalg.slogdet(after)[1]) > 1e-3  # the order is visible here


def test_repeats_are_finite_and_still_follow_the_weights():
    R = np.tile(np.random.default_rng(2).standard_normal(20), (5, 1))
    light, heavy = (semantic_evidence(R, np.full(5, w)).value for w in (1.0, np.e))
    assert np.isfinite(light)
    assert heavy - light == pytest.approx(5.0, abs=1e-9)  # Σ log w, untouched by the jitter
    with pytest.raises(InputError, match="jitter above 0"):
        semantic_evidence(R, jitter=0.0)


def test_scaling_responses_by_e_to_the_half_u_adds_n_times_u():
    R, u = np.random.default_rng(3).standard_normal((6, 30)), 1.7
    gap = semantic_evidence(np.exp(u / 2) * R).value - semantic_evidence(R).value
    assert gap == pytest.approx(6 * u, rel=1e-10)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_order_of_samples_does_not_matter(n, seed):
    rng = np.random.default_rng(seed)
    R, w = rng.standard_normal((n, 12)), rng.uniform(0.1, 5, n)
    order = rng.permutation(n)
    assert semantic_evidence(R[order], w[order]).value == pytest.approx(
        semantic_evidence(R, w).value, rel=1e-10, abs=1e-10
    )


def test_more_samples_than_features_uses_the_feature_scatter():
    rng = np.random.default_rng(4)
    R, w = rng.standard_normal((11, 3)), rng.uniform(0.5, 2, 11)
    found = semantic_evidence(R, w, jitter=1e-3)
    amount = 1e-3 * np.trace(R.T @ R) / 3
    expected = np.linalg.slogdet(R.T @ np.diag(w) @ R + amount * np.eye(3))[1]
    assert found.value == pytest.approx(expected, rel=1e-10)
    assert found.slope == 3
    with pytest.raises(InputError, match="singular"):
        semantic_evidence(np.tile(R[:1], (11, 1)), jitter=0.0)


def test_umpire_identity():
    """(Ṽ − a0)/n = 2·UMPIRE − a0/n, with UMPIRE typed from its own paper."""
    rng = np.random.default_rng(5)
    n, d, alpha = 8, 40, 0.7
    E = rng.standard_normal((n, d))
    E[3] = E[2]  # a repeat
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    p = rng.uniform(0.05, 1.0, n)
    volume = np.linalg.slogdet(E @ E.T + 1e-8 * np.eye(n))[1] / (2 * n)
    umpire = volume + alpha * np.mean(1 - p)
    a0, _ = wishart_moments(d, n)
    V = gram_evidence(E @ E.T, d, log_weights(p, alpha), jitter=1e-8).value
    assert (V - a0) / n == pytest.approx(2 * umpire - a0 / n, rel=1e-7)


def test_weights_grow_with_incoherence():
    w = np.exp(log_weights(np.array([1.0, 0.5, 0.0]), alpha=2.0))
    np.testing.assert_allclose(w, [1.0, np.e**2, np.e**4])


def test_effective_size_counts_equal_weights_and_survives_huge_ones():
    assert effective_size(np.zeros(7)) == pytest.approx(7)
    w = np.array([1.0, 2.0, 5.0])
    assert effective_size(np.log(w)) == pytest.approx(w.sum() ** 2 / np.sum(w**2))
    assert effective_size(np.array([5000.0, 0.0, 0.0])) == pytest.approx(1.0)


def test_taylor_form_follows_the_papers_expansion():
    """n·ln w̄ − ½Σδ² with δ = w/w̄ − 1, the step before the paper introduces ν_eff."""
    w = np.array([0.98, 1.0, 1.01, 1.03, 0.99])
    delta = w / w.mean() - 1
    approx, remainder = taylor_log_det(np.log(w))
    assert approx == pytest.approx(5 * np.log(w.mean()) - 0.5 * np.sum(delta**2), rel=1e-12)
    assert remainder == pytest.approx(np.sum(delta**3) / 3, rel=0.1)  # next term of log(1+δ)
    assert approx + remainder == pytest.approx(np.log(np.prod(w)), rel=1e-12)


def test_exact_intercept_is_the_unweighted_score():
    rng = np.random.default_rng(6)
    R, log_w = rng.standard_normal((5, 20)), rng.uniform(0, 4, 5)
    weighted = semantic_evidence(R, np.exp(log_w)).value - intercept("exact", 5, 20, log_w)
    plain = semantic_evidence(R).value - intercept("a0", 5, 20, np.zeros(5))
    assert weighted == pytest.approx(plain, rel=1e-12)


def test_taylor_intercept_leaves_only_the_remainder_of_the_weights():
    """Ṽ − a_w = logdet RRᵀ − a0 + R_w: the weights cancel, which is the paper's trap."""
    rng = np.random.default_rng(7)
    R, log_w = rng.standard_normal((5, 20)), rng.uniform(0, 2, 5)
    V = semantic_evidence(R, np.exp(log_w)).value
    plain = np.linalg.slogdet(R @ R.T + 1e-8 * np.trace(R @ R.T) / 5 * np.eye(5))[1]
    a0, _ = wishart_moments(20, 5)
    left = V - intercept("taylor", 5, 20, log_w)
    assert left == pytest.approx(plain - a0 + taylor_log_det(log_w)[1], rel=1e-10)


def test_likelihood_is_unbiased_under_the_model():
    """E[(Ṽ − a)/n] = u and Var[Ṽ] = v for weighted Gaussian responses (Thm 4.8, exact form)."""
    rng = np.random.default_rng(8)
    n, d, u = 6, 50, 0.8
    log_w = rng.uniform(0, 1.5, n)
    draws = np.array(
        [
            semantic_evidence(np.exp(u / 2) * rng.standard_normal((n, d)), np.exp(log_w)).value
            for _ in range(6000)
        ]
    )
    v = wishart_moments(d, n)[1]
    u_hat = (draws - intercept("exact", n, d, log_w)) / n
    assert u_hat.mean() == pytest.approx(u, abs=4 * np.sqrt(v / 6000) / n)
    assert draws.var() == pytest.approx(v, rel=0.08)


@pytest.mark.parametrize(
    ("embeddings", "options", "message"),
    [
        (np.ones((1, 5)), {}, "at least 2 sampled responses; got 1"),
        (np.zeros((0, 5)), {}, r"shape \(0, 5\)"),
        (np.zeros((3, 5)), {}, "zero after centring"),
        ([[1.0, np.nan], [0.0, 1.0]], {}, r"NaN or infinite.*\(0, 1\)"),
        (np.eye(3), {"weights": [1.0, 2.0]}, "2 value"),
        (np.eye(3), {"weights": [1.0, 2.0, 0.0]}, "above 0"),
        (np.eye(3), {"jitter": -1.0}, "jitter"),
        ("text", {}, "not numeric"),
    ],
)
def test_bad_input(embeddings, options, message):
    with pytest.raises(InputError, match=message):
        semantic_evidence(embeddings, **options)


def test_unknown_intercept_and_taylor_beyond_d_are_refused():
    with pytest.raises(InputError, match="'a0', 'taylor', 'exact'"):
        intercept("tailor", 2, 5, np.zeros(2))
    with pytest.raises(InputError, match="n ≤ d"):
        intercept("taylor", 6, 5, np.zeros(6))
