"""The practical likelihood: recovered constants, brute-force conditioning, calibrated P(wrong)."""

import logging

import numpy as np
import pytest
from scipy import stats

from fusevlm.errors import InputError, NotFittedError
from fusevlm.fuse.vector import fit_vector, label_free_weights
from fusevlm.maths.fusion import posterior, reduce_evidence

# (u, s, e1, e2): correlations of a world where s and the evidence share a cause
TRUTH = np.array(
    [[1.0, 0.3, 0.6, 0.5], [0.3, 1.0, 0.35, 0.1], [0.6, 0.35, 1.0, 0.4], [0.5, 0.1, 0.4, 1.0]]
)
RATE = 0.3


def draw(size, seed=0, truth=TRUTH):
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(len(truth)), truth, size)
    wrong = x[:, 0] > stats.norm.ppf(1 - RATE)
    return x[:, 2:] * [2.0, 0.1] + [5.0, -3.0], x[:, 1] * 7 + 1, wrong


def fuse(model, e, s):
    reduced = reduce_evidence(model.residual(e, s), model.c, model.T)
    m0, sigma0 = model.prior(s, len(e))
    return posterior(m0, sigma0, reduced.u_hat, 0.0, 1.0, reduced.tau2)


def test_joint_sources_equal_conditioning_the_true_gaussian():
    e, s, wrong = draw(200_000)
    model = fit_vector(("a", "b"), e, s, wrong, sources="joint")
    found = fuse(model, e[:50], s[:50])
    standard = np.column_stack([(s - 1) / 7, (e[:, 0] - 5) / 2, (e[:, 1] + 3) / 0.1])[:50]
    gain = TRUTH[0, 1:] @ np.linalg.inv(TRUTH[1:, 1:] + 0.02 * np.eye(3))  # the guard
    np.testing.assert_allclose(found.m, standard @ gain, atol=0.02)
    assert found.sigma[0] ** 2 == pytest.approx(1 - gain @ TRUTH[1:, 0], abs=0.02)


def test_independent_sources_are_the_literal_formula():
    """METHOD.md §3, with the guards off the table (large N, small correlations)."""
    e, s, wrong = draw(4000, seed=1)
    model = fit_vector(("a", "b"), e, s, wrong, sources="independent")
    z = (e - e.mean(axis=0)) / e.std(axis=0)
    y = wrong.astype(float)
    t = stats.norm.isf((y.sum() + 0.5) / (len(y) + 1))
    c = np.array([np.cov(z[:, k], y, ddof=0)[0, 1] for k in (0, 1)]) / stats.norm.pdf(t)
    rho = np.cov((s - s.mean()) / s.std(), y, ddof=0)[0, 1] / stats.norm.pdf(t)
    assert model.t == pytest.approx(t)
    np.testing.assert_allclose(model.c, c)
    np.testing.assert_allclose(model.b, 0.0)
    np.testing.assert_allclose(model.T, np.cov(z.T, ddof=0) + 0.02 * np.eye(2) - np.outer(c, c))
    m0, sigma0 = model.prior(s, len(s))
    np.testing.assert_allclose(m0, rho * (s - s.mean()) / s.std() / 1.02)
    assert sigma0[0] ** 2 == pytest.approx(1 - rho**2 / 1.02)


def test_the_two_forms_agree_when_the_sources_are_conditionally_independent():
    truth = TRUTH.copy()
    truth[1, 2:] = truth[2:, 1] = truth[0, 1] * truth[0, 2:]
    e, s, wrong = draw(200_000, seed=2, truth=truth)
    joint, apart = (
        fuse(fit_vector(("a", "b"), e, s, wrong, sources=k), e[:100], s[:100]).m
        for k in ("joint", "independent")
    )
    np.testing.assert_allclose(joint, apart, atol=0.03)


