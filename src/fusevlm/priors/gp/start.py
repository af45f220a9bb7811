"""Where training starts: units, PCA latents, k-means inducing points, residual noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusevlm.priors.gp.bound import CHUNK, Decoder
from fusevlm.priors.interface import Embeddings


@dataclass(frozen=True)
class Units:
    """Standardised = (embedding − shift)/scale: one scale per modality, so outputs stay comparable.

    The model sees an average output variance of 1; predictions are given in embedding units.
    """

    shift: Tensor  # [D], float64
    scale: Tensor  # [], float64


def as_tensor(embeddings: Embeddings, device: torch.device) -> Tensor:
    """Embeddings on a device; a read-only array (memory-mapped, Arrow's) is copied."""
    return torch.as_tensor(np.require(embeddings, requirements=["C", "W"]), device=device)


def units(Y: Tensor) -> Units:
    """Mean of each output and the root of the average output variance."""
    shift = Y.mean(0, dtype=torch.float64)
    total = sum(((p.double() - shift) ** 2).sum() for p in torch.split(Y, CHUNK))
    return Units(shift, torch.as_tensor(total / Y.numel()).sqrt())


def standardise(Y: Tensor, u: Units, work: torch.dtype) -> Tensor:
    """Embeddings in the decoder's units."""
    return (Y.to(work) - u.shift.to(work)) / u.scale.to(work)


def principal_latents(Ys: Sequence[Tensor], Q: int, seed: int, n_passes: int = 6) -> Tensor:
    """Q principal components of the concatenated modalities as latents [N, Q], float64.

    Columns keep the proportions of the singular values (one lengthscale serves them all) and have
    unit variance on average; signs are fixed. By subspace iteration, O(N·ΣD·Q) a pass.
    """
    generator = torch.Generator().manual_seed(seed)
    device, work = Ys[0].device, Ys[0].dtype
    width = min(Q + 8, len(Ys[0]), sum(Y.shape[1] for Y in Ys))
    block = torch.randn(len(Ys[0]), width, generator=generator, dtype=torch.float64)
    left = block.to(device, work)
    for _ in range(n_passes):
        left = torch.linalg.qr(left).Q
        left = sum((Y @ (Y.T @ left) for Y in Ys), torch.zeros_like(left))
    basis = torch.linalg.qr(left).Q
    inner = torch.cat([Y.T @ basis for Y in Ys]).double()  # [ΣD, width]
    lam, V = torch.linalg.eigh(inner.T @ inner)
    X: Tensor = (basis.double() @ V)[:, -Q:].flip(1) * lam[-Q:].flip(0).clamp(min=0.0).sqrt()
    X = X / X.square().mean().sqrt()
    largest = X.gather(0, X.abs().argmax(0, keepdim=True))
    return X * torch.where(largest < 0.0, -1.0, 1.0)


def cluster_centres(X: Tensor, M: int, seed: int, n_passes: int = 8) -> Tensor:
    """M centres of (at most 10,000 of) the latents by Lloyd's k-means from M of them."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).to(X.device)
    sample, centres = X[order[:10_000]], X[order[:M]].clone()
    for _ in range(n_passes):
        nearest = torch.cdist(sample, centres).argmin(1)
        size = torch.bincount(nearest, minlength=M).to(X.dtype)
        total = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(size[:, None] > 0, total / size.clamp(min=1.0)[:, None], centres)
    return centres


def first_decoder(X: Tensor, Y: Tensor, M: int, seed: int, *, ard: bool) -> Decoder:
    """Decoder at the start: ℓ = √Q, amplitude 1, noise what a linear map from X leaves unexplained.

    ``Y`` is standardised, X has unit variance on average.
    """
    Q = X.shape[1]
    cross = torch.zeros(Q, Y.shape[1], dtype=torch.float64, device=X.device)
    total2 = torch.zeros(Y.shape[1], dtype=torch.float64, device=X.device)
    for x, y in zip(torch.split(X, CHUNK), torch.split(Y, CHUNK), strict=True):
        cross += x.T @ y.double()
        total2 += y.double().square().sum(0)
    gram = X.T @ X + 1e-6 * len(X) * torch.eye(Q, dtype=torch.float64, device=X.device)
    explained = (cross * torch.linalg.solve(gram, cross)).sum(0)
    variance = total2 / len(X)
    residual = torch.maximum((total2 - explained) / len(X), 1e-3 * variance.clamp(min=1e-3))
    return Decoder(
        inducing=cluster_centres(X, M, seed),
        log_lengthscale=torch.full((Q if ard else 1,), 0.5, dtype=torch.float64, device=X.device)
        * torch.log(torch.tensor(float(Q), dtype=torch.float64)),
        log_amplitude2=torch.zeros((), dtype=torch.float64, device=X.device),
        log_noise=residual.log(),
        mean=torch.zeros(Y.shape[1], dtype=torch.float64, device=X.device),
    )
