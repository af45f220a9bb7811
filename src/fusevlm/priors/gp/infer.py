"""Query time: x* = argmax_x log N(z; μ(x), Σ(x)) + log N(x; 0, I), for a batch of queries at once.

Each query is a small problem (Q unknowns) whose cost is in the D outputs. So all queries step
together: exact gradients, and a Q×Q curvature each that starts as Gauss–Newton's JᵀWJ + I (with one
fixed weighting W of the outputs, which turns D×Q Jacobians into M×Q ones) and is improved by BFGS
updates. A query whose step does not climb is damped; a converged one leaves the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusevlm.priors.gp.blocks import Table, rows_of
from fusevlm.priors.gp.bound import rbf
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.posterior import Posterior, coordinates, moments, predictive_mean

LOG_2PI = math.log(2.0 * math.pi)
BATCH = 1024  # queries at a time
LONGEST = 1.0  # step: beyond a prior standard deviation the curvature is no guide
N_LANDMARKS = 1024
N_NEAREST = 2  # landmarks to start from
N_CORRECTIONS = 2  # linear steps towards z before a climb
RIDGE_ROWS = 4096  # pairs from which the linear start is fitted


@dataclass(frozen=True)
class View:
    """One modality of a query batch, with what its curvature needs."""

    posterior: Posterior
    z: Tensor  # [B, D] in the decoder's units
    curvature: Tensor  # [≤M, M], F·P with FᵀF = Σ_k mean_map_k mean_map_kᵀ / v̄_k


def view(posterior: Posterior, z: Tensor) -> View:
    """``z`` under ``posterior``; v̄ is the predictive variance at x = 0."""
    Q = posterior.decoder.inducing.shape[1]
    origin = torch.zeros(1, Q, dtype=torch.float64, device=z.device)
    half = posterior.mean_map / moments(posterior, origin)[1][0].sqrt()
    lam, V = torch.linalg.eigh((half @ half.T).double())
    keep = lam > 1e-7 * lam[-1]
    F = lam[keep].sqrt()[:, None] * V[:, keep].T
    curvature = (F @ posterior.P).to(posterior.mean_map.dtype)
    return View(posterior, z.to(posterior.mean_map.dtype), curvature)


def select(views: Sequence[View], index: Tensor) -> list[View]:
    """The same views of some of the queries."""
    return [View(v.posterior, v.z[index], v.curvature) for v in views]


def log_joint(views: Sequence[View], x: Tensor) -> Tensor:
    """Σ_views log N(z; μ(x), Σ(x)) + log N(x; 0, I) of each query [B], float64."""
    total = -0.5 * (x * x).sum(1) - 0.5 * x.shape[1] * LOG_2PI
    for v in views:
        mean, variance = moments(v.posterior, x)
        total = total + gaussian_log_density(v.z, mean, variance)
    return total


def gaussian_log_density(z: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(z; mean, diag(variance)) of each row, summed in float64."""
    terms = torch.log(variance) + (z - mean).square() / variance
    return -0.5 * (terms.sum(1, dtype=torch.float64) + z.shape[1] * LOG_2PI)


