"""What callers pass to Fuse, checked and put into one table of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.types import Queries, Samples

# the keywords of fit and score, and where a table of queries has them
TABLE = {n: n for n in ("wrong", "inputs", "views", "units")} | {"s": "prior", "extra": "evidence"}


def queries_of(
    samples: Any,
    *,
    wrong: Any = None,
    s: Any = None,
    inputs: Any = None,
    views: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    statistics: Sequence[str] = (),
    units: Sequence[str] | None = None,
) -> Queries:
    """The arguments of fit and score as one table; ``statistics`` are the names of the fit."""
    if isinstance(samples, Queries):
        given = {
            "wrong": wrong,
            "s": s,
            "inputs": inputs,
            "views": views,
            "extra": extra,
            "units": units,
        }
        for name, value in given.items():
            if value is not None:
                raise InputError(
                    f"{name} was given beside a table of queries, which has its own. Change the "
                    f"table: dataclasses.replace(queries, {TABLE[name]}=...)."
                )
        return samples
    if isinstance(samples, Samples):
        raise InputError("expected a list of Samples, one per query; got a single one: [samples].")
    rows = list(samples)
    if not rows:
        raise InputError("samples is empty; expected one Samples per query.")
    for index, row in enumerate(rows):
        if not isinstance(row, Samples):
            raise InputError(
                f"samples[{index}] is a {type(row).__name__}; expected fusevlm.Samples."
            )
    size = len(rows)
    s, extra = _named(s), _named(extra)
    if inputs is not None and not isinstance(inputs, Mapping):
        inputs = {"inputs": inputs}
    return Queries(
        [str(index) for index in range(size)],
        rows,
        None if wrong is None else _labels(wrong, size),
        prior=_prior(s, size, statistics),
        evidence={
            name: checks.vector(values, f"extra[{name!r}]", length=size, gaps=True)
            for name, values in (extra or {}).items()
        },
        inputs={k: checks.matrix(v, f"inputs[{k!r}]") for k, v in (inputs or {}).items()},
        views={k: _view(v, k) for k, v in (views or {}).items()},
        units=units,
    )


def calibration_of(samples: Any, **given: Any) -> Queries:
    """:func:`queries_of` for labelled use: tables that are divided and labels as s are refused."""
    queries = queries_of(samples, **given)
    if isinstance(samples, Queries) and samples.fit is not None:
        raise InputError(
            "these queries are divided into calibration and test; choose: queries.split()[0]."
        )
    s = given["s"]
    if s is not None and not isinstance(_named(s), Mapping):
        for values in queries.prior.values():
            if set(np.unique(values)) == {0.0, 1.0}:
                raise InputError(
                    "s holds only 0 and 1, which looks like labels: pass them as wrong=... . If s "
                    "really is binary, pass it as s={'name': values}."
                )
    return queries


def _labels(wrong: Any, size: int) -> BoolArray:
    try:
        return checks.labels(wrong, length=size)
    except InputError as error:
        if "only 0" not in str(error):
            raise
        raise InputError(
            f"{error} If it is the prior statistic: labels come second, fit(samples, wrong, s=s)."
        ) from None


def _named(values: Any) -> Any:
    """The columns of a frame, or of an Arrow table, by name; anything else as it is."""
    names = getattr(values, "column_names", getattr(values, "columns", None))
    return values if names is None else {str(name): values[name] for name in names}


def _prior(s: Any, size: int, statistics: Sequence[str]) -> dict[str, FloatArray]:
    """Prior statistics by name; a single one without a name takes that of the fit."""
    if s is None:
        return {}
    if isinstance(s, Mapping):
        return {k: checks.vector(v, f"s[{k!r}]", length=size) for k, v in s.items()}
    columns = checks.as_floats(s, "s")
    if columns.ndim == 2 and columns.shape[1] > 1:
        return {
            f"s{index}": checks.vector(column, f"s[:, {index}]", length=size)
            for index, column in enumerate(columns.T)
        }
    name = statistics[0] if len(statistics) == 1 else "s"
    one = columns[:, 0] if columns.ndim == 2 and columns.size else columns
    return {name: checks.vector(one, "s", length=size)}


def _view(values: Any, name: str) -> Any:
    """Numbers [N, D] (or [N]), or texts."""
    if not isinstance(values, np.ndarray) and all(isinstance(value, str) for value in values):
        return list(values)
    rows = checks.as_floats(values, f"views[{name!r}]")
    return checks.matrix(rows[:, None] if rows.ndim == 1 else rows, f"views[{name!r}]")


def groups_of(groups: Sequence[str] | None, size: int) -> list[str] | None:
    """Names of groups, one per query."""
    if groups is None:
        return None
    if len(groups) != size:
        raise InputError(f"groups has {len(groups)} entries; expected {size}, one per query.")
    return [str(group) for group in groups]
