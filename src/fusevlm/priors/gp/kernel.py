"""The RBF kernel between inducing points and latents, and its derivative by hand.

Axis names of this package: N pairs (n of them in a chunk), M inducing points, Q latent dimensions,
D outputs of one modality.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def rbf(Z: Tensor, X: Tensor, log_lengthscale: Tensor, log_amplitude2: Tensor) -> Tensor:
    """k(z, x) = a²·exp(−½·Σ_q (z_q − x_q)²/ℓ_q²) as [M, n]; ℓ is shared (one entry) or per q.

    Cost O(M·n·Q).
    """
    scale = torch.exp(-log_lengthscale)
    z, x = Z * scale, X * scale
    cross = torch.addmm(log_amplitude2 - 0.5 * (z * z).sum(1)[:, None], z, x.T)
    cross -= 0.5 * (x * x).sum(1)
    return cross.clamp_(max=log_amplitude2).exp_()  # d² < 0 only by rounding


@dataclass(frozen=True)
class KernelGradient:
    """What a cotangent of k(Z, X) means for its arguments."""

    Z: Tensor
    X: Tensor
    log_lengthscale: Tensor
    log_amplitude2: Tensor


def rbf_vjp(G: Tensor, Z: Tensor, X: Tensor, log_lengthscale: Tensor) -> KernelGradient:
    """Pull G = K̄∘K [M, n] (cotangent times kernel) back through :func:`rbf`.

    dk/dx_q = k·(z_q − x_q)/ℓ_q²,  dk/dlog ℓ_q = k·(z_q − x_q)²/ℓ_q²,  dk/dlog a² = k.
    """
    inverse2 = torch.exp(-2.0 * log_lengthscale)
    rows, columns = G.sum(1), G.sum(0)
    GX = G @ X
    squares = rows @ (Z * Z) - 2.0 * (Z * GX).sum(0) + columns @ (X * X)  # Σ G·(z_q − x_q)²
    per_q = squares * inverse2
    return KernelGradient(
        Z=(GX - rows[:, None] * Z) * inverse2,
        X=(G.T @ Z - columns[:, None] * X) * inverse2,
        log_lengthscale=per_q if log_lengthscale.numel() > 1 else per_q.sum().reshape(1),
        log_amplitude2=rows.sum(),
    )
