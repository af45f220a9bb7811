"""Which columns drift is looked for in, and a monitor that takes queries as ``score`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.fuse.drift import Monitor, MonitorState, Reference
from fusevlm.fuse.model import Model
from fusevlm.fuse.results import Scores
from fusevlm.types import Queries

SAME_RANKS = ("log_surprisal",)  # ranks as the surprisal


def columns_of(model: Model, queries: Queries, scores: Scores) -> dict[str, FloatArray]:
    """Evidence, prior statistics and leading components of the inputs, by name."""
    found = {name: v for name, v in scores.parts.items() if name not in SAME_RANKS}
    found |= {name: np.asarray(v) for name, v in queries.prior.items()}
    for name, projection in model.components.items():
        if name in queries.inputs:
            rows = projection(np.asarray(queries.inputs[name], dtype=np.float64))
            found |= {f"{name} input {k + 1}": column for k, column in enumerate(rows.T)}
    return found


def reference_of(columns: Mapping[str, FloatArray], queries: Queries, scores: Scores) -> Reference:
    """Columns of calibration queries, one row per unit; pairs are a statistic with an evidence."""
    evidence = [name for name in scores.parts if name in columns]
    pairs = tuple(product(queries.prior, evidence))
    rows = first_of_units(queries.units or queries.ids)
    return Reference(tuple(columns), np.column_stack(list(columns.values()))[rows], pairs)


def first_of_units(units: Sequence[str]) -> list[int]:
    """The first row of each unit: those are exchangeable."""
    return list({unit: row for row, unit in reversed(list(enumerate(units)))}.values())[::-1]


class StreamMonitor:
    """Watches a stream of queries for drift; may be looked at after every one of them.

    >>> monitor = fuse.monitor()                                 # doctest: +SKIP
    >>> monitor.update(samples, s=s).alarm                       # doctest: +SKIP
    """

    def __init__(self, monitor: Monitor, columns: Callable[..., dict[str, FloatArray]]) -> None:
        self._monitor, self._columns = monitor, columns

    def update(self, samples: Any, **given: Any) -> MonitorState:
        """Look at one or more queries, with the keywords of ``Fuse.score``."""
        return self._monitor.update(self._columns(samples, **given))

    @property
    def state(self) -> MonitorState:
        """Where it stands."""
        return self._monitor.state

    def reset(self) -> None:
        """Forget the stream, and the alarm."""
        self._monitor.reset()
