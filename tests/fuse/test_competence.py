"""The competence prior against a Gaussian process typed out, and in worlds of known truth."""

import numpy as np
import pytest

from fusevlm.fuse import competence
from fusevlm.fuse.competence import fit_competence, fit_projection


def world(size, seed=0, per_unit=2, strength=2.0):
    """Two kinds of inputs; answers are wrong where the first one's leading direction is large."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((size // per_unit, 6)) * [3, 1, 1, 1, 1, 1]
    x = np.repeat(centres, per_unit, axis=0)
    inputs = {
        "image": x + 0.1 * rng.standard_normal(x.shape),
        "text": rng.standard_normal((size, 4)),
    }
    wrong = rng.random(size) < 1 / (1 + np.exp(1.0 - strength * x[:, 0] / 3))
    return inputs, wrong, [f"u{k}" for k in np.repeat(np.arange(size // per_unit), per_unit)]


def gaussian_process(model, x, r, units, at):
    """Exact GP regression with a random effect of the units, from its definition."""

    def kernel(a, b):
        return model.amplitude * model.noise * (a @ b.T)

    same = np.array(units)[:, None] == np.array(units)[None]
    K = kernel(x, x) + model.noise * (np.eye(len(x)) + model.shared * same)
    gain = kernel(at, x) @ np.linalg.inv(K)
    prior = np.diag(kernel(at, at))
    return gain @ r, prior - np.einsum("nm,nm->n", gain, kernel(at, x))


def placed(model, inputs):
    return np.hstack([p(inputs[name]) for name, p in model.projections.items()])


def scaled(wrong):
    return (wrong - wrong.mean()) / wrong.std()


def test_it_is_the_exact_process():
    inputs, wrong, units = world(200)
    found = fit_competence(inputs, wrong, units)
    new, _, _ = world(60, seed=1)
    at = placed(found.model, new)
    mean, variance = gaussian_process(
        found.model, placed(found.model, inputs), scaled(wrong), units, at
    )
    got_mean, got_variance = found.model.predict(new)
    np.testing.assert_allclose(got_mean, mean, atol=1e-8)
    np.testing.assert_allclose(got_variance, variance, atol=1e-8)


def test_calibration_rows_are_those_of_a_fit_without_their_unit():
    inputs, wrong, units = world(220)
    found = fit_competence(inputs, wrong, units)
    x, r = placed(found.model, inputs), scaled(wrong)
    for unit in ("u0", "u7", "u109"):
        own = np.array(units) == unit
        rest = [u for u in units if u != unit]
        mean, variance = gaussian_process(found.model, x[~own], r[~own], rest, x[own])
        np.testing.assert_allclose(found.mean[own], mean, atol=1e-8)
        np.testing.assert_allclose(found.variance[own], variance, atol=1e-8)


def test_it_ranks_new_queries_and_its_own_rows_alike():
    inputs, wrong, units = world(800)
    found = fit_competence(inputs, wrong, units)
    new, later, _ = world(2000, seed=1)

    def auroc(score, y):
        return np.mean(score[y][:, None] > score[~y][None])

    fresh = auroc(found.model.predict(new)[0], later)
    assert fresh > 0.75
    assert auroc(found.mean, wrong) == pytest.approx(fresh, abs=0.05)


def test_far_from_all_it_has_seen_its_variance_outgrows_its_mean():
    """So its pull on u, mean over variance, goes to nothing there."""
    inputs, wrong, units = world(300)
    model = fit_competence(inputs, wrong, units).model
    pulls = []
    for far in (1.0, 10.0, 100.0):
        middle = {name: rows.mean(axis=0) for name, rows in inputs.items()}
        there = {name: middle[name] + far * (rows - middle[name]) for name, rows in inputs.items()}
        mean, variance = model.predict(there)
        pulls.append(np.abs(mean / variance).mean())
    np.testing.assert_allclose(pulls[1:], np.array([0.1, 0.01]) * pulls[0])


@pytest.mark.parametrize("size", [40, 198])
def test_it_is_silent_with_few_labelled_units(size):
    inputs, wrong, units = world(size)
    assert fit_competence(inputs, wrong, units) is None


def test_it_is_silent_where_the_inputs_say_nothing():
    silent = 0
    for seed in range(20):
        inputs, wrong, units = world(200, seed=seed, strength=0.0)
        silent += fit_competence(inputs, wrong, units) is None
    assert silent >= 18


def test_it_is_silent_with_one_class():
    inputs, wrong, units = world(200)
    assert fit_competence(inputs, np.zeros_like(wrong), units) is None


def test_what_copies_share_is_not_taken_for_competence():
    """Labels that are one coin per unit, copies of it at the same place: nothing to learn."""
    rng = np.random.default_rng(0)
    silent = 0
    for _ in range(10):
        x = np.repeat(rng.standard_normal((110, 5)), 4, axis=0)
        wrong = np.repeat(rng.random(110) < 0.4, 4)
        units = [f"u{k}" for k in np.repeat(np.arange(110), 4)]
        silent += fit_competence({"x": x}, wrong, units) is None
    assert silent >= 9


def test_a_projection_keeps_the_leading_directions_at_variance_one():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 60)) * np.r_[np.full(5, 10.0), np.full(55, 0.1)] + 3.0
    project = fit_projection(rows)
    kept = project(rows)
    assert kept.shape == (400, competence.COMPONENTS)
    np.testing.assert_allclose(np.cov(kept.T, bias=True), np.eye(48), atol=1e-9)
    assert fit_projection(rows[:20]).axes.shape[1] == 5
    assert fit_projection(np.ones((20, 3))).axes.shape[1] == 0


def test_the_evidence_is_that_of_the_gaussian():
    """The chosen hyper-parameters against scipy's density, by brute force over the same grid."""
    from itertools import product

    from scipy.stats import multivariate_normal

    inputs, wrong, units = world(240)
    found = fit_competence(inputs, wrong, units).model
    x, r = placed(found, inputs), scaled(wrong)
    same = np.array(units)[:, None] == np.array(units)[None]
    best = {}
    for a, v in product(competence.AMPLITUDES, competence.SHARED):
        K = a * x @ x.T + np.eye(len(r)) + v * same
        noise = r @ np.linalg.solve(K, r) / len(r)
        best[a, v] = multivariate_normal(cov=noise * K).logpdf(r)
    assert max(best, key=best.get) == (found.amplitude, found.shared)
