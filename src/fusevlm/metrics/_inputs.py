"""What the public metrics do before and after the maths: check the input, refuse a NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError, UndefinedMetricError

BOTH_CLASSES = "at least one right and one wrong answer"


def scored(u: Any, wrong: Any, name: str = "u") -> tuple[FloatArray, BoolArray]:
    """Uncertainty scores and their 0/1 labels, finite and equally long."""
    score = checks.vector(u, name)
    return score, checks.labels(wrong, length=score.size)


def predicted(p: Any, wrong: Any) -> tuple[FloatArray, BoolArray]:
    """Predicted probabilities of being wrong, each in [0, 1], and their 0/1 labels."""
    score, label = scored(p, wrong, "p")
    outside = np.flatnonzero((score < 0.0) | (score > 1.0))
    if outside.size:
        raise InputError(
            f"p has {outside.size} value(s) outside [0, 1] (first {score[outside[0]]:g} at index "
            f"{outside[0]}); expected predicted probabilities of being wrong. Calibrate the "
            f"scores first, or use a metric that only ranks, such as auroc."
        )
    return score, label


def rate(value: Any, name: str) -> float:
    """A float from 0 to 1, both ends allowed."""
    number = checks.scalar(value, name)
    if not 0.0 <= number <= 1.0:
        raise InputError(f"{name} is {number:g}; expected a number from 0 to 1.")
    return number


def on_data(
    counts_form: Callable[..., FloatArray],
    score: FloatArray,
    wrong: BoolArray,
    needs: str = BOTH_CLASSES,
    **options: Any,
) -> float:
    """The metric of the data itself, from ``<name>_counts`` at all ones; an error where NaN."""
    value = counts_form(score, wrong, every_row_once(wrong), **options)
    return defined(value, counts_form.__name__.removesuffix("_counts"), wrong, needs)


def every_row_once(wrong: BoolArray) -> IntArray:
    """The resample that is the data itself: shape (N,), all ones."""
    return np.ones(wrong.size, dtype=np.int64)


def defined(value: FloatArray, name: str, wrong: BoolArray, needs: str = BOTH_CLASSES) -> float:
    """``value`` as a float, or UndefinedMetricError saying what was missing if it is NaN."""
    number = float(value)
    if math.isnan(number):
        raise UndefinedMetricError(
            f"{name} has no value here: it needs {needs}; got {wrong.size} answer(s), "
            f"{int(wrong.sum())} of them wrong. Add labelled queries, or leave {name} out."
        )
    return number