def log_joint_gradient(views: Sequence[View], x: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`log_joint` [B] and its exact gradient [B, Q].

    With e = (z − μ)/v:  ∂/∂μ = e,  ∂/∂v = ½(e² − 1/v),  and ∂x = Σ_m (Pᵀw̄)_m·k_m·(z_m − x)/ℓ².
    """
    value = -0.5 * (x * x).sum(1) - 0.5 * x.shape[1] * LOG_2PI
    gradient = -x
    for v in views:
        p, d = v.posterior, v.posterior.decoder
        work = p.mean_map.dtype
        K, w, tau = coordinates(p, x)
        narrow = w.to(work)
        residual = v.z - d.mean.to(work) - narrow @ p.mean_map
        variance = p.spread(narrow) + tau.to(work)[:, None] + d.log_noise.exp().to(work)
        precision = 1.0 / variance
        e = residual * precision
        terms = residual * e + torch.log(variance)
        value = value - 0.5 * (terms.sum(1, dtype=torch.float64) + v.z.shape[1] * LOG_2PI)
        v_bar = 0.5 * (e * e - precision)
        w_bar = (e @ p.mean_map.T + p.spread_vjp(narrow, v_bar)).double()
        w_bar -= 2.0 * w * v_bar.sum(1, dtype=torch.float64)[:, None]
        k_bar = (w_bar @ p.P) * K
        inverse2 = torch.exp(-2.0 * d.log_lengthscale)
        gradient = gradient + (k_bar @ d.inducing - k_bar.sum(1, keepdim=True) * x) * inverse2
    return value, gradient


def gauss_newton(views: Sequence[View], x: Tensor) -> Tensor:
    """JᵀWJ + I [B, Q, Q] with J = ∂μ/∂x and W the fixed weights of the views."""
    eye = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    curvature = eye.repeat(len(x), 1, 1)
    for v in views:
        d = v.posterior.decoder
        K = rbf(d.inducing, x, d.log_lengthscale, d.log_amplitude2).T
        inverse2 = torch.exp(-2.0 * d.log_lengthscale)
        step = (d.inducing.T[None] - x[:, :, None]) * inverse2[:, None]  # [B, Q, M]
        T = (step * K[:, None, :]).to(v.curvature.dtype) @ v.curvature.T
        curvature += (T @ T.transpose(1, 2)).double()
    return curvature


@dataclass(frozen=True)
class Found:
    """Latents of a query batch: where the search ended, how good it is, whether it converged."""

    x: Tensor  # [B, Q]
    log_joint: Tensor  # [B]
    converged: Tensor  # [B], bool
    n_steps: int


def ascend(views: Sequence[View], x: Tensor, *, max_steps: int = 60, tol: float = 1e-4) -> Found:
    """Climb from x [B, Q]; converged when a full step promises less than ``tol`` nat.

    Newton-like steps δ = (C + damping)⁻¹g with the exact gradient g. C starts as Gauss–Newton's and
    learns the true curvature by BFGS updates; a step that does not climb is taken back and damped.
    The promised gain is ½·gᵀC⁻¹g. Cost per query and step O(M·(M + D)).
    """
    x = x.clone()
    converged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    active = torch.arange(len(x), device=x.device)
    here, parts = x.clone(), list(views)
    value, gradient = log_joint_gradient(parts, here)
    C = gauss_newton(parts, here)
    best = value.clone()
    damping = torch.full_like(value, 1e-3)
    taken = 0
    while len(active) and taken < max_steps:
        taken += 1
        scale = torch.diag_embed(C.diagonal(dim1=1, dim2=2) * damping[:, None])
        delta = torch.linalg.solve(C + scale, gradient)
        delta *= (LONGEST / torch.linalg.vector_norm(delta, dim=1, keepdim=True)).clamp(max=1.0)
        trial, t_gradient = log_joint_gradient(parts, here + delta)
        C = _bfgs(C, delta, gradient - t_gradient)
        better = trial > value
        here = torch.where(better[:, None], here + delta, here)
        value = torch.where(better, trial, value)
        gradient = torch.where(better[:, None], t_gradient, gradient)
        damping = torch.where(better, damping * 0.2, damping * 10.0).clamp(1e-4, 1e8)
        x[active], best[active] = here, value
        newton = torch.linalg.solve(C, gradient)
        done = 0.5 * (gradient * newton).sum(1) < tol
        converged[active[done]] = True
        if bool(done.any()):
            keep = ~done
            active, here, value = active[keep], here[keep], value[keep]
            gradient, C, damping = gradient[keep], C[keep], damping[keep]
            parts = select(parts, keep)
    return Found(x, best, converged, taken)


def _bfgs(C: Tensor, step: Tensor, change: Tensor) -> Tensor:
    """C with C·step = change, the smallest such change that keeps it positive definite.

    C − (Cs)(Cs)ᵀ/sᵀCs + yyᵀ/sᵀy where sᵀy is safely positive, else C (s step, y change).
    """
    Cs = (C @ step[:, :, None])[:, :, 0]
    sCs, sy = (step * Cs).sum(1), (step * change).sum(1)
    safe = sy > 1e-2 * sCs
    one = torch.ones_like(sy)
    down = Cs[:, :, None] * Cs[:, None, :] / torch.where(safe, sCs, one)[:, None, None]
    up = change[:, :, None] * change[:, None, :] / torch.where(safe, sy, one)[:, None, None]
    return torch.where(safe[:, None, None], C - down + up, C)


@dataclass(frozen=True)
class Landmarks:
    """Training latents to start from, with what ranks them for a query in two products."""

    x: Tensor  # [K, Q]
    constant: Tensor  # [K], log N(x; 0, I) − ½ Σ (log 2πv + μ²/v)
    linear: Tensor  # [D, K], μ/v
    quadratic: Tensor  # [D, K], −½/v


def landmark_latents(X: Tensor, seed: Sequence[int]) -> Tensor:
    """At most 1,024 of the training latents, drawn at random, in their order."""
    order = np.random.default_rng(seed).permutation(len(X))[:N_LANDMARKS]
    return X[torch.as_tensor(np.sort(order))]


def landmarks(posterior: Posterior, x: Tensor) -> Landmarks:
    """Mean and variance at some training latents, once per adapter."""
    mean, variance = moments(posterior, x)
    constant = -0.5 * (torch.log(variance) + mean * mean / variance).sum(1)
    return Landmarks(x, constant, (mean / variance).T.contiguous(), (-0.5 / variance).T)


def nearest_landmarks(
    parts: Sequence[tuple[Landmarks, Tensor]], n_nearest: int
) -> tuple[Tensor, Tensor]:
    """The landmarks under which z is likeliest: latents [B, n_nearest, Q] and their score."""
    x = parts[0][0].x
    score = -0.5 * (x * x).sum(1).to(parts[0][1].dtype)
    for marks, z in parts:
        score = score + marks.constant + z @ marks.linear + (z * z) @ marks.quadratic
    top = score.topk(min(n_nearest, len(x)), dim=1)
    return x[top.indices], top.values


def find_latents(
    views: Sequence[View],
    starts: Tensor,
    *,
    n_climbs: int = 2,
    max_steps: int = 60,
    tol: float = 1e-4,
) -> Found:
    """The best of several climbs per query; ``starts`` is [B, S, Q].

    All starts are scored; the ``n_climbs`` best of each query are climbed from.
    """
    B, S, Q = starts.shape
    n_climbs = min(n_climbs, S)
    row = torch.arange(B, device=starts.device)
    every = select(views, row.repeat_interleave(S))
    scores = log_joint(every, starts.reshape(B * S, Q)).reshape(B, S)
    order = scores.topk(n_climbs, dim=1).indices
    chosen = torch.gather(starts, 1, order[:, :, None].expand(-1, -1, Q))
    # all climbs of all queries together: for one query the steps cost more than the numbers
    several = select(views, row.repeat_interleave(n_climbs))
    climbs = ascend(several, chosen.reshape(B * n_climbs, Q), max_steps=max_steps, tol=tol)
    values = climbs.log_joint.reshape(B, n_climbs)
    best = row * n_climbs + values.argmax(1)
    return Found(climbs.x[best], climbs.log_joint[best], climbs.converged[best], climbs.n_steps)


def linear_start(Z: Table, X: Tensor, n_pairs: int, team: Team) -> Tensor:
    """R of z → x [D, Q]: (ZᵀZ + N/10·I)⁻¹ZᵀX on some training pairs; own rows in."""
    most = -(-RIDGE_ROWS // team.size)
    z, x = rows_of(Z, slice(0, most)).double(), X[:most].double()
    gram, cross = team.sum(z.T @ z), team.sum(z.T @ x)
    gram.diagonal().add_(0.1 * min(RIDGE_ROWS, n_pairs))
    solution: Tensor = torch.linalg.solve(gram, cross)
    return solution


@dataclass(frozen=True)
class Search:
    """Finds x* of new embeddings; by modality, what was learnt and what a climb starts from."""

    posteriors: Mapping[str, Posterior]
    landmarks: Mapping[str, Landmarks]
    linear: Mapping[str, Tensor]  # of linear_start

    def latents(
        self,
        z: Mapping[str, Tensor],
        starts: Tensor | None = None,
        *,
        n_climbs: int,
        max_steps: int,
        tol: float,
    ) -> Found:
        """x* of queries z, {modality: [B, D]} in the decoder's units; see :func:`find_latents`.

        ``starts`` [B, S, Q] are tried as they are and after a linear correction towards z; without
        them the nearest landmarks, 0, and 0 corrected.
        """
        names = list(z)
        views = [view(self.posteriors[name], rows) for name, rows in z.items()]
        parts = []
        for index in torch.split(torch.arange(len(views[0].z), device=views[0].z.device), BATCH):
            some = select(views, index)
            if starts is None:
                first = self._starts(names, some)
            else:
                first = torch.cat([starts[index], self._corrected(names, some, starts[index])], 1)
            parts.append(find_latents(some, first, n_climbs=n_climbs, max_steps=max_steps, tol=tol))
        return Found(
            torch.cat([p.x for p in parts]),
            torch.cat([p.log_joint for p in parts]),
            torch.cat([p.converged for p in parts]),
            max(p.n_steps for p in parts),
        )

    def _starts(self, names: Sequence[str], views: Sequence[View]) -> Tensor:
        """[B, S, Q]: nearest landmarks and zero, and what a linear correction makes of zero."""
        near, _ = nearest_landmarks(
            [(self.landmarks[n], v.z) for n, v in zip(names, views, strict=True)], N_NEAREST
        )
        zero = torch.zeros_like(near[:, :1])
        return torch.cat([near, zero, self._corrected(names, views, zero)], 1)

    def _corrected(self, names: Sequence[str], views: Sequence[View], starts: Tensor) -> Tensor:
        """x ← x + R·(z − μ(x)), twice, R the linear map z → x: leads most starts to one basin."""
        B, S, Q = starts.shape
        x = starts.reshape(B * S, Q)
        for _ in range(N_CORRECTIONS):
            change = torch.zeros_like(x)
            for name, v in zip(names, views, strict=True):
                mean = predictive_mean(v.posterior, x)
                gap = v.z.repeat_interleave(S, 0) - mean
                change += gap.double() @ self.linear[name] / len(names)
            x = x + change
        return x.reshape(B, S, Q)
