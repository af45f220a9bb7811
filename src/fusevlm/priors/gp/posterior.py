"""What a trained decoder predicts at a latent x: mean and variance of every output.

Both forms work in coordinates w = P·k(Z, x) in which ‖w‖ = ‖L⁻¹k‖, share the slack
τ = k(x, x) − ‖w‖² and the linear map w → μ, and differ in the variance that q leaves (``spread``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fusevlm.priors.gp.bound import (
    JITTER,
    Decoder,
    Statistics,
    decoder_of,
    inducing_cholesky,
    rbf,
)


@dataclass(frozen=True)
class CollapsedPosterior:
    """q(i_k) at its optimum, for all k at once.

    With Φ = VΛVᵀ, w = Vᵀa, c = VᵀB:  μ_k = m_k + Σ_j w_j c_jk/(λ_j + σ_k²),
    v_k = τ + Σ_j w_j²·σ_k²/(λ_j + σ_k²) + σ_k².
    """

    decoder: Decoder
    P: Tensor  # VᵀL⁻¹
    mean_map: Tensor
    spread_map: Tensor  # [M, D], σ_k²/(λ_j + σ_k²)

    def spread(self, w: Tensor) -> Tensor:
        return (w * w) @ self.spread_map

    def spread_vjp(self, w: Tensor, v_bar: Tensor) -> Tensor:
        return 2.0 * w * (v_bar @ self.spread_map.T)


@dataclass(frozen=True)
class FreePosterior:
    """q(i_k) = N(L·m_k, L·S_k·Lᵀ) as gradient steps left it (the ``paper`` option); w = a."""

    decoder: Decoder
    P: Tensor  # L⁻¹
    mean_map: Tensor  # m_k
    factors: Tensor  # [D, M, M], lower triangular T_k with S_k = T_k·T_kᵀ

    def spread(self, w: Tensor) -> Tensor:
        return torch.einsum("bm,dmj->bdj", w, self.factors).square().sum(2)

    def spread_vjp(self, w: Tensor, v_bar: Tensor) -> Tensor:
        projected = torch.einsum("bm,dmj->bdj", w, self.factors)
        return 2.0 * torch.einsum("bdj,bd,dmj->bm", projected, v_bar, self.factors)


Posterior = CollapsedPosterior | FreePosterior


def collapsed_posterior(
    decoder: Decoder, stats: Statistics, *, jitter: float = JITTER, work: torch.dtype
) -> CollapsedPosterior:
    """The optimal q from the statistics of the training pairs. Cost O(M³ + M²·D)."""
    L = inducing_cholesky(decoder, jitter)
    noise = decoder.log_noise.exp()
    lam, V = torch.linalg.eigh(stats.Phi)
    r = 1.0 / (lam.clamp(min=0.0)[:, None] + noise)
    c = V.T @ (stats.AY - stats.A1[:, None] * decoder.mean)
    P = torch.linalg.solve_triangular(L.T, V, upper=True).T
    return CollapsedPosterior(decoder, P.contiguous(), (r * c).to(work), (noise * r).to(work))


def collapsed_posteriors(
    values: Mapping[str, Tensor], stats: Mapping[str, Statistics], work: torch.dtype
) -> dict[str, Posterior]:
    """The optimal posterior of each modality."""
    return {
        name: collapsed_posterior(decoder_of(values, name), found, work=work)
        for name, found in stats.items()
    }


def free_posterior(decoder: Decoder, q_mean: Tensor, q_factor: Tensor) -> FreePosterior:
    """A decoder with a q of its own."""
    wide = Decoder(**{name: value.double() for name, value in decoder.named().items()})
    L = inducing_cholesky(wide, JITTER)
    eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
    P = torch.linalg.solve_triangular(L, eye, upper=False)
    return FreePosterior(wide, P, q_mean, q_factor)


def free_posteriors(values: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Posterior]:
    """The posterior of each modality with the q that the values hold."""
    return {
        n: free_posterior(
            decoder_of(values, n), values[f"{n}.q_mean"], torch.tril(values[f"{n}.q_factor"])
        )
        for n in names
    }


def coordinates(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k(Z, x) [B, M], w = P·k [B, M] and τ = k(x, x) − ‖w‖² [B], all float64."""
    d = posterior.decoder
    K = rbf(d.inducing, x, d.log_lengthscale, d.log_amplitude2).T
    w = K @ posterior.P.T
    tau = (d.log_amplitude2.exp() - (w * w).sum(1)).clamp(min=0.0)
    return K, w, tau


def predictive_mean(posterior: Posterior, x: Tensor) -> Tensor:
    """The mean alone: half the cost of :func:`moments`."""
    work = posterior.mean_map.dtype
    w = coordinates(posterior, x)[1].to(work)
    return posterior.decoder.mean.to(work) + w @ posterior.mean_map


def moments(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """Predictive mean and variance of every output at x [B, Q]: two [B, D]; noise included."""
    work = posterior.mean_map.dtype
    _, w, tau = coordinates(posterior, x)
    narrow = w.to(work)
    mean = posterior.decoder.mean.to(work) + narrow @ posterior.mean_map
    noise = posterior.decoder.log_noise.exp().to(work)
    return mean, posterior.spread(narrow) + tau.to(work)[:, None] + noise
