"""The paper's objective: λ1·L_emb + λ2·L_KL with a free Gaussian q(i_k) for every output."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fusevlm.errors import InputError
from fusevlm.priors.gp.bound import JITTER, Decoder


def symmetrised_kl(
    mean_p: Tensor, variance_p: Tensor, mean_q: Tensor, variance_q: Tensor
) -> Tensor:
    """½[KL(p‖q) + KL(q‖p)] of diagonal Gaussians, row by row: four [n, D] in, [n] out.

    ¼·Σ_k [v_p/v_q + v_q/v_p − 2 + (μ_p − μ_q)²·(1/v_p + 1/v_q)]; the log-determinants cancel.
    """
    if mean_p.shape != mean_q.shape:
        raise InputError(
            f"L_KL compares modalities of equal width; got {mean_p.shape[1]} and "
            f"{mean_q.shape[1]} outputs. Set lambda2=0."
        )
    ratio = variance_p / variance_q
    gap = (mean_p - mean_q).square() * (1.0 / variance_p + 1.0 / variance_q)
    return 0.25 * (ratio + 1.0 / ratio - 2.0 + gap).sum(1)


def predictive(
    x: Tensor, decoder: Decoder, L: Tensor, m: Tensor, T: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance (without noise) of every output at x [n, Q], differentiable: two [n, D].

    Whitened: i_k = L·ι_k with q(ι_k) = N(m_k, T_k·T_kᵀ); a = L⁻¹k(Z, x);
    μ_k = mean_k + a·m_k, v_k = k(x, x) − ‖a‖² + ‖T_kᵀa‖².
    """
    K = _kernel(decoder, x)
    a = torch.linalg.solve_triangular(L, K, upper=False)
    slack = decoder.log_amplitude2.exp() - (a * a).sum(0)
    spread = torch.einsum("mn,dmj->ndj", a, T).square().sum(2)
    return decoder.mean + a.T @ m, slack[:, None] + spread


def _kernel(decoder: Decoder, x: Tensor) -> Tensor:
    """k(Z, x) [M, n] without in-place operations, for autograd."""
    scale = torch.exp(-decoder.log_lengthscale)
    z, x = decoder.inducing * scale, x * scale
    d2 = (z * z).sum(1)[:, None] + (x * x).sum(1) - 2.0 * z @ x.T
    return torch.exp(decoder.log_amplitude2 - 0.5 * d2.clamp(min=0.0))


def free_cholesky(decoder: Decoder, jitter: float = JITTER) -> Tensor:
    """L of K_uu + jitter·a²·I, differentiable."""
    K = _kernel(decoder, decoder.inducing)
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    L: Tensor = torch.linalg.cholesky(K + jitter * decoder.log_amplitude2.exp() * eye)
    return L


def expected_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor, log_noise: Tensor) -> Tensor:
    """Σ_{n,k} E_q log N(y_nk; g_k(x_n), σ_k²)."""
    squares = (y - mean).square() + variance
    return -0.5 * (math.log(2.0 * math.pi) + log_noise + squares * torch.exp(-log_noise)).sum()


def kl_to_prior(m: Tensor, T: Tensor) -> Tensor:
    """Σ_k KL(N(m_k, T_kT_kᵀ) ‖ N(0, I)) = ½Σ_k [tr S_k + ‖m_k‖² − M − log det S_k]."""
    log_det = torch.log(T.diagonal(dim1=1, dim2=2).square()).sum()
    return 0.5 * (T.square().sum() + m.square().sum() - m.numel() - log_det)


def elbo(
    x: Tensor,
    y: Tensor,
    decoder: Decoder,
    m: Tensor,
    T: Tensor,
    n_total: int,
    jitter: float = JITTER,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Σ_k ELBO_k of N pairs estimated from n of them, and the predictive moments (with noise)."""
    L = free_cholesky(decoder, jitter)
    mean, variance = predictive(x, decoder, L, m, T)
    fit = expected_log_likelihood(y, mean, variance, decoder.log_noise)
    return fit * (n_total / len(x)) - kl_to_prior(m, T), (mean, variance + decoder.log_noise.exp())


def total_loss(
    elbos: Mapping[str, Tensor],
    moments: Mapping[str, tuple[Tensor, Tensor]],
    n_total: int,
    lambda1: float,
    lambda2: float,
) -> Tensor:
    """L_total per pair: λ1·L_emb/N + λ2·mean_n L_KL(x_n); L_emb = −Σ_M Σ_k ELBO.

    Differs from the paper: it leaves the sum over n of L_KL implicit; both terms are per pair here.
    """
    loss = -lambda1 * torch.stack(list(elbos.values())).sum() / n_total
    if lambda2 and len(moments) == 2:
        first, second = moments.values()
        loss = loss + lambda2 * symmetrised_kl(*first, *second).mean()
    return loss
