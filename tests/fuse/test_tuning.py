"""z, temperature, logistic u* and global tuning."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from fusevlm.errors import InputError
from fusevlm.fuse.prior import Prior, fit_prior
from fusevlm.fuse.tuning import (
    choose_temperature,
    choose_z,
    fit_logistic_score,
    global_tuning,
)
from fusevlm.maths.fusion import posterior, score


@pytest.fixture(scope="module")
def world():
    """Evidence that is less sure than it claims, and a prior that knows something else."""
    rng = np.random.default_rng(0)
    size = 1500
    s, hidden = rng.standard_normal((2, size))
    u_hat = 0.5 * hidden + 0.2 * s
    wrong = 0.8 * s + 0.8 * hidden + rng.standard_normal(size) > 0.7
    n = np.full(size, 20.0)
    V = 3.0 + n * u_hat
    return s, V, np.full(size, 3.0), n, np.full(size, 0.5), wrong


def test_z_cannot_matter_when_sigma_is_constant(world):
    s, V, a, n, tau2, wrong = world
    fused = posterior(fit_prior(s, V, a, n, tau2).mean(s, len(s)), 0.5, V, a, n, tau2)
    aurocs = {roc_auc_score(wrong, score(fused.m, fused.sigma, z)) for z in (0.0, 1.0, 2.0, 50.0)}
    assert len(aurocs) == 1
    assert choose_z(fused.m, fused.sigma, wrong) == 2.0


def test_z_is_found_where_sigma_tells_something():
    rng = np.random.default_rng(1)
    m, sigma = rng.standard_normal(3000), rng.uniform(0.5, 1.5, 3000)
    wrong = m + 3.0 * sigma + 0.3 * rng.standard_normal(3000) > 3.0
    assert choose_z(m, sigma, wrong) == 3.0


def test_tempering_wakes_the_prior(world):
    s, V, a, n, tau2, wrong = world
    prior = fit_prior(s, V, a, n, tau2)
    T = choose_temperature(prior, s, V, a, n, tau2, wrong)
    m0 = prior.mean(s, len(s))
    plain = posterior(m0, prior.sigma0, V, a, n, tau2)
    warm = posterior(m0, prior.sigma0, V, a, n, tau2 * T)
    assert T > 10
    assert np.median(plain.prior_weight) < 0.01 < np.median(warm.prior_weight)
    assert roc_auc_score(wrong, warm.m) > roc_auc_score(wrong, plain.m) + 0.02


def test_logistic_score_against_scikit_learn():
    rng = np.random.default_rng(2)
    m, sigma = rng.standard_normal(500), rng.uniform(0.5, 2, 500)
    wrong = m + np.log(sigma) + rng.logistic(size=500) > 0.5
    found = fit_logistic_score(m, sigma, wrong)
    X = np.column_stack([m, np.log(sigma)])
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(X, wrong)
    np.testing.assert_allclose(found(m, sigma), reference.predict_proba(X)[:, 1], atol=1e-4)


def test_logistic_score_of_constant_sigma_ranks_like_the_mean():
    rng = np.random.default_rng(3)
    m, sigma = rng.standard_normal(400), np.full(400, 0.3)
    wrong = m + rng.logistic(size=400) > 0
    found = fit_logistic_score(m, sigma, wrong)
    assert found.gamma[2] == 0.0
    assert roc_auc_score(wrong, found(m, sigma)) == roc_auc_score(wrong, m)


def test_global_tuning_reaches_the_best_linear_score(world):
    """At equal n any m_post is a line in (s, û): tuning must reach free logistic regression."""
    s, V, a, n, tau2, wrong = world
    prior = fit_prior(s, V, a, n, tau2)
    found = global_tuning(prior, s, V, a, n, tau2, wrong)
    X = np.column_stack([s, (V - a) / n])
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(X, wrong)
    best = log_loss(wrong, reference.predict_proba(X)[:, 1])
    assert found.nll == pytest.approx(best, abs=1e-4)
    # and the tuned constants reproduce it through the ordinary posterior
    m0 = found.prior.mean(s, len(s))
    fused = posterior(m0, found.prior.sigma0, V, a, n, tau2 * found.temperature)
    assert log_loss(wrong, found.link(fused.m)) == pytest.approx(found.nll, abs=1e-6)
    assert isinstance(found.prior, Prior)


def tuned_on(world):
    s, V, a, n, tau2, wrong = world
    found = global_tuning(fit_prior(s, V, a, n, tau2), s, V, a, n, tau2, wrong)
    m0 = found.prior.mean(s, len(s))
    return found, posterior(m0, found.prior.sigma0, V, a, n, tau2 * found.temperature).m


@pytest.mark.parametrize("seed", range(4))
def test_global_tuning_keeps_the_prior_where_evidence_points_the_wrong_way(seed):
    """Descent in all four numbers at once fell to link slope 0 here: one score for all queries."""
    rng = np.random.default_rng(seed)
    s, hidden = rng.standard_normal((2, 500))
    wrong = 0.5 * s - hidden + rng.standard_normal(500) > 0.7
    n, u_hat = np.full(500, 20.0), 0.1 * hidden - 10.0
    found, m = tuned_on((s, 3.0 + n * u_hat, np.full(500, 3.0), n, np.full(500, 0.5), wrong))
    assert len(np.unique(m)) == 500
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(s[:, None], wrong)
    best = log_loss(wrong, reference.predict_proba(s[:, None])[:, 1])
    assert found.nll == pytest.approx(best, abs=1e-4)  # the constrained optimum: the prior alone
    assert roc_auc_score(wrong, m) == pytest.approx(roc_auc_score(wrong, s), abs=1e-9)


def test_global_tuning_of_mixed_noise_is_no_worse_than_any_temperature():
    """Where noise differs between queries T matters: no T of a fine grid does better."""
    rng = np.random.default_rng(5)
    s, hidden = rng.standard_normal((2, 800))
    tau2 = np.where(np.arange(800) % 2, 0.5, 200.0)
    n = np.full(800, 20.0)
    u_hat = hidden + np.sqrt(tau2) / n * rng.standard_normal(800)
    wrong = 0.4 * s + 1.5 * hidden + rng.standard_normal(800) > 0.5
    world = (s, 3.0 + n * u_hat, np.full(800, 3.0), n, tau2, wrong)
    found, _ = tuned_on(world)
    sigma0 = found.prior.sigma0
    for log_t in np.linspace(-8, 14, 45):
        w = 1 / (1 + sigma0**2 * n**2 / (tau2 * np.exp(log_t)))
        X = np.column_stack([w * s, (1 - w) * (u_hat - u_hat.mean())])
        X = X / X.std(axis=0)
        free = LogisticRegression(C=np.inf, tol=1e-10).fit(X, wrong)
        assert found.nll <= log_loss(wrong, free.predict_proba(X)[:, 1]) + 1e-5


def test_global_tuning_of_nothing_is_refused():
    rng = np.random.default_rng(6)
    hidden = rng.standard_normal(200)
    n = np.full(200, 20.0)
    with pytest.raises(InputError, match="finds nothing to rank by"):
        tuned_on((np.ones(200), 3.0 + n * hidden, np.full(200, 3.0), n, np.full(200, 0.5),
                  hidden < 0.2))  # fmt: skip
