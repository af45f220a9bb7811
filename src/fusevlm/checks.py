"""Validation at the boundary: plain input in, float64 arrays (or a typed error) out.

Options are declared once, beside their type: ``rank: Annotated[int, Whole(1)] = 128``. A value must
fit one of its declarations; :func:`options` checks all fields of a dataclass.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, Protocol, get_type_hints

import numpy as np
import numpy.typing as npt

from fusevlm.errors import InputError, MissingExtraError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def as_floats(value: Any, name: str) -> FloatArray:
    """``value`` as float64, or InputError when it is not numeric."""
    try:
        if getattr(getattr(value, "dtype", None), "kind", "") == "c":
            raise TypeError("they are complex")
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
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


def vector(value: Any, name: str, *, length: int | None = None, gaps: bool = False) -> FloatArray:
    """A finite, non-empty, one-dimensional float64 array of ``length`` if that is given.

    With ``gaps`` some of it may be NaN: not known of that query.
    """
    array = as_floats(value, name)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; expected one dimension.")
    if array.size == 0:
        raise InputError(f"{name} is empty; expected at least one value.")
    if length is not None and array.size != length:
        raise InputError(f"{name} has {array.size} value(s); expected {length}, one per query.")
    if gaps:
        finite(array[~np.isnan(array)], name)
        return array
    return finite(array, name)


def whole_text(text: str) -> str:
    """``text`` of whole characters: halves of one (single surrogates) become U+FFFD.

    No file and no tokenizer takes them, and JSON may hold them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def same_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse names that the fit did not have, and the lack of those it had."""
    given, known = list(given), list(known)
    for name in given:
        if name not in known:
            raise InputError(
                f"{what} holds {name!r}, which the fit did not have.{hint(name, known)}"
            )
    for name in known:
        if name not in given:
            raise InputError(f"{what} lacks {name!r}, which the fit had.{hint(name, given)}")


def matrix(value: Any, name: str) -> FloatArray:
    """A finite, two-dimensional float64 array with at least one row and one column."""
    array = as_floats(value, name)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"{name} has shape {array.shape}; expected (rows, features) with at least one of each."
        )
    return finite(array, name)


def states(value: Any, name: str) -> npt.NDArray[np.floating]:
    """:func:`matrix` in the precision it comes in: float16 and float32 stay what they are."""
    dtype = getattr(value, "dtype", None)
    if dtype not in (np.float16, np.float32) or getattr(value, "ndim", 0) != 2 or 0 in value.shape:
        return matrix(value, name)
    array: npt.NDArray[np.floating] = np.asarray(value)
    if not np.isfinite(array).all():
        matrix(array, name)  # names the first one
    return array


def unit_rows(rows: FloatArray, name: str) -> FloatArray:
    """``rows`` [n, d] at length 1 each, or InputError naming one that has no direction."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if float(norms.min()) == 0.0:
        raise InputError(
            f"row {int(norms.argmin())} of {name} is all zeros and has no direction. "
            f"Repair the step that made these hidden states."
        )
    return np.asarray(rows / norms)


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


def hint(name: Any, known: Iterable[Any]) -> str:
    """The nearest of the known names as a question, or all of them."""
    words = [str(word) for word in known]
    near = difflib.get_close_matches(str(name), words, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known are: {', '.join(words) or 'none'}."


def known(name: str, names: Iterable[str], what: str) -> str:
    """``name`` if it is among the known ``names``, or InputError with the nearest."""
    names = list(names)
    if name not in names:
        raise InputError(f"{what} {name!r} is not known.{hint(name, names)}")
    return name


class Constraint(Protocol):
    """What an option may be: a test, and the test in words."""

    def accepts(self, value: Any) -> bool: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, init=False)
class OneOf:
    """One of some words."""

    allowed: tuple[str, ...]

    def __init__(self, *allowed: str) -> None:
        object.__setattr__(self, "allowed", allowed)

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.allowed

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.allowed))}"


@dataclass(frozen=True)
class Number:
    """A finite number between ``low`` and ``high``, which count unless they are ``open``."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            return False
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        size: Any = abs(value)  # of a whole number that no float holds, too
        return bool(above and below and size <= sys.float_info.max)

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = f"{'below' if self.open_high else 'at most'} {self.high:g}"
        limits = [low] * (self.low > -math.inf) + [high] * (self.high < math.inf)
        return " ".join(["a number", *[" and ".join(limits)][: len(limits)]])


@dataclass(frozen=True)
class Whole:
    """A whole number of at least ``low``."""

    low: int = 1

    def accepts(self, value: Any) -> bool:
        return Number(self.low).accepts(value) and float(value) == int(value)

    def __str__(self) -> str:
        return f"a whole number of at least {self.low}"


@dataclass(frozen=True)
class Device:
    """A device by the name torch gives it."""

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and bool(re.fullmatch(r"cpu|mps|(cuda|xpu)(:\d+)?", value))

    def __str__(self) -> str:
        return "a device: cpu, cuda, cuda:1, mps or xpu"


@dataclass(frozen=True, init=False)
class Shape:
    """The axes of an array by their names, or that of a list; axes of one name are equally long.

    A number is itself, and ``_`` any.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def fits(self, value: Any, lengths: dict[str, int]) -> bool:
        """Whether the axes are as long as is known; what is not known yet is noted."""
        sizes = value.shape if isinstance(value, np.ndarray) else (len(value),)
        return len(sizes) == len(self.names) and all(
            size == (int(name) if name.isdigit() else lengths.setdefault(name, size))
            for name, size in zip(self.names, sizes, strict=True)
            if name != "_"
        )


POSITIVE = Number(0.0, open_low=True)
FRACTION = Number(0.0, 1.0, open_low=True, open_high=True)  # strictly between 0 and 1
SHARE = Number(0.0, 1.0, open_high=True)  # from 0 to below 1


def options(value: Any, prefix: str = "") -> None:
    """Check every field of a dataclass against what its annotation declares.

    A field passes if any of its constraints accepts it; None passes where the type allows it.
    """
    hints = get_type_hints(type(value), include_extras=True)
    for field in fields(value):
        declared = getattr(hints[field.name], "__metadata__", ())
        found = getattr(value, field.name)
        if not declared or (found is None and type(None) in _alternatives(hints[field.name])):
            continue
        if not any(constraint.accepts(found) for constraint in declared):
            words = ", or ".join(str(constraint) for constraint in declared)
            raise InputError(f"{prefix}{field.name} is {found!r}; expected {words}.")


def changed(base: Any, changes: dict[str, Any], what: str) -> Any:
    """A dataclass with some options changed; an unknown name is refused with the nearest."""
    from dataclasses import replace

    names = [field.name for field in fields(base)]
    for name in changes:
        if name not in names:
            raise InputError(f"unknown {what} {name!r}.{hint(name, names)}")
    return replace(base, **changes)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    inner = getattr(annotation, "__origin__", annotation)
    return getattr(inner, "__args__", (inner,))


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