@pytest.mark.parametrize("with_s", [True, False])
def test_probabilities_are_calibrated(with_s):
    e, s, wrong = draw(400, seed=3)
    model = fit_vector(("a", "b"), e, s, wrong)
    e, s, wrong = draw(60_000, seed=4)
    used = model if with_s else model.without_s()
    found = fuse(used, e, s if with_s else None)
    p = used.p_wrong(found.m, found.sigma)
    for low in np.arange(0, 1, 0.2):
        inside = (p >= low) & (p < low + 0.2)
        assert p[inside].mean() == pytest.approx(wrong[inside].mean(), abs=0.06)


def test_integrating_s_out_equals_fitting_without_it():
    e, s, wrong = draw(100_000, seed=5)
    marginal = fit_vector(("a", "b"), e, s, wrong).without_s()
    direct = fit_vector(("a", "b"), e, None, wrong)
    np.testing.assert_allclose(marginal.c, direct.c, atol=1e-9)
    np.testing.assert_allclose(marginal.T, direct.T, atol=1e-9)


def test_claims_are_capped():
    """Evidence that separates perfectly may not claim more than 90 % of u."""
    rng = np.random.default_rng(6)
    u = rng.standard_normal(500)
    e = np.column_stack([u, u + 0.01 * rng.standard_normal(500)])
    model = fit_vector(("a", "b"), e, u, u > 0.5)
    assert np.all(np.linalg.eigvalsh(model.T) > 0)
    found = fuse(model, e, u)
    assert np.all(found.sigma**2 >= 0.09)


def test_label_free_weights_have_the_stated_ratio():
    c, T, rho = label_free_weights(0.3)
    one = posterior(0.0, np.sqrt(1 - rho**2), 1.0, 0.0, c[0], T[0, 0]).m  # ẽ = 1, s̃ = 0
    other = posterior(rho, np.sqrt(1 - rho**2), 0.0, 0.0, c[0], T[0, 0]).m  # ẽ = 0, s̃ = 1
    assert other / one == pytest.approx(0.3)


def test_without_labels_only_the_leading_evidence_is_used_and_probability_is_refused():
    e, s, _ = draw(300, seed=7)
    model = fit_vector(("a", "b"), e, s, None)
    assert (model.names, model.labelled, model.t) == (("a",), False, None)
    found = fuse(model, e[:, :1], s)
    mixed = (e[:, 0] - e[:, 0].mean()) / e[:, 0].std() + 0.3 * (s - s.mean()) / s.std()
    np.testing.assert_allclose(np.corrcoef(found.m, mixed)[0, 1], 1.0)
    with pytest.raises(NotFittedError, match="base_rate"):
        model.p_wrong(found.m, found.sigma)
    told = fit_vector(("a", "b"), e, s, None, base_rate=0.2)
    p = told.p_wrong(found.m, found.sigma)
    assert p.mean() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("n_wrong", [0, 3])
def test_too_few_labels_fall_back_and_say_so(caplog, n_wrong):
    e, s, _ = draw(50, seed=8)
    wrong = np.arange(50) < n_wrong
    with caplog.at_level(logging.WARNING):
        model = fit_vector(("a", "b"), e, s, wrong)
    assert "too few to set the weights" in caplog.text
    assert not model.labelled
    p = model.p_wrong(*[getattr(fuse(model, e[:, :1], s), k) for k in ("m", "sigma")])
    assert np.all((p > 0) & (p < 1))


def test_constant_evidence_carries_no_weight(caplog):
    e, s, wrong = draw(400, seed=9)
    e[:, 1] = 2.5
    with caplog.at_level(logging.WARNING):
        model = fit_vector(("a", "b"), e, s, wrong)
    assert "b is the same for all" in caplog.text
    assert model.c[1] == 0.0
    assert np.all(np.isfinite(fuse(model, e, s).m))


def test_two_queries_are_too_few():
    with pytest.raises(InputError, match="at least 3 queries"):
        fit_vector(("a",), np.ones((2, 1)), None, None)
