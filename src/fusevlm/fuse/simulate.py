"""Simulated queries with a known u: the generative model of the paper, for demos and tests.

Nothing here imitates a real VLM; every use must say that it is a simulation.
"""

from __future__ import annotations

import numpy as np

from fusevlm.types import Queries, Samples


def queries(
    n_queries: int = 500,
    *,
    n_samples: int = 20,
    d: int = 64,
    prior_correlation: float = 0.5,
    spread: float = 0.5,
    base_rate: float = 0.3,
    seed: int = 0,
) -> Queries:
    """Draw s → u → (responses, log-probabilities, wrong); the true u is ``columns["u"]``.

    u = spread·(ρ·s + √(1−ρ²)·ε) with s ~ N(0, 1); responses r_i ~ N(0, e^u·Σ_r) with a power-law
    Σ_r of unit mean variance (Def. 4.2), the same one for every seed; token log-probabilities fall
    with u. Errors rise with u and, directly, with s: inputs can be ambiguous in a way that no
    response shows.
    """
    from scipy.special import ndtri

    rng = np.random.default_rng(seed)
    s = rng.standard_normal(n_queries)
    rho = prior_correlation
    standard = rho * s + np.sqrt(1 - rho**2) * rng.standard_normal(n_queries)
    u = spread * standard
    spectrum = 1.0 / np.arange(1, d + 1)
    rotation = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0]
    root = rotation * np.sqrt(spectrum / spectrum.mean())
    # errors follow u, an ambiguity of the input that only s sees, and luck
    causes = 0.6 * standard + 0.4 * s + 0.6 * rng.standard_normal(n_queries)
    wrong = causes / causes.std() > ndtri(1 - base_rate)
    samples = []
    for q in range(n_queries):
        rows = np.exp(u[q] / 2) * rng.standard_normal((n_samples, d)) @ root.T
        surprise = np.exp(0.6 * standard[q] + 0.5 * rng.standard_normal(n_samples + 1) - 1.0)
        samples.append(
            Samples(
                texts=[f"response {i}" for i in range(n_samples)],
                token_logprobs=[[-float(x), -0.05] for x in surprise[:-1]],
                embeddings=rows,
                answer="answer",
                answer_logprobs=[-float(surprise[-1]), -0.05],
            )
        )
    ids = [str(q) for q in range(n_queries)]
    return Queries(ids, samples, wrong, prior={"s": s}, columns={"u": u})
