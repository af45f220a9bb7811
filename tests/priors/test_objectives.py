"""The paper's objective against GPyTorch and Monte Carlo."""

import pytest
import torch
from adapter_worlds import gpytorch, make_decoder

from fusevlm.errors import InputError
from fusevlm.priors.gp import bound, objectives
from fusevlm.priors.gp.posterior import collapsed_posterior

N, M, Q, D = 40, 9, 2, 4


def world():
    g = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    T = torch.tril(0.2 * normal(D, M, M)) + 0.7 * torch.eye(M, dtype=torch.float64)
    return normal(N, Q), normal(N, D), make_decoder(M, Q, D), 0.5 * normal(M, D), T


def test_elbo_equals_gpytorch_variational_elbo():
    X, Y, decoder, m, T = world()
    total = 0.0
    for j in range(D):

        class Svgp(gpytorch.models.ApproximateGP):
            def __init__(self, j):
                q = gpytorch.variational.CholeskyVariationalDistribution(M)
                super().__init__(
                    gpytorch.variational.VariationalStrategy(
                        self, decoder.inducing.clone(), q, jitter_val=0.0
                    )
                )
                q.variational_mean.data = m[:, j].clone()
                q.chol_variational_covar.data = T[j].clone()
                self.variational_strategy.variational_params_initialized.fill_(1)
                self.mean_module = gpytorch.means.ConstantMean()
                self.mean_module.constant.data.fill_(float(decoder.mean[j]))
                self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
                self.double()
                self.covar_module.base_kernel.lengthscale = decoder.log_lengthscale.exp()
                self.covar_module.outputscale = decoder.log_amplitude2.exp()

            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(
                    self.mean_module(x), self.covar_module(x)
                )

        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = decoder.log_noise[j].exp()
        model = Svgp(j)
        mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=10 * N)
        total += mll(model(X), Y[:, j]).item() * 10 * N
    ours, _ = objectives.elbo(X, Y, decoder, m, T, 10 * N, jitter=0.0)
    assert float(ours) == pytest.approx(total, rel=1e-5)


def test_the_collapsed_bound_is_the_elbo_at_the_best_q():
    X, Y, decoder, m, T = world()
    found = bound.bound_and_gradient(X, bound.rows(Y), decoder)
    best = collapsed_posterior(decoder, found.stats, work=torch.float64)
    L = bound.inducing_cholesky(decoder)
    V = (best.P @ L).T  # P = VᵀL⁻¹
    m_best = V @ best.mean_map
    S = torch.einsum("mj,jd,nj->dmn", V, best.spread_map, V)
    at_best, _ = objectives.elbo(X, Y, decoder, m_best, torch.linalg.cholesky(S), N)
    assert float(at_best) == pytest.approx(float(found.value), rel=1e-9)
    elsewhere, _ = objectives.elbo(X, Y, decoder, m, T, N)
    assert float(elsewhere) < float(found.value)


def test_symmetrised_kl_against_monte_carlo():
    g = torch.Generator().manual_seed(2)
    mean_p, mean_q = torch.randn(2, 1, 3, generator=g, dtype=torch.float64)
    v_p, v_q = torch.rand(2, 1, 3, generator=g, dtype=torch.float64) + 0.5
    p = torch.distributions.Normal(mean_p, v_p.sqrt())
    q = torch.distributions.Normal(mean_q, v_q.sqrt())
    draws = torch.randn(400_000, 3, generator=g, dtype=torch.float64)
    at_p, at_q = mean_p + v_p.sqrt() * draws, mean_q + v_q.sqrt() * draws
    one = (p.log_prob(at_p) - q.log_prob(at_p)).sum(1)
    other = (q.log_prob(at_q) - p.log_prob(at_q)).sum(1)
    both = 0.5 * (one + other)
    ours = float(objectives.symmetrised_kl(mean_p, v_p, mean_q, v_q))
    assert ours == pytest.approx(float(both.mean()), abs=4 * float(both.std()) / 400_000**0.5)


def test_kl_of_unequal_widths_is_refused():
    with pytest.raises(InputError, match="equal width; got 3 and 4"):
        objectives.symmetrised_kl(*[torch.ones(1, 3)] * 2, *[torch.ones(1, 4)] * 2)
