"""Which temperature each of the n samples is drawn at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

MCT_GRID = (0.1, 0.325, 0.55, 0.775, 1.0)


def stratified(n: int, *, grid: Sequence[float] = MCT_GRID, seed: int = 0) -> FloatArray:
    """Monte-Carlo temperature (Cecere et al.): each grid value equally often, shuffled.

    When n is not a multiple of the grid, the surplus goes to randomly chosen grid values.
    """
    n = checks.count(n, "n", least=0)
    values = _positive(grid)
    rng = np.random.default_rng([seed, n])
    surplus = rng.permutation(values)[: n % len(values)]
    return np.asarray(
        rng.permutation(np.concatenate([np.repeat(values, n // len(values)), surplus]))
    )


def uniform(n: int, *, low: float = 0.1, high: float = 1.0, seed: int = 0) -> FloatArray:
    """One temperature per sample from U(low, high)."""
    n = checks.count(n, "n", least=0)
    low, high = _positive([low, high])
    if high < low:
        raise InputError(f"temperatures run from {low:g} to {high:g}; expected low ≤ high.")
    return np.random.default_rng([seed, n]).uniform(low, high, n)


def constant(n: int, temperature: float = 1.0) -> FloatArray:
    """The same temperature for all samples."""
    return np.full(checks.count(n, "n", least=0), checks.positive(temperature, "temperature"))


def parse(text: str, n: int, seed: int = 0) -> FloatArray:
    """Temperatures from a word of the command line: ``mct``, ``uniform`` or a number."""
    if text == "mct":
        return stratified(n, seed=seed)
    if text == "uniform":
        return uniform(n, seed=seed)
    try:
        return constant(n, float(text))
    except ValueError as error:
        raise InputError(
            f"temperature is {text!r}; expected 'mct', 'uniform' or a number above 0."
        ) from error


def _positive(values: Sequence[float]) -> FloatArray:
    array = checks.vector(values, "temperatures")
    if float(array.min()) <= 0:
        raise InputError(f"temperatures must be above 0; the lowest is {array.min():g}.")
    return array
