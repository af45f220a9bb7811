"""The collapsed variational bound of all D outputs of a modality: value and gradient.

Titsias (2009) maximises the ELBO over q(i_k) in closed form. With A = L⁻¹K_uf, LLᵀ = K_uu,
Φ = AAᵀ, ỹ_k = y_k − m_k, b_k = A·ỹ_k and a noise σ_k² of its own for each output,

    bound_k = −N/2·log 2π − (N−M)/2·log σ_k² − ½·log det(Φ + σ_k²I)
              − 1/(2σ_k²)·[‖ỹ_k‖² − b_kᵀ(Φ + σ_k²I)⁻¹b_k + tr K_ff − tr Φ].

All outputs share the kernel and the inducing inputs, so one Cholesky of K_uu and one
eigendecomposition Φ = VΛVᵀ serve all of them: Φ + σ_k²I only shifts Λ.

The data enter through sums over pairs (:class:`Statistics`). Pass 1 adds them up in row chunks,
the head turns them into the bound and its cotangents, pass 2 pulls those back to the kernel, chunk
by chunk. So memory does not grow with N, no derivative of an eigendecomposition is needed, and
several processes only add up M×M and M×D numbers.

Differs from the paper: it optimises μ_k and S_k of q(i_k) by gradient steps; here they are at their
optimum at every step (S_k = the same matrix function of σ_k², μ_k linear in y_k).

Axis names of this package: N pairs (n of them in a chunk), M inducing points, Q latent dimensions,
D outputs of one modality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fusevlm.errors import FuseError
from fusevlm.priors.gp.blocks import CHUNK, Table, chunks

JITTER = 1e-6  # on K_uu, relative to the amplitude

Reduce = Callable[[Tensor], Tensor]


class DivergedError(FuseError, ArithmeticError):
    """Training left the numbers a model can be made of (NaN, a falling bound, a singular K_uu)."""


def alone(value: Tensor) -> Tensor:
    """The sum over processes when there is only one."""
    return value


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


@dataclass(frozen=True)
class Decoder:
    """The GP decoder of one modality (float64): kernel, inducing inputs, mean and noise."""

    inducing: Tensor  # [M, Q]
    log_lengthscale: Tensor  # [1] or [Q]
    log_amplitude2: Tensor  # []
    log_noise: Tensor  # [D], log σ_k²
    mean: Tensor  # [D]

    def named(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def decoder_of(values: Mapping[str, Tensor], name: str) -> Decoder:
    """The decoder of one modality among flat parameters."""
    return Decoder(**{f.name: values[f"{name}.{f.name}"] for f in fields(Decoder)})


@dataclass(frozen=True)
class Rows:
    """The embeddings of one modality on this process, in standardised units."""

    Y: Table  # [n, D], float32 (or float64 in tests), in memory or in blocks
    n_total: int  # pairs over all processes
    total: Tensor  # [D], Σ_n y over all processes, float64
    total2: Tensor  # [D], Σ_n y² over all processes, float64


def rows(Y: Table, reduce: Reduce = alone) -> Rows:
    """Embeddings with their sums over all processes."""
    total = torch.zeros(Y.shape[1], dtype=torch.float64, device=Y.device)
    total2 = torch.zeros_like(total)
    for part in chunks(Y):
        wide = part.double()
        total += wide.sum(0)
        total2 += (wide * wide).sum(0)
    count = reduce(torch.tensor([float(len(Y))], dtype=torch.float64, device=Y.device))
    return Rows(Y, int(count.item()), reduce(total), reduce(total2))


@dataclass(frozen=True)
class Statistics:
    """All that the bound needs to know of N pairs (float64)."""

    Phi: Tensor  # [M, M], Σ a_n a_nᵀ
    AY: Tensor  # [M, D], Σ a_n y_nᵀ
    A1: Tensor  # [M], Σ a_n


def inducing_cholesky(decoder: Decoder, jitter: float = JITTER) -> Tensor:
    """L with LLᵀ = K_uu + jitter·a²·I, float64."""
    Z = decoder.inducing
    K = rbf(Z, Z, decoder.log_lengthscale, decoder.log_amplitude2)
    K = 0.5 * (K + K.T)
    K.diagonal().copy_(decoder.log_amplitude2.exp() * (1.0 + jitter))
    L: Tensor
    L, info = torch.linalg.cholesky_ex(K)
    if int(info) != 0 or not bool(torch.isfinite(L).all()):
        raise DivergedError(
            f"K_uu of {len(Z)} inducing points is singular or not finite at jitter {jitter:g} "
            f"(amplitude² {float(decoder.log_amplitude2.exp()):.3g}). Use fewer inducing points, a "
            f"smaller learning rate, or a larger jitter."
        )
    return L


def statistics(
    X: Tensor, Y: Table, decoder: Decoder, L: Tensor, reduce: Reduce = alone, chunk: int = CHUNK
) -> Statistics:
    """Pass 1: sums over pairs, in row chunks. Cost O(N·M·(M + D + Q)), memory O(chunk·M)."""
    M, D = len(L), Y.shape[1]
    Phi = torch.zeros(M, M, dtype=torch.float64, device=X.device)
    AY = torch.zeros(M, D, dtype=torch.float64, device=X.device)
    A1 = torch.zeros(M, dtype=torch.float64, device=X.device)
    for _, y, _, A in _chunks(X, Y, decoder, L, chunk):
        Phi += A @ A.T
        AY += A @ y
        A1 += A.sum(1)
    return Statistics(reduce(Phi), reduce(AY), reduce(A1))


def _chunks(
    X: Tensor, Y: Table, decoder: Decoder, L: Tensor, chunk: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """x [n, Q], y [n, D], K_uf [M, n] and A = L⁻¹K_uf [M, n] of consecutive rows."""
    work = Y.dtype
    Z, narrow = decoder.inducing.to(work), L.to(work)
    log_l, log_a2 = decoder.log_lengthscale.to(work), decoder.log_amplitude2.to(work)
    for x, y in zip(torch.split(X, chunk), chunks(Y, chunk), strict=True):
        x = x.to(work)
        K = rbf(Z, x, log_l, log_a2)
        yield x, y, K, torch.linalg.solve_triangular(narrow, K, upper=False)


@dataclass(frozen=True)
class Head:
    """The bound (summed over outputs) and its derivative by each statistic and parameter."""

    value: Tensor  # []
    d_Phi: Tensor  # [M, M]
    d_B: Tensor  # [M, D], by B = AỸ
    d_trace: Tensor  # [], by tr K_ff
    d_mean: Tensor  # [D]
    d_log_noise: Tensor  # [D]
    H: Tensor  # [M, M], Ā·Aᵀ summed over pairs: what the bound asks of L


def head(data: Rows, stats: Statistics, decoder: Decoder) -> Head:
    """Bound and cotangents from the statistics. Cost O(M³ + M²·D), float64.

    With P_k = (Φ + σ_k²I)⁻¹ = V·diag(r_k)·Vᵀ, r_jk = 1/(λ_j + σ_k²), c = VᵀB:
    ∂/∂Φ = ½·Σ_k [I/σ_k² − P_k − P_k b_k b_kᵀ P_k/σ_k²],  ∂/∂b_k = P_k b_k/σ_k².
    """
    N, (M, D) = data.n_total, stats.AY.shape
    mean, noise = decoder.mean, decoder.log_noise.exp()
    B = stats.AY - stats.A1[:, None] * mean
    yy = data.total2 - 2.0 * mean * data.total + N * mean * mean
    lam, V = torch.linalg.eigh(stats.Phi)
    lam = lam.clamp(min=0.0)  # Φ is a Gram matrix: below 0 only by rounding
    c = V.T @ B
    r = 1.0 / (lam[:, None] + noise)
    rc = r * c
    fitted = (c * rc).sum(0)
    slack = N * decoder.log_amplitude2.exp() - lam.sum()
    value = (
        -0.5 * N * D * math.log(2.0 * math.pi)
        - 0.5 * (N - M) * decoder.log_noise.sum()
        + 0.5 * torch.log(r).sum()
        - 0.5 * ((yy - fitted + slack) / noise).sum()
    )
    E = rc / noise.sqrt()
    inner = -0.5 * (E @ E.T)
    inner.diagonal().add_(0.5 * (1.0 / noise).sum() - 0.5 * r.sum(1))
    d_Phi = V @ inner @ V.T
    d_B = V @ (rc / noise)
    d_noise = (
        -0.5 * (N - M) / noise
        - 0.5 * r.sum(0)
        + 0.5 * (yy - fitted + slack) / noise**2
        - 0.5 * (rc * rc).sum(0) / noise
    )
    return Head(
        value=value,
        d_Phi=d_Phi,
        d_B=d_B,
        d_trace=-0.5 * (1.0 / noise).sum(),
        d_mean=-(stats.A1 @ d_B) + (data.total - N * mean) / noise,
        d_log_noise=d_noise * noise,
        H=2.0 * d_Phi @ stats.Phi + d_B @ B.T,
    )


@dataclass(frozen=True)
class Bound:
    """Σ_k bound_k of one modality with its gradient, and the statistics it came from."""

    value: Tensor  # []
    d_X: Tensor  # [n, Q], own rows
    d_decoder: Decoder
    stats: Statistics


def bound_and_gradient(
    X: Tensor,
    data: Rows,
    decoder: Decoder,
    *,
    reduce: Reduce = alone,
    jitter: float = JITTER,
    chunk: int = CHUNK,
) -> Bound:
    """Σ_k bound_k of all processes' pairs, its gradient by X (own rows) and by the decoder.

    Pass 2 needs, for each chunk, Ā = 2·∂Φ·A + ∂B·Ỹᵀ and K̄ = L⁻ᵀĀ; the inducing kernel's cotangent
    is K̄_uu = −½·L⁻ᵀ(Σ ĀAᵀ)L⁻¹, and Σ ĀAᵀ = 2·∂Φ·Φ + ∂B·Bᵀ needs no pass at all.
    """
    L = inducing_cholesky(decoder, jitter)
    stats = statistics(X, data.Y, decoder, L, reduce, chunk)
    top = head(data, stats, decoder)
    work, Z = data.Y.dtype, decoder.inducing
    d_Phi2, d_B = (2.0 * top.d_Phi).to(work), top.d_B.to(work)
    offset = (top.d_B @ decoder.mean).to(work)[:, None]
    root = L.to(work)
    Zw, log_l = Z.to(work), decoder.log_lengthscale.to(work)
    d_X = torch.empty(len(X), Z.shape[1], dtype=torch.float64, device=X.device)
    d_Z, d_l = torch.zeros_like(Z), torch.zeros_like(decoder.log_lengthscale)
    d_a = torch.zeros_like(decoder.log_amplitude2)
    start = 0
    for x, y, K, A in _chunks(X, data.Y, decoder, L, chunk):
        A_bar = torch.addmm(d_Phi2 @ A, d_B, y.T) - offset
        K_bar = torch.linalg.solve_triangular(root.T, A_bar, upper=True)
        part = rbf_vjp(K_bar.mul_(K), Zw, x, log_l)
        d_X[start : start + len(x)] = part.X
        d_Z += part.Z
        d_l += part.log_lengthscale
        d_a += part.log_amplitude2
        start += len(x)
    d_Z, d_l, d_a = reduce(d_Z), reduce(d_l), reduce(d_a)
    whitened = torch.linalg.solve_triangular(L.T, 0.5 * (top.H + top.H.T), upper=True)
    Kuu_bar = -0.5 * torch.linalg.solve_triangular(L, whitened, upper=False, left=False)
    K = rbf(Z, Z, decoder.log_lengthscale, decoder.log_amplitude2)
    inner = rbf_vjp(Kuu_bar * K, Z, Z, decoder.log_lengthscale)
    amplitude2 = decoder.log_amplitude2.exp()
    jittered = jitter * amplitude2 * Kuu_bar.diagonal().sum()
    gradient = Decoder(
        inducing=d_Z + inner.Z + inner.X,
        log_lengthscale=d_l + inner.log_lengthscale,
        log_amplitude2=d_a
        + inner.log_amplitude2
        + jittered
        + data.n_total * amplitude2 * top.d_trace,
        log_noise=top.d_log_noise,
        mean=top.d_mean,
    )
    return Bound(top.value, d_X, gradient, stats)
