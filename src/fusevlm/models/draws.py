"""Random numbers and token choice that do not depend on how queries are batched.

Every uniform number is keyed by (seed, query id, sample, step), so the same sample of the same
query sees the same numbers in any batch layout. Tokens come from the inverse of the cumulative
distribution; a different layout can change a token only where the uniform lies within rounding of a
boundary, and such draws are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from fusevlm.checks import FloatArray

NEAR_BOUNDARY = 1e-5
MOST_MARGIN = 1e3  # nats: what a step counts as that has but one possible token


def uniforms(seed: int, query_id: str, samples: Iterable[int], steps: int) -> FloatArray:
    """Numbers in [0, 1) of each of these samples and each step; more of either only add some."""
    rows = []
    for sample in samples:
        digest = hashlib.blake2b(f"{seed}\x1f{query_id}\x1f{sample}".encode(), digest_size=16)
        key = np.frombuffer(digest.digest(), dtype=np.uint64)
        rows.append(np.random.Generator(np.random.Philox(key=key)).random(steps))
    return np.stack(rows)


def warp(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    *,
    top_p: float | None = None,
    top_k: int | None = None,
) -> torch.Tensor:
    """Probabilities [rows, V] at each row's temperature, cut to top-k and then to top-p.

    Temperature 0 is the greedy limit: all mass on the largest logit.
    """
    greedy = temperatures == 0
    scores = logits / torch.where(greedy, 1.0, temperatures)[:, None]
    if top_k is not None and top_k < scores.shape[-1]:
        kth = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if top_p is not None and top_p < 1.0:
        ordered, index = scores.sort(dim=-1, descending=True)
        p = ordered.softmax(dim=-1)
        # a token stays while the mass before it is below top_p, so the first always does
        dropped = p.cumsum(dim=-1) - p >= top_p
        scores = scores.masked_fill(
            torch.zeros_like(dropped).scatter(-1, index, dropped), -torch.inf
        )
    p = scores.softmax(dim=-1)
    if bool(greedy.any()):
        only = torch.zeros_like(p).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
        p = torch.where(greedy[:, None], only, p)
    return p


def choose(p: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [rows] by inverse transform of probabilities [rows, V], and which draws were close.

    The token is the first whose cumulative probability exceeds u; one without probability is never
    chosen.
    """
    cumulative = p.cumsum(dim=-1, dtype=torch.float64)
    # scale u by the total, a hair off 1, rather than the whole row by its inverse
    target = (u * cumulative[:, -1])[:, None]
    token = torch.searchsorted(cumulative, target, right=True)
    token = torch.minimum(token, _last_possible(p)[:, None])
    upper = cumulative.gather(-1, token)
    below = torch.where(token > 0, cumulative.gather(-1, (token - 1).clamp(min=0)), 0.0)
    # the outer ends are no boundaries between tokens
    gap_up = torch.where(upper >= cumulative[:, -1:], torch.inf, upper - target)
    gap_down = torch.where(below <= 0.0, torch.inf, target - below)
    near = torch.minimum(gap_up, gap_down) < NEAR_BOUNDARY
    return token[:, 0], near[:, 0]


def margins(logits: torch.Tensor) -> torch.Tensor:
    """log p(best) − log p(second best) of each row; at most :data:`MOST_MARGIN`."""
    top = logits.topk(2, dim=-1).values
    return (top[:, 0] - top[:, 1]).clamp(max=MOST_MARGIN)


def _last_possible(p: torch.Tensor) -> torch.Tensor:
    """Index of the last token with any probability, where rounding could carry u past the end."""
    return p.shape[-1] - 1 - (p.flip(-1) > 0).to(torch.uint8).argmax(dim=-1)
