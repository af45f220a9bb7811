"""What training is given: embeddings in standardised units, and where it starts.

The start: PCA latents, k-means inducing points, as noise what a linear map leaves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fusevlm.errors import InputError
from fusevlm.priors.gp.blocks import (
    CHUNK,
    Blocks,
    Table,
    Units,
    chunks,
    part_of,
    standardise,
    stored_table,
    work_type,
)
from fusevlm.priors.gp.bound import Decoder, Rows, rows
from fusevlm.priors.gp.options import Options, n_held_out, refuse_few
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.interface import Embeddings
from fusevlm.store.pairs import StoredRows


def as_tensor(embeddings: Embeddings, device: torch.device) -> Tensor:
    """Embeddings on a device; a read-only array (memory-mapped, Arrow's) is copied."""
    return torch.as_tensor(np.require(embeddings, requirements=["C", "W"]), device=device)


def units(Y: Table) -> Units:
    """Mean of each output and the root of the average output variance."""
    N, D = Y.shape
    shift = torch.zeros(D, dtype=torch.float64, device=Y.device)
    for part in chunks(Y):
        shift += part.sum(0, dtype=torch.float64)
    shift /= N
    total = torch.zeros((), dtype=torch.float64, device=Y.device)
    for part in chunks(Y):
        total += (part.double() - shift).square_().sum()
    return Units(shift, (total / (N * D)).sqrt())


def principal_latents(Ys: Sequence[Table], Q: int, seed: int, n_passes: int = 6) -> Tensor:
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
        left = _grammed(Ys, left)
    basis = torch.linalg.qr(left).Q
    inner = torch.cat([_projected(Y, basis) for Y in Ys]).double()  # [ΣD, width]
    lam, V = torch.linalg.eigh(inner.T @ inner)
    X: Tensor = (basis.double() @ V)[:, -Q:].flip(1) * lam[-Q:].flip(0).clamp(min=0.0).sqrt()
    X = X / X.square().mean().sqrt()
    largest = X.gather(0, X.abs().argmax(0, keepdim=True))
    return X * torch.where(largest < 0.0, -1.0, 1.0)


def _projected(Y: Table, left: Tensor) -> Tensor:
    """Yᵀ·left [D, width], block by block."""
    total = torch.zeros(Y.shape[1], left.shape[1], dtype=left.dtype, device=left.device)
    for y, part in zip(chunks(Y), torch.split(left, CHUNK), strict=True):
        total += y.T @ part
    return total


def _grammed(Ys: Sequence[Table], left: Tensor) -> Tensor:
    """Σ Y·Yᵀ·left [N, width], block by block."""
    found = torch.zeros_like(left)
    for Y in Ys:
        inner = _projected(Y, left)
        for y, part in zip(chunks(Y), torch.split(found, CHUNK), strict=True):
            part += y @ inner
    return found


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


def first_decoder(X: Tensor, Y: Table, M: int, seed: int, *, ard: bool) -> Decoder:
    """Decoder at the start: ℓ = √Q, amplitude 1, noise what a linear map from X leaves unexplained.

    ``Y`` is standardised, X has unit variance on average.
    """
    Q = X.shape[1]
    cross = torch.zeros(Q, Y.shape[1], dtype=torch.float64, device=X.device)
    total2 = torch.zeros(Y.shape[1], dtype=torch.float64, device=X.device)
    for x, y in zip(torch.split(X, CHUNK), chunks(Y), strict=True):
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
    pairs: Mapping[str, Embeddings | StoredRows], options: Options, team: Team, device: torch.device
) -> Task:
    """Split off held-out pairs, standardise, start from PCA; every rank computes the same.

    Stored pairs stay where they are and are read in blocks; arrays are standardised once.
    """
    size = len(next(iter(pairs.values())))
    refuse_few(size, options)
    n_held = n_held_out(size, options)
    n_train = size - n_held
    order = np.random.default_rng(options.seed).permutation(size)
    train, held = np.sort(order[n_held:]), np.sort(order[:n_held])
    work = work_type(options)
    scales, apart = {}, {}
    whole: dict[str, Table] = {}
    for name, embeddings in pairs.items():
        Y: Table
        if isinstance(embeddings, StoredRows):
            Y = stored_table(embeddings, train, device, work)
        else:
            Y = as_tensor(embeddings[train] if n_held else embeddings, device)
        scales[name] = u = units(Y)
        if not float(u.scale) > 0.0:
            raise InputError(f"all {name} embeddings are equal; nothing can be learnt from them.")
        whole[name] = replace(Y, units=u) if isinstance(Y, Blocks) else standardise(Y, u, work)
        if n_held:
            rest = as_tensor(embeddings[held], device)
            apart[name] = standardise(rest, u, work)
    X = principal_latents(list(whole.values()), options.n_latent, options.seed)
    decoders = {
        name: first_decoder(X, Y, options.n_inducing, options.seed, ard=options.ard)
        for name, Y in whole.items()
    }
    own = team.rows(n_train)
    return Task(
        data={
            name: rows(Y if team.size == 1 else part_of(Y, own), team.sum)
            for name, Y in whole.items()
        },
        held_out=apart,
        units=scales,
        latents=X,
        decoders=decoders,
        n_pairs=n_train,
        fingerprint=_fingerprint(pairs),
    )


def _fingerprint(pairs: Mapping[str, Embeddings | StoredRows]) -> str:
    digest = hashlib.sha256()
    for name, embeddings in pairs.items():
        if isinstance(embeddings, StoredRows):
            digest.update(f"{name} {embeddings.shape} {embeddings.fingerprint}".encode())
            continue
        digest.update(f"{name} {embeddings.shape} {embeddings.dtype}".encode())
        for begin in range(0, len(embeddings), 8192):
            digest.update(np.ascontiguousarray(embeddings[begin : begin + 8192]).tobytes())
    return digest.hexdigest()
