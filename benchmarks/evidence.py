"""Evidence at the paper's size: low-rank against exact whitening, Gram against dense log-det."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.fft import dct
from scipy.stats import spearmanr

from benchmarks.timing import Row, clock
from fusevlm.maths.covariance import ResponseShape
from fusevlm.maths.evidence import gram_evidence
from fusevlm.maths.whitening import Whitener, exact_whitening, low_rank_whitening

RANKS = (64, 128)
SPREADS = (0.0, 0.1, 0.3)  # standard deviations of u over queries; 0 is noise alone


def run(n_queries: int = 1000, n: int = 50, d: int = 5120) -> list[Row]:
    return [*whitening_rows(n_queries, n, d), log_det_row()]


def whitening_rows(n_queries: int, n: int, d: int) -> list[Row]:
    """Fit plus evidence of all queries under a full-rank power-law covariance (exponent 1)."""
    rng = np.random.default_rng(0)
    spectrum = 1.0 / np.arange(1, d + 1)
    spectrum /= spectrum.mean()
    signs = rng.choice([-1.0, 1.0], d)
    unit = rng.standard_normal(n_queries)

    def rotate(x: np.ndarray) -> np.ndarray:
        """A fixed orthogonal mixing of all coordinates, cheap enough to draw many rows."""
        return dct(x * signs, norm="ortho", axis=-1)

    root = rotate(np.diag(np.sqrt(spectrum)))
    shape = ResponseShape(np.zeros(d), root.T @ root, 1.0, 0.0, n_queries * n, n_queries)

    def timed(fit: Callable[[], Whitener]) -> tuple[np.ndarray, float]:
        with clock() as fitting:
            whitener = fit()
        draws = np.random.default_rng(1)
        seconds, values = fitting.seconds, []
        for _ in range(n_queries):
            rows = rotate(draws.standard_normal((n, d)) * np.sqrt(spectrum))
            with clock() as one:
                values.append(gram_evidence(whitener.gram(rows), d).value)
            seconds += one.seconds
        return np.array(values), seconds

    exact, exact_seconds = timed(lambda: exact_whitening(shape))
    rows = []
    for rank in RANKS:
        low, seconds = timed(lambda rank=rank: low_rank_whitening(shape, rank))
        rows.append(
            Row(
                f"evidence of {n_queries} queries, n={n}, d={d}, fit included: "
                f"low rank {rank} against exact",
                exact_seconds / seconds, "x faster", 10.0,
                f"{seconds:.1f} s against {exact_seconds:.1f} s",
            )
        )  # fmt: skip
        for spread in SPREADS:
            # scaling all responses of a query by e^{u/2} adds exactly n·u to either evidence
            shift = n * spread * unit
            agreement = float(spearmanr(exact + shift, low + shift).statistic)
            target = 0.999 if spread == SPREADS[-1] else None
            name = f"  Spearman of the two, u with standard deviation {spread}"
            rows.append(Row(name, agreement, "", target, ""))
    return rows


def log_det_row(k: int = 10, d: int = 4096) -> Row:
    """K×K Gram log-det against the d×d form of EigenScore-like code."""
    E = np.random.default_rng(2).standard_normal((k, d))
    jitter = 1e-3
    with clock() as dense:
        whole = np.linalg.slogdet(E.T @ E + jitter * np.eye(d))[1] - (d - k) * np.log(jitter)
    repeats = 200
    with clock() as gram:
        for _ in range(repeats):
            small = gram_evidence(E @ E.T, d, jitter=0.0).value
    # det(EᵀE + εI) = ε^{d−K}·det(EEᵀ + εI): the two agree up to the jitter
    assert abs(whole - small) < 1e-2 * k
    per_call = gram.seconds / repeats
    return Row(
        f"log-det of K={k}, d={d}: Gram against dense d×d",
        dense.seconds / per_call, "x faster", 50.0,
        f"{per_call * 1e3:.2f} ms against {dense.seconds * 1e3:.0f} ms",
    )  # fmt: skip
