"""Validation at the boundary: plain input in, float64 arrays (or a typed error) out."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from fusevlm.errors import InputError, MissingExtraError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def as_floats(value: Any, name: str) -> FloatArray:
    """``value`` as float64, or InputError when it is not numeric."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} is not numeric ({error}). Pass numbers, or an array of them."
        ) from error


def finite(array: FloatArray, name: str) -> FloatArray:
    """``array`` unchanged, or InputError naming the first entry that is NaN or infinite."""
    bad = ~np.isfinite(array)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" (first at index {first if len(first) > 1 else first[0]})" if first else ""
        raise InputError(
            f"{name} has {int(bad.sum())} NaN or infinite value(s){place}; expected finite "
            f"numbers. Drop those entries or repair the step that made them."
        )
    return array


def vector(value: Any, name: str, *, length: int | None = None) -> FloatArray:
    """A finite, non-empty, one-dimensional float64 array of ``length`` if that is given."""
    array = as_floats(value, name)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; expected one dimension.")
    if array.size == 0:
        raise InputError(f"{name} is empty; expected at least one value.")
    if length is not None and array.size != length:
        raise InputError(f"{name} has {array.size} value(s); expected {length}, one per query.")
    return finite(array, name)


def matrix(value: Any, name: str) -> FloatArray:
    """A finite, two-dimensional float64 array with at least one row and one column."""
    array = as_floats(value, name)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"{name} has shape {array.shape}; expected (rows, features) with at least one of each."
        )
    return finite(array, name)


def labels(value: Any, name: str = "wrong", *, length: int | None = None) -> BoolArray:
    """0/1 (or boolean) labels as a boolean array; 1 means the answer was wrong."""
    array = vector(value, name, length=length)
    strange = array[(array != 0) & (array != 1)]
    if strange.size:
        raise InputError(
            f"{name} must hold only 0 (right) and 1 (wrong); got {strange[0]:g}. "
            f"Turn graded correctness into 0/1 first, for example wrong = accuracy < 0.5."
        )
    return array.astype(np.bool_)


def both_classes(wrong: BoolArray, purpose: str) -> BoolArray:
    """``wrong`` unchanged, or InputError when it holds only right or only wrong answers."""
    if wrong.all() or not wrong.any():
        kind = "wrong" if wrong.all() else "right"
        raise InputError(
            f"all {wrong.size} labelled answers are {kind}; {purpose} needs both right and wrong "
            f"ones. Add labelled queries until both occur, or leave the labels out."
        )
    return wrong


def fraction(value: Any, name: str) -> float:
    """A float strictly between 0 and 1."""
    number = scalar(value, name)
    if not 0.0 < number < 1.0:
        raise InputError(f"{name} is {number:g}; expected a number strictly between 0 and 1.")
    return number


def scalar(value: Any, name: str) -> float:
    """A single finite float."""
    array = as_floats(value, name)
    if array.ndim != 0:
        raise InputError(f"{name} has shape {array.shape}; expected a single number.")
    return float(finite(array, name))


def positive(value: Any, name: str) -> float:
    """A single finite float above 0."""
    number = scalar(value, name)
    if number <= 0.0:
        raise InputError(f"{name} is {number:g}; expected a number above 0.")
    return number


def count(value: Any, name: str, *, least: int = 1) -> int:
    """An integer of at least ``least`` (a float such as 3.0 is accepted, 3.5 is not)."""
    number = scalar(value, name)
    if number != int(number) or number < least:
        raise InputError(f"{name} is {number:g}; expected a whole number of at least {least}.")
    return int(number)


def choice(value: Any, name: str, allowed: Sequence[str]) -> str:
    """One of the ``allowed`` strings, or InputError that lists them."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(map(repr, allowed))}.")
    return str(value)


def extra(module: str, needed_for: str, name: str) -> ModuleType:
    """Import an optional ``module`` or say which extra of fusevlm brings it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_for} needs {module}, which is not installed. "
            f"Run: pip install 'fusevlm[{name}]'"
        ) from error
