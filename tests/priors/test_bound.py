"""The collapsed bound against dense algebra, GPyTorch and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapter_worlds import gpytorch, make_decoder
from scipy import stats

from fusevlm.priors.gp import bound as b

N, M, Q, D = 70, 12, 3, 5


def world(*, ard=False, seed=0):
    g = torch.Generator().manual_seed(seed + 1)
    X = torch.randn(N, Q, generator=g, dtype=torch.float64)
    Y = torch.randn(N, D, generator=g, dtype=torch.float64)
    return X, Y, make_decoder(M, Q, D, ard=ard, seed=seed)


def dense_bound(X, Y, decoder, jitter):
    """Titsias' bound from N×N matrices and scipy's Gaussian, output by output."""
    X, Z = X.numpy(), decoder.inducing.numpy()
    ell, a2 = np.exp(decoder.log_lengthscale.numpy()), float(decoder.log_amplitude2.exp())

    def k(A, B):
        return a2 * np.exp(-0.5 * (((A[:, None] - B[None]) / ell) ** 2).sum(-1))

    Qff = k(X, Z) @ np.linalg.solve(k(Z, Z) + jitter * a2 * np.eye(M), k(Z, X))
    total = 0.0
    for j in range(D):
        s2 = float(decoder.log_noise[j].exp())
        mean = np.full(N, float(decoder.mean[j]))
        total += stats.multivariate_normal(mean, Qff + s2 * np.eye(N)).logpdf(Y[:, j].numpy())
        total -= (N * a2 - np.trace(Qff)) / (2 * s2)
    return total


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("chunk", [13, 4096])
def test_equals_the_dense_reference(ard, chunk):
    X, Y, decoder = world(ard=ard)
    found = b.bound_and_gradient(X, b.rows(Y), decoder, chunk=chunk)
    assert float(found.value) == pytest.approx(dense_bound(X, Y, decoder, b.JITTER), rel=1e-9)


def test_float32_data_cost_less_than_1e_5():
    X, Y, decoder = world()
    found = b.bound_and_gradient(X, b.rows(Y.float()), decoder)
    exact = b.bound_and_gradient(X, b.rows(Y.float().double()), decoder)
    assert float(found.value) == pytest.approx(float(exact.value), rel=1e-5)
    assert torch.linalg.norm(found.d_X - exact.d_X) < 1e-4 * torch.linalg.norm(exact.d_X)


def test_equals_gpytorch_sgpr():
    X, Y, decoder = world()

    class Sgpr(gpytorch.models.ExactGP):
        def __init__(self, y, likelihood, mean):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean().double()
            self.mean_module.constant.data.fill_(mean)
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
            base.base_kernel.lengthscale = decoder.log_lengthscale.exp()
            base.outputscale = decoder.log_amplitude2.exp()
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                base, decoder.inducing.clone(), likelihood
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    total = 0.0
    with gpytorch.settings.fast_computations(False, False, False):
        for j in range(D):
            likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
            likelihood.noise = decoder.log_noise[j].exp()
            model = Sgpr(Y[:, j], likelihood, float(decoder.mean[j]))
            mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
            total += mll(model(X), Y[:, j]).item() * N  # with the trace term as added loss
    ours = b.bound_and_gradient(X, b.rows(Y), decoder, jitter=0.0)
    assert float(ours.value) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("ard", [False, True])
def test_gradient_against_finite_differences(ard):
    X, Y, decoder = world(ard=ard)
    data, h = b.rows(Y), 1e-5
    found = b.bound_and_gradient(X, data, decoder, chunk=16)

    def numeric(value, at):
        flat = value.reshape(-1)
        out = torch.empty_like(flat)
        for i in range(flat.numel()):
            ends = []
            for sign in (h, -h):
                moved = flat.clone()
                moved[i] += sign
                ends.append(at(moved.reshape(value.shape)))
            out[i] = (ends[0] - ends[1]) / (2 * h)
        return out.reshape(value.shape)

    def check(ours, reference):
        assert torch.linalg.norm(ours - reference) < 1e-6 * torch.linalg.norm(reference)

    def value(X, decoder):
        return b.bound_and_gradient(X, data, decoder).value

    check(found.d_X, numeric(X, lambda moved: value(moved, decoder)))
    for name, start in decoder.named().items():
        reference = numeric(start, lambda m, name=name: value(X, replace(decoder, **{name: m})))
        check(found.d_decoder.named()[name], reference)


def test_inducing_points_at_the_data_make_the_bound_exact():
    X, Y, decoder = world()
    decoder = replace(decoder, inducing=X)
    K = b.rbf(X, X, decoder.log_lengthscale, decoder.log_amplitude2).numpy()
    exact = sum(
        stats.multivariate_normal(
            np.full(N, float(decoder.mean[j])), K + float(decoder.log_noise[j].exp()) * np.eye(N)
        ).logpdf(Y[:, j].numpy())
        for j in range(D)
    )
    ours = float(b.bound_and_gradient(X, b.rows(Y), decoder, jitter=1e-8).value)
    assert ours == pytest.approx(exact, rel=1e-5)
    assert ours <= exact + 1e-6


def test_repeated_inducing_points_are_a_named_error():
    _, _, decoder = world()
    same = replace(decoder, inducing=decoder.inducing[:1].repeat(M, 1))
    with pytest.raises(b.DivergedError, match=r"12 inducing points is singular.*jitter"):
        b.inducing_cholesky(same, jitter=0.0)
    b.inducing_cholesky(same)  # the default jitter carries it
