"""The practical model: recovered constants, brute-force conditioning, calibrated P(wrong)."""

import logging

import numpy as np
import pytest
from scipy import stats

from fusevlm.errors import InputError, NotFittedError
from fusevlm.fuse.vector import fit_vector

# (u, s1, s2, e1, e2): correlations of a world where statistics and evidence share causes
TRUTH = np.array(
    [
        [1.0, 0.3, 0.2, 0.6, 0.5],
        [0.3, 1.0, 0.4, 0.35, 0.1],
        [0.2, 0.4, 1.0, 0.0, 0.2],
        [0.6, 0.35, 0.0, 1.0, 0.4],
        [0.5, 0.1, 0.2, 0.4, 1.0],
    ]
)
RATE = 0.3
SCALE, SHIFT = np.array([7.0, 0.5, 2.0, 0.1]), np.array([1.0, 9.0, 5.0, -3.0])
NAMES = ("p", "q", "a", "b")


def draw(size, seed=0, truth=TRUTH):
    """Prior statistics and evidence by name, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(len(truth)), truth, size)
    wrong = x[:, 0] > stats.norm.ppf(1 - RATE)
    columns = dict(zip(NAMES, (x[:, 1:] * SCALE + SHIFT).T, strict=True))
    prior, evidence = ({k: columns[k] for k in names} for names in (NAMES[:2], NAMES[2:]))
    return prior, evidence, wrong


def first(columns, n):
    return {name: values[:n] for name, values in columns.items()}


def standard(*columns):
    table = {name: values for part in columns for name, values in part.items()}
    at = [NAMES.index(name) for name in table]
    return (np.column_stack(list(table.values())) - SHIFT[at]) / SCALE[at]


def conditioned(names, x):
    """Mean and variance of u given some columns of the true Gaussian, with the guard."""
    at = [1 + NAMES.index(name) for name in names]
    gain = TRUTH[0, at] @ np.linalg.inv(TRUTH[np.ix_(at, at)] + 0.02 * np.eye(len(at)))
    return x @ gain, 1 - gain @ TRUTH[at, 0]


def test_joint_sources_equal_conditioning_the_true_gaussian():
    prior, evidence, wrong = draw(200_000)
    model = fit_vector(prior, evidence, wrong)
    prior, evidence = first(prior, 50), first(evidence, 50)
    found = model.condition(prior, evidence)
    m, variance = conditioned(NAMES, standard(prior, evidence))
    np.testing.assert_allclose(found.posterior.m, m, atol=0.03)
    assert found.posterior.sigma[0] ** 2 == pytest.approx(variance, abs=0.02)
    m0, variance0 = conditioned(NAMES[:2], standard(prior))
    np.testing.assert_allclose(found.m0, m0, atol=0.03)
    assert found.sigma0[0] ** 2 == pytest.approx(variance0, abs=0.02)


def test_two_steps_are_one_conditioning_of_the_fitted_gaussian():
    """Prior then likelihood, against the whole vector at once: to rounding."""
    prior, evidence, wrong = draw(500, seed=1)
    model = fit_vector(prior, evidence, wrong)
    found = model.condition(prior, evidence)
    x = (np.column_stack([*prior.values(), *evidence.values()]) - model.mean) / model.sd
    gain = np.linalg.solve(model.C, model.k)
    np.testing.assert_allclose(found.posterior.m, x @ gain, atol=1e-9)
    np.testing.assert_allclose(found.posterior.sigma**2, 1 - gain @ model.k, atol=1e-9)
    joint = 1 / found.sigma0**2 + 1 / found.tau2
    np.testing.assert_allclose(1 / found.posterior.sigma**2, joint)
    total = sum(found.shares.values()) + found.posterior.prior_weight
    np.testing.assert_allclose(total, 1.0)


def test_independent_sources_are_the_literal_formula():
    """METHOD.md §3: ẽ | u ~ N(c·u, Cov(ẽ) − c·cᵀ), whatever s is."""
    prior, evidence, wrong = draw(4000, seed=1)
    prior = {"p": prior["p"]}
    found = fit_vector(prior, evidence, wrong, sources="independent").condition(prior, evidence)
    z = np.column_stack([(v - v.mean()) / v.std() for v in evidence.values()])
    s = (prior["p"] - prior["p"].mean()) / prior["p"].std()
    y = wrong.astype(float)
    t = stats.norm.isf((y.sum() + 0.5) / (len(y) + 1))
    c = np.array([np.cov(z[:, k], y, ddof=0)[0, 1] for k in (0, 1)])
    pi = (y.sum() + 0.5) / (len(y) + 1)
    c, rho = c / stats.norm.pdf(t), np.cov(s, y, ddof=0)[0, 1] / stats.norm.pdf(t)
    guard = 0.02 + 3 * pi * (1 - pi) / stats.norm.pdf(t) ** 2 / len(y) / 0.4
    T = np.cov(z.T, ddof=0) + guard * np.eye(2) - np.outer(c, c)
    m0, variance0 = rho * s / (1 + guard), 1 - rho**2 / (1 + guard)
    np.testing.assert_allclose(found.m0, m0)
    np.testing.assert_allclose(found.sigma0**2, variance0)
    precision = 1 / variance0 + c @ np.linalg.solve(T, c)
    m = (m0 / variance0 + z @ np.linalg.solve(T, c)) / precision
    np.testing.assert_allclose(found.posterior.m, m)
    np.testing.assert_allclose(found.posterior.sigma**2, 1 / precision)


def test_the_two_forms_agree_when_the_sources_are_conditionally_independent():
    truth = TRUTH.copy()
    truth[1:3, 3:] = np.outer(truth[0, 1:3], truth[0, 3:])
    truth[3:, 1:3] = truth[1:3, 3:].T
    prior, evidence, wrong = draw(200_000, seed=2, truth=truth)
    joint, apart = (
        fit_vector(prior, evidence, wrong, sources=kind).condition(
            first(prior, 100), first(evidence, 100)
        )
        for kind in ("joint", "independent")
    )
    np.testing.assert_allclose(joint.posterior.m, apart.posterior.m, atol=0.03)


@pytest.mark.parametrize("given", [("p", "q"), ("q",), ()])
def test_probabilities_are_calibrated_with_some_of_the_statistics(given):
    model = fit_vector(*draw(1500, seed=3))
    prior, evidence, wrong = draw(60_000, seed=4)
    found = model.condition({name: prior[name] for name in given}, evidence).posterior
    p = model.p_wrong(found.m, found.sigma)
    for low in np.arange(0, 1, 0.2):
        inside = (p >= low) & (p < low + 0.2)
        assert p[inside].mean() == pytest.approx(wrong[inside].mean(), abs=0.06)


def test_what_was_not_asked_is_integrated_out():
    """NaN at random in one evidence: those rows are as a fit without it, the others as with it."""
    prior, evidence, wrong = draw(200_000, seed=5)
    gaps = np.random.default_rng(0).random(len(wrong)) < 0.6
    asked = {**evidence, "b": np.where(gaps, np.nan, evidence["b"])}
    found = fit_vector(prior, asked, wrong).condition(prior, asked)
    without, _ = conditioned(("p", "q", "a"), standard(prior, {"a": evidence["a"]}))
    whole, _ = conditioned(NAMES, standard(prior, evidence))
    np.testing.assert_allclose(found.posterior.m[gaps], without[gaps], atol=0.05)
    np.testing.assert_allclose(found.posterior.m[~gaps], whole[~gaps], atol=0.05)
    assert np.all(found.shares["b"][gaps] == 0.0)


def test_an_uncertain_statistic_widens_the_prior():
    prior, evidence, wrong = draw(2000, seed=6)
    model = fit_vector(prior, evidence, wrong)
    plain = model.condition(prior, evidence)
    spread = np.linspace(-0.1, 0.5, len(wrong))
    wide = model.condition(prior, evidence, spread)
    np.testing.assert_allclose(wide.sigma0**2, plain.sigma0**2 + spread)
    assert np.all((wide.posterior.prior_weight < plain.posterior.prior_weight) == (spread > 0))
    # by Bayes' rule with the same likelihood
    precision = 1 / wide.sigma0**2 + 1 / plain.tau2
    m = (plain.m0 / wide.sigma0**2 + plain.u_hat / plain.tau2) / precision
    np.testing.assert_allclose(wide.posterior.m, m)
    far = model.condition(prior, evidence, np.full(len(wrong), -9.0))
    np.testing.assert_allclose(far.sigma0**2, plain.sigma0**2 / 2)


def test_the_weight_of_a_statistic_is_the_slope_of_m0():
    prior, evidence, wrong = draw(2000, seed=6)
    model = fit_vector(prior, evidence, wrong)
    more = {**prior, "q": prior["q"] + 1.0}
    slope = model.condition(more, evidence).m0 - model.condition(prior, evidence).m0
    np.testing.assert_allclose(slope, model.weight_of("q"))


def test_few_labels_give_the_statistics_less_weight():
    """Twenty columns of noise: their share of R² shrinks towards 0 as labels grow few."""
    rng = np.random.default_rng(7)
    explained = {}
    for size in (60, 2000):
        noise = {f"n{k}": rng.standard_normal(size) for k in range(20)}
        x = rng.standard_normal(size)
        model = fit_vector(noise, {"x": x}, x + rng.standard_normal(size) > 0.8)
        explained[size] = 1 - model.condition(noise, {"x": x}).sigma0[0] ** 2
    # unshrunk, 20 columns of noise and 60 labels would explain about 20/60 · π(1−π)/φ² ≈ 0.6
    assert explained[60] < 0.45
    assert explained[2000] < 0.05


def test_claims_are_capped():
    """Evidence that separates perfectly may not claim more than 90 % of u."""
    rng = np.random.default_rng(6)
    u = rng.standard_normal(500)
    evidence = {"a": u, "b": u + 0.01 * rng.standard_normal(500)}
    model = fit_vector({"s": u}, evidence, u > 0.5)
    assert np.all(model.condition({"s": u}, evidence).posterior.sigma ** 2 >= 0.09)


def test_label_free_weights_have_the_stated_ratio():
    prior, evidence, _ = draw(300, seed=7)
    model = fit_vector({"p": prior["p"]}, evidence, None, kappa=0.3)

    def m(s, e):
        given = {"p": np.array([model.mean[0] + s * model.sd[0]])}
        return model.condition(
            given, {"a": np.array([model.mean[1] + e * model.sd[1]])}
        ).posterior.m

    assert m(1.0, 0.0) / m(0.0, 1.0) == pytest.approx(0.3)


def test_without_labels_only_the_leading_evidence_is_used_and_probability_is_refused():
    prior, evidence, _ = draw(300, seed=7)
    model = fit_vector(prior, evidence, None)
    assert (model.names, model.labelled, model.t) == (("a",), False, None)
    found = model.condition(prior, evidence).posterior

    def z(values):
        return (values - values.mean()) / values.std()

    s = z(z(prior["p"]) + z(prior["q"]))
    np.testing.assert_allclose(
        np.corrcoef(found.m, z(evidence["a"]) + 0.3 * s)[0, 1], 1.0, atol=1e-3
    )
    with pytest.raises(NotFittedError, match="base_rate"):
        model.p_wrong(found.m, found.sigma)
    told = fit_vector(prior, evidence, None, base_rate=0.2)
    assert told.p_wrong(found.m, found.sigma).mean() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("n_wrong", [0, 3])
def test_too_few_labels_fall_back_and_say_so(caplog, n_wrong):
    prior, evidence, _ = draw(50, seed=8)
    with caplog.at_level(logging.WARNING):
        model = fit_vector(prior, evidence, np.arange(50) < n_wrong)
    assert "too few to set the weights" in caplog.text
    assert not model.labelled
    found = model.condition(prior, evidence).posterior
    p = model.p_wrong(found.m, found.sigma)
    assert np.all((p > 0) & (p < 1))


def test_constant_evidence_carries_no_weight(caplog):
    prior, evidence, wrong = draw(400, seed=9)
    evidence["b"] = np.full(400, 2.5)
    with caplog.at_level(logging.WARNING):
        model = fit_vector(prior, evidence, wrong)
    assert "b is the same for all" in caplog.text
    found = model.condition(prior, evidence)
    assert np.all(found.shares["b"] == 0.0)
    assert np.all(np.isfinite(found.posterior.m))


def test_constant_statistics_without_labels_leave_the_evidence():
    _, evidence, _ = draw(50, seed=8)
    prior = {"s": np.full(50, 3.0)}
    found = fit_vector(prior, evidence, None).condition(prior, evidence)
    np.testing.assert_allclose(found.m0, 0.0)


def test_two_queries_are_too_few():
    with pytest.raises(InputError, match="at least 3 queries"):
        fit_vector({}, {"a": np.ones(2)}, None)
