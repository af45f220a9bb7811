"""Are the queries that come in still like those of the calibration? The monitor of a server.

Only queries that were asked as the calibration's were count, and of those about one picture the
first: others would not be exchangeable with them. The capital of the best bet is at any time at
least 1/p with probability p at most, so 1/(the highest capital so far) is a p-value that may be
looked at whenever one likes (Ville's inequality). After :data:`WINDOW` queries the monitor begins
anew: it remembers all that it has seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from fusevlm.errors import FuseError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.watch import StreamMonitor
from fusevlm.types import Queries

WINDOW = 10_000
LEVEL = 0.01  # of windows without drift, so many give an alarm
UNITS = 20_000  # that are remembered


@dataclass(frozen=True)
class DriftState:
    """Where the monitor stands: queries seen in this window, p-value, alarm, all alarms so far."""

    seen: int
    p_value: float
    alarm: bool
    alarms: int
    worst: str


class DriftWatch:
    """A monitor that is told of every query and counts those it may."""

    def __init__(self, fuse: Fuse) -> None:
        self._lock = threading.Lock()
        self._units: OrderedDict[str, None] = OrderedDict()
        self._p_value, self._alarms = 1.0, 0
        self._monitor: StreamMonitor | None = None
        with suppress(FuseError, AssertionError):  # a fit that kept too few queries to compare with
            self._monitor = fuse.monitor(level=LEVEL)

    def see(self, unit: str, table: Queries) -> bool:
        """Look at one query, unless one of its unit was seen before; whether it gives an alarm."""
        if self._monitor is None:
            return False
        with self._lock:
            if unit in self._units:
                self._units.move_to_end(unit)
                return False
            self._units[unit] = None
            if len(self._units) > UNITS:
                self._units.popitem(last=False)
            if self._monitor.state.n >= WINDOW:
                self._monitor.reset()
                self._p_value = 1.0
            before = self._monitor.state.alarm
            with suppress(
                FuseError
            ):  # a query without what the reference has is nothing to compare
                self._monitor.update(table)
            state = self._monitor.state
            alarm = state.alarm and not before
            self._alarms += alarm
            self._p_value = min(self._p_value, 1.0 / max(state.capital, 1.0))
            return alarm

    @property
    def state(self) -> DriftState | None:
        """Where it stands; None where there is nothing to compare with."""
        if self._monitor is None:
            return None
        with self._lock:
            now = self._monitor.state
            return DriftState(now.n, self._p_value, now.alarm, self._alarms, now.worst)
