"""Predictive moments and x*, against exact GPs, autograd, scipy and many starts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapter_worlds import make_decoder, make_pairs
from scipy import optimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from fusevlm.priors.gp import bound, infer
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.priors.gp.posterior import collapsed_posterior, free_posterior, moments

N, Q, D = 40, 2, 3


def world(M=None):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(N, Q, generator=g, dtype=torch.float64)
    Y = torch.randn(N, D, generator=g, dtype=torch.float64)
    decoder = make_decoder(M or N, Q, D)
    return X, Y, (decoder if M else replace(decoder, inducing=X))


def collapsed(X, Y, decoder, **options):
    L = bound.inducing_cholesky(decoder, **options)
    stats = bound.statistics(X, Y, decoder, L)
    return collapsed_posterior(decoder, stats, work=torch.float64, **options)


def test_moments_are_exact_gp_regression_when_inducing_points_are_the_data():
    X, Y, decoder = world()
    at = torch.randn(7, Q, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    mean, variance = moments(collapsed(X, Y, decoder, jitter=1e-8), at)
    for k in range(D):
        kernel = ConstantKernel(float(decoder.log_amplitude2.exp()), "fixed") * RBF(
            float(decoder.log_lengthscale.exp()), "fixed"
        )
        noise = float(decoder.log_noise[k].exp())
        gp = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None)
        gp.fit(X.numpy(), Y[:, k].numpy() - float(decoder.mean[k]))
        m, std = gp.predict(at.numpy(), return_std=True)
        np.testing.assert_allclose(mean[:, k], m + float(decoder.mean[k]), atol=1e-5)
        np.testing.assert_allclose(variance[:, k], std**2 + noise, rtol=1e-5)


def free():
    g = torch.Generator().manual_seed(4)
    decoder = make_decoder(6, Q, D)
    T = torch.tril(torch.randn(D, 6, 6, generator=g, dtype=torch.float64) * 0.4)
    return free_posterior(decoder, torch.randn(6, D, generator=g, dtype=torch.float64), T)


@pytest.mark.parametrize("kind", ["collapsed", "free"])
def test_gradient_of_the_query_objective_against_finite_differences(kind):
    posterior = collapsed(*world(10)) if kind == "collapsed" else free()
    g = torch.Generator().manual_seed(6)
    z, x = (
        torch.randn(2, 5, D, generator=g, dtype=torch.float64)[0],
        torch.randn(5, Q, generator=g, dtype=torch.float64),
    )
    views = [infer.view(posterior, z)]
    value, gradient = infer.log_joint_gradient(views, x)
    torch.testing.assert_close(value, infer.log_joint(views, x), rtol=1e-12, atol=1e-12)
    for q in range(Q):
        step = torch.zeros(Q, dtype=torch.float64)
        step[q] = 1e-6
        slope = (infer.log_joint(views, x + step) - infer.log_joint(views, x - step)) / 2e-6
        torch.testing.assert_close(gradient[:, q], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("given", ["image", "text", "both"])
def test_latents_against_scipy(adapter, given):
    """A climb of ours is at least as high as scipy's L-BFGS from our x* and from zero."""
    image, text = make_pairs(8, seed=21)
    wanted = {"image": (image, None), "text": (None, text), "both": (image, text)}[given]
    found = adapter.latents(*wanted)
    assert found.converged.all()

    def negative(x, i):
        at = adapter.predict(x[None])
        total = 0.5 * x @ x + 0.5 * len(x) * np.log(2 * np.pi)
        for z, name in zip(wanted, ("image", "text"), strict=True):
            if z is not None:
                p = at[name]
                terms = np.log(2 * np.pi * p.variance) + (z[i] - p.mean) ** 2 / p.variance
                total += 0.5 * terms.sum()
        return total

    for i in range(8):
        assert found.log_joint[i] == pytest.approx(-negative(found.x[i], i), abs=1e-3)
        for start in (found.x[i], np.zeros(3)):
            best = optimize.minimize(negative, start, args=(i,), method="Nelder-Mead")
            assert found.log_joint[i] >= -best.fun - 0.01


@pytest.mark.parametrize("given", ["image", "text", "both"])
def test_no_random_start_does_better(given):
    """The manifold is folded, so p(x|z) has several modes: ours is the best of 20 random climbs."""
    options = {"n_latent": 3, "n_inducing": 30, "steps": 40}
    adapter = GpAdapter(**options).fit(*make_pairs(600, width=(96, 96)))
    image, text = make_pairs(60, width=(96, 96), seed=22)
    wanted = {"image": (image, None), "text": (None, text), "both": (image, text)}[given]
    starts = np.random.default_rng(0).standard_normal((60, 20, 3))
    best = adapter.latents(*wanted, starts=starts, n_climbs=20).log_joint
    ours = adapter.latents(*wanted)
    assert ours.converged.all()
    assert np.mean(best - ours.log_joint < 0.5) >= 0.98


def test_bfgs_meets_the_secant_condition():
    g = torch.Generator().manual_seed(1)
    C = torch.eye(3, dtype=torch.float64).repeat(4, 1, 1) * 2.0
    s = torch.randn(4, 3, generator=g, dtype=torch.float64)
    y = s + 0.1 * torch.randn(4, 3, generator=g, dtype=torch.float64)
    y[3] = -s[3]  # negative curvature: refused
    new = infer._bfgs(C, s, y)
    torch.testing.assert_close((new @ s[:, :, None])[:3, :, 0], y[:3])
    torch.testing.assert_close(new[3], C[3])
