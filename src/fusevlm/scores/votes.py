"""Early-stopped votes of others: after how many samples they would stop, and how sure they are.

Both look at one sample after the other and stop when the leading answer seems settled. What they
give is compared with FUSE in rounds on the same samples: the judged answer stays the same, and the
score is how little of the vote is on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.meanings import by_string
from fusevlm.types import Queries, Samples

SETTLED = 0.95  # both papers' threshold
Voted = tuple[int, float]  # samples used, and 1 − what is on the judged answer


def adaptive_consistency(samples: Samples) -> Voted:
    """Aggarwal et al. (2023), their Beta rule: stop when P(p₁ > ½) ≥ .95, p₁ ~ Beta(v₁+1, v₂+1).

    v₁ and v₂ count the two most frequent answers. The score is 1 − (v + 1)/(k + 2), v of the k
    samples used being the judged answer.
    """
    from scipy.special import betainc

    meanings, own = _meanings(samples)
    for k in range(1, len(meanings) + 1):
        first, second = [*np.sort(np.bincount(meanings[:k]))[::-1], 0][:2]
        # P(p₁ > ½) = 1 − I_½(v₁ + 1, v₂ + 1)
        if 1.0 - betainc(first + 1, second + 1, 0.5) >= SETTLED or k == len(meanings):
            return k, 1.0 - (float(np.sum(meanings[:k] == own)) + 1.0) / (k + 2.0)
    return 0, 0.5


def confidence_guided(samples: Samples) -> Voted:
    """CGES (arXiv 2511.02603): stop when one answer has .95 of the posterior over answers.

    A sample with confidence c – exp of its mean token log-probability – has the likelihood c for
    the answer it gives and (1 − c)/(M − 1) for each other of M, those seen and one unseen; all are
    equally likely before. The score is 1 − the judged answer's posterior. Without log-probabilities
    every c is ½, and the vote alone counts.

    Differs from the paper: read from its abstract and the cited form of the posterior; the unseen
    answer is ours, so that one sample cannot be certain.
    """
    meanings, own = _meanings(samples)
    rows = samples.token_logprobs or [np.log([0.5])] * len(meanings)
    c = np.clip([float(np.exp(np.mean(row))) for row in rows], 1e-6, 1 - 1e-6)
    for k in range(1, len(meanings) + 1):
        names = [*np.unique(meanings[:k]).tolist(), -1]  # and one that was not seen
        log_p = np.array(
            [
                np.sum(np.where(meanings[:k] == a, np.log(c[:k]),
                                np.log((1 - c[:k]) / (len(names) - 1))))
                for a in names
            ]
        )  # fmt: skip
        p = np.exp(log_p - np.logaddexp.reduce(log_p))
        if p.max() >= SETTLED or k == len(meanings):
            mine = p[names.index(own)] if own in names else p[-1]
            return k, 1.0 - float(mine)
    return 0, 0.5


def _meanings(samples: Samples) -> tuple[IntArray, int]:
    """Meanings of the samples and of the judged answer."""
    *meanings, own = by_string([*samples.texts, samples.answer or ""]).tolist()
    return np.array(meanings, dtype=np.int64), int(own)


VOTES: dict[str, Callable[[Samples], Voted]] = {
    "adaptive_consistency": adaptive_consistency,
    "confidence_guided": confidence_guided,
}


def voted(name: str, queries: Queries) -> tuple[IntArray, FloatArray]:
    """Samples used and the score of each query."""
    found = [VOTES[name](one) for one in queries.samples]
    return np.array([k for k, _ in found]), np.array([u for _, u in found])
