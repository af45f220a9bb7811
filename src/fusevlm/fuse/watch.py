"""Which columns drift is looked for in, and a monitor that takes queries as ``score`` does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.displays import Displayed
from fusevlm.fuse.drift import LEAST_REFERENCE, Drift, Reference, check
from fusevlm.fuse.model import Model
from fusevlm.fuse.monitor import Monitor, MonitorState
from fusevlm.fuse.results import Scores
from fusevlm.types import Queries

logger = logging.getLogger(__name__)

LEAST_BATCH = 20  # units in which score looks for drift
WARNING_LEVEL, PERMUTATIONS = 0.01, 199
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
    first: dict[str, int] = {}
    for row, unit in enumerate(units):
        first.setdefault(unit, row)
    return list(first.values())


def batch_drift(
    reference: Reference, model: Model, queries: Queries, scores: Scores, **options: Any
) -> Drift:
    """Whether scored queries are like the reference; of each unit the first is compared."""
    rows = first_of_units(queries.units or queries.ids)
    new = {name: column[rows] for name, column in columns_of(model, queries, scores).items()}
    return check(reference, new, **options)


def warn_of_drift(reference: Reference, model: Model, queries: Queries, scores: Scores) -> None:
    """Warn once per batch at most; of batches without drift one in a hundred is warned of."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    if len(set(queries.units or ())) < LEAST_BATCH or len(reference) < LEAST_REFERENCE:
        return
    if any(name not in columns_of(model, queries, scores) for name in reference.names):
        return  # scored without s or inputs, which is said elsewhere
    found = batch_drift(
        reference, model, queries, scores, level=WARNING_LEVEL, permutations=PERMUTATIONS
    )
    if found.drifted:
        logger.warning(
            "drift: these queries are not like those of the calibration (p = %.2g; one batch in %d "
            "without drift is called so): %s. P(wrong) and guarantees may not hold for them; label "
            "some and call recalibrate.",
            found.p_value,
            round(1 / WARNING_LEVEL),
            "; ".join(f"{part.name} {part.direction}" for part in found.moved[:3]),
        )


class StreamMonitor(Displayed):
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

    def _title(self) -> str:
        return self.state._title()

    def _facts(self) -> dict[str, str]:
        return self.state._facts()
