"""Counting rows per group, for many resamples at once.

A resample is a vector of row counts: ``counts[..., i]`` says how often row ``i`` was drawn. All
metrics work on counts of shape (..., N), so one call evaluates every resample of a bootstrap and
the data itself is the resample of all ones. Repeating rows and counting them is the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray

Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows with equal keys. ``key`` (G,) ascending; ``order`` (N,) sorts rows; ``start`` (G,)."""

    key: FloatArray
    order: IntArray
    start: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Right and wrong answers (..., G) at each distinct ``value`` (G,), values ascending."""

    value: FloatArray
    right: IntArray
    wrong: IntArray


def group(key: FloatArray) -> Groups:
    """Groups of equal ``key`` (N,). Cost O(N log N)."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    start = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return Groups(ordered[start], order, start)


def sum_by_group(
    groups: Groups, rows: np.ndarray[tuple[int, ...], np.dtype[Number]]
) -> np.ndarray[tuple[int, ...], np.dtype[Number]]:
    """Sums (..., G) of ``rows`` (..., N) over each group."""
    return _sums(groups, np.take(rows, groups.order, axis=-1))


def _sums(
    groups: Groups, ordered: np.ndarray[tuple[int, ...], np.dtype[Number]]
) -> np.ndarray[tuple[int, ...], np.dtype[Number]]:
    """The same of rows that are in the groups' order; where each is its own, those rows."""
    if len(groups.start) == len(groups.order):
        return ordered
    return np.add.reduceat(ordered, groups.start, axis=-1)


def total(rows: FloatArray | IntArray) -> FloatArray:
    """Sum (...) over the last axis, in float64 (exact for counts below 2**53)."""
    return np.asarray(rows.sum(axis=-1), dtype=np.float64)


def tally(score: FloatArray, wrong: BoolArray, counts: IntArray) -> Tally:
    """Right and wrong answers per distinct score in each resample ``counts`` (..., N)."""
    groups = group(score)
    ordered, label = np.take(counts, groups.order, axis=-1), wrong[groups.order]
    return Tally(
        groups.key, right=_sums(groups, ordered * ~label), wrong=_sums(groups, ordered * label)
    )
