"""Moments of the log-determinant of a standard Wishart matrix."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fusevlm import checks
from fusevlm.errors import InputError


def wishart_moments(d: int, n: int) -> tuple[float, float]:
    """Mean ``a0`` and variance ``v`` of logdet Λ for Λ ~ Wishart_n(I, d), n ≤ d.

    Bartlett's decomposition makes det Λ a product of independent χ² variables with
    d, d−1, …, d+1−n degrees of freedom (proof of Thm 4.5), so

        a0(d, n) = Σ_{j=1..n} ψ((d+1−j)/2) + n·ln 2
        v(d, n)  = Σ_{j=1..n} ψ₁((d+1−j)/2)

    The sum has n terms of like sign for any d of practical size, so it is evaluated as it stands.
    Cost O(n), cached. For more samples than features the scatter to use is the d×d one: call
    ``wishart_moments(n, d)`` and use slope d (see :func:`scatter_moments`).
    """
    d = checks.count(d, "d")
    n = checks.count(n, "n")
    if n > d:
        raise InputError(
            f"wishart_moments got n={n} samples in d={d} dimensions; the n×n scatter is singular "
            f"for n > d. Use the d×d scatter: wishart_moments({n}, {d}) with slope d={d}."
        )
    return _moments(d, n)


def scatter_moments(n: int, d: int) -> tuple[float, float]:
    """``(a0, v)`` of the scatter that has full rank: n×n when n ≤ d, d×d when n > d.

    Differs from the paper: it assumes n ≤ d silently. RRᵀ and RᵀR share their non-zero
    eigenvalues, and RᵀR ~ Wishart_d(I, n), so the two roles are swapped.
    """
    return wishart_moments(max(n, d), min(n, d))


@lru_cache(maxsize=4096)
def _moments(d: int, n: int) -> tuple[float, float]:
    from scipy.special import digamma, zeta

    half = (d + 1 - np.arange(1, n + 1)) / 2
    a0 = float(np.sum(digamma(half))) + n * float(np.log(2.0))
    v = float(np.sum(zeta(2.0, half)))  # ψ₁(x) = ζ(2, x)
    return a0, v
