"""What training is given: embeddings in standardised units, and where it starts.

The start: PCA latents, k-means inducing points, as noise what a linear map leaves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusevlm.errors import InputError
from fusevlm.priors.gp.bound import CHUNK, Decoder, Rows, rows
from fusevlm.priors.gp.options import Options
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.interface import Embeddings

MOST_HELD_OUT = 500


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


@dataclass(frozen=True)
class Task:
    """Everything training needs, in standardised units; rows are this process's own."""

    data: dict[str, Rows]
    held_out: dict[str, Tensor]  # empty when none
    units: dict[str, Units]
    latents: Tensor  # [N, Q], the PCA start of all processes' pairs
    decoders: dict[str, Decoder]
    n_pairs: int
    fingerprint: str  # of the embeddings, so that a checkpoint of other data is refused

    @property
    def widths(self) -> dict[str, int]:
        return {name: int(data.Y.shape[1]) for name, data in self.data.items()}

    def per_output(self, objective: float) -> float:
        """Nat per pair and output, in embedding units (not standardised ones)."""
        widths = self.widths
        log_scale = sum(D * math.log(float(self.units[n].scale)) for n, D in widths.items())
        return (objective / self.n_pairs - log_scale) / sum(widths.values())


def prepare(
    pairs: Mapping[str, Embeddings], options: Options, team: Team, device: torch.device
) -> Task:
    """Split off held-out pairs, standardise, start from PCA; every rank computes the same"""
    size = len(next(iter(pairs.values())))
    n_held = min(MOST_HELD_OUT, round(options.held_out * size))
    n_train = size - n_held
    if n_train < options.n_inducing:
        raise InputError(
            f"{n_train} training pairs ({n_held} more held out) are fewer than "
            f"{options.n_inducing} inducing points. Add pairs, or lower n_inducing."
        )
    if n_train <= options.n_latent:
        raise InputError(
            f"{n_train} training pairs cannot start {options.n_latent} latent dimensions. "
            f"Add pairs, or lower n_latent."
        )
    order = np.random.default_rng(options.seed).permutation(size)
    train, held = np.sort(order[n_held:]), np.sort(order[:n_held])
    work = getattr(torch, options.precision)
    scales, whole, apart = {}, {}, {}
    for name, embeddings in pairs.items():
        Y = as_tensor(embeddings[train] if n_held else embeddings, device)
        scales[name] = units(Y)
        if not float(scales[name].scale) > 0.0:
            raise InputError(f"all {name} embeddings are equal; nothing can be learnt from them.")
        whole[name] = standardise(Y, scales[name], work)
        if n_held:
            rest = as_tensor(embeddings[held], device)
            apart[name] = standardise(rest, scales[name], work)
    X = principal_latents(list(whole.values()), options.n_latent, options.seed)
    decoders = {
        name: first_decoder(X, Y, options.n_inducing, options.seed, ard=options.ard)
        for name, Y in whole.items()
    }
    own = team.rows(n_train)
    return Task(
        data={
            name: rows(Y if team.size == 1 else Y[own].clone(), team.sum)
            for name, Y in whole.items()
        },
        held_out=apart,
        units=scales,
        latents=X,
        decoders=decoders,
        n_pairs=n_train,
        fingerprint=_fingerprint(pairs),
    )


def _fingerprint(pairs: Mapping[str, Embeddings]) -> str:
    digest = hashlib.sha256()
    for name, embeddings in pairs.items():
        digest.update(f"{name} {embeddings.shape} {embeddings.dtype}".encode())
        for begin in range(0, len(embeddings), 8192):
            digest.update(np.ascontiguousarray(embeddings[begin : begin + 8192]).tobytes())
    return digest.hexdigest()
