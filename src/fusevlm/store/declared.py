"""Whether what was stored is of the kinds that its classes and readers declare.

A folder that somebody sent may hold anything under a right checksum: a text in the place of a
number, an array of another shape. Fields of dataclasses are compared with their annotations (types,
constraints, and axes of arrays: ``Annotated[FloatArray, Shape("N", "D")]``), columns of tables with
what their reader names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

from fusevlm.checks import Shape
from fusevlm.errors import ArtefactError

KINDS = {np.floating: "f", np.integer: "iu", np.bool_: "b"}  # of arrays, by the scalar declared
OTHERS = "*"  # all columns of a table, or all whose names end in what follows
Lengths = dict[str, int]  # of axes by name, as far as they are known


def built(cls: type, content: Mapping[str, Any]) -> Any:
    """A dataclass of stored fields, or an error that names the one that cannot be its."""
    lengths: Lengths = {}
    declared = _declared(cls)
    for name in content:
        if name not in declared:
            raise ArtefactError(f"a {cls.__name__} has no {name!r}.")
    for field in fields(cls):
        if field.name in content:
            value = content[field.name]
            if not fits(value, declared[field.name], lengths):
                raise ArtefactError(
                    f"{cls.__name__}.{field.name} is {_shown(value)}, which cannot be."
                )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ArtefactError(f"{cls.__name__}.{field.name} is missing.")
    return cls(**content)


@lru_cache(maxsize=256)
def _declared(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def fits(value: Any, kind: Any, lengths: Lengths | None = None) -> bool:
    """Whether ``value`` is what an annotation says; of what it does not say anything is fine.

    ``lengths`` are those of the axes that are known; others are added.
    """
    known = {} if lengths is None else lengths
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fits(value, inner[0], known) and _allowed(value, inner[1:], known)
    if origin in (Union, UnionType):
        return any(_fits_alone(value, one, known) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is np.ndarray:
        return _is_array(value, inner)
    if origin is tuple:
        return isinstance(value, tuple) and _items_fit(value, inner, known)
    if origin in (list, Sequence):
        plain = isinstance(value, list | tuple)
        return plain and all(fits(one, inner[0], known) for one in value)
    if is_typeddict(kind):
        return isinstance(value, Mapping) and _keys_fit(value, kind)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            fits(k, inner[0]) and fits(v, inner[1], known) for k, v in value.items()
        )
    return _is_plain(value, kind)


def _keys_fit(value: Mapping[str, Any], kind: Any) -> bool:
    """What a TypedDict says of a mapping; other keys are nobody's business."""
    hints = get_type_hints(kind)
    return kind.__required_keys__ <= value.keys() and all(
        fits(held, hints[name]) for name, held in value.items() if name in hints
    )


def _allowed(value: Any, declared: tuple[Any, ...], lengths: Lengths) -> bool:
    """By the constraints and the shape that are declared beside a type."""
    if value is None:
        return True
    shapes = [one for one in declared if isinstance(one, Shape)]
    others = [one for one in declared if hasattr(one, "accepts")]
    good = not others or any(one.accepts(value) for one in others)
    return good and all(shape.fits(value, lengths) for shape in shapes)


def _fits_alone(value: Any, kind: Any, lengths: Lengths) -> bool:
    """One of several kinds; what is learnt of axes counts only where it is that one."""
    tried = dict(lengths)
    found = fits(value, kind, tried)
    if found:
        lengths.update(tried)
    return found


def _is_plain(value: Any, kind: Any) -> bool:
    if kind in (None, NoneType):
        return value is None
    if kind is float:  # a whole one may have been stored without its point
        return type(value) in (float, int)
    if kind in (int, str, bool):
        return type(value) is kind
    if kind in (dict, list, tuple):
        return isinstance(value, kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return isinstance(value, kind)
    return True


def _is_array(value: Any, inner: tuple[Any, ...]) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    (scalar,) = get_args(inner[1]) or (Any,)
    if scalar is np.float64:  # or single precision, to save space; half has no linear algebra
        return value.dtype in (np.float64, np.float32)
    for base, kinds in KINDS.items():
        if isinstance(scalar, type) and issubclass(scalar, base):
            return value.dtype.kind in kinds
    return value.dtype.kind in "fiub"


def _items_fit(value: tuple[Any, ...], inner: tuple[Any, ...], lengths: Lengths) -> bool:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(fits(one, inner[0], lengths) for one in value)
    pairs = zip(value, inner, strict=False)
    return len(value) == len(inner) and all(fits(one, kind, lengths) for one, kind in pairs)


def need_columns(table: Any, kinds: Mapping[str, Any], where: object) -> None:
    """Refuse an Arrow table without the columns that its reader names, or with other cells.

    ``kinds`` are annotations such as ``list[str] | None``; that of ``*.u`` is of all columns whose
    names end so. Types and counts of gaps are compared, not cells: that costs nothing.
    """
    names = table.column_names
    if len(set(names)) < len(names):
        raise ArtefactError(f"{where} has two columns of one name.")
    endings = {name[1:]: kind for name, kind in kinds.items() if name.startswith(OTHERS)}
    rest = {n: kind for n in names for ending, kind in endings.items() if n.endswith(ending)}
    named = {name: kind for name, kind in kinds.items() if not name.startswith(OTHERS)}
    for name, kind in {**rest, **named}.items():
        if name not in names:
            raise ArtefactError(f"{where} has no column {name!r}.")
        if not all(_cells_fit(chunk, kind) for chunk in table.column(name).chunks):
            kind_of = table.schema.field(name).type
            raise ArtefactError(f"{where}: the column {name!r} ({kind_of}) holds what it cannot.")


def _cells_fit(column: Any, kind: Any) -> bool:
    """Whether all cells of an Arrow array are what an annotation says."""
    from pyarrow import types

    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in inner if one is not NoneType)
        return _cells_fit(column.drop_null(), kind)
    if column.null_count:
        return False
    if types.is_null(column.type):
        return len(column) == 0
    if get_origin(kind) is list:
        listed = types.is_list(column.type) or types.is_large_list(column.type)
        return bool(listed) and _cells_fit(column.flatten(), inner[0])
    tests = {
        str: (types.is_string, types.is_large_string),
        int: (types.is_integer,),
        float: (types.is_floating, types.is_integer),
        bool: (types.is_boolean,),
    }
    return any(test(column.type) for test in tests[kind])


def need_fields(
    found: Mapping[str, Any], kinds: Mapping[str, Any], where: object, cure: str
) -> None:
    """Refuse a JSON object of our own without what its reader names, or with something else."""
    for name, kind in kinds.items():
        if name not in found or not fits(found[name], kind):
            held = _shown(found[name]) if name in found else "missing"
            raise ArtefactError(f"{where}: {name!r} is {held}, which cannot be. {cure}")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"
