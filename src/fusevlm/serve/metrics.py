"""What a server counts, as Prometheus reads it: counters, histograms and gauges in plain text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name: (kind, what it is, upper bounds of a histogram)
KNOWN: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "fusevlm_requests_total": ("counter", "Requests by path and status.", ()),
    "fusevlm_request_seconds": ("histogram", "Seconds from request to reply, by path.", SECONDS),
    "fusevlm_faults_total": ("counter", "Requests that met with a fault, by its code.", ()),
    "fusevlm_decisions_total": ("counter", "Answers by decision.", ()),
    "fusevlm_abstentions_total": ("counter", "Abstentions by reason.", ()),
    "fusevlm_samples": ("histogram", "Answers that were generated for each query.", COUNTS),
    "fusevlm_batch_queries": ("histogram", "Queries that were asked together.", COUNTS),
    "fusevlm_feedback_total": ("counter", "Feedback that was kept, by what it says.", ()),
    "fusevlm_queue_length": ("gauge", "Queries that wait.", ()),
    "fusevlm_ready": ("gauge", "1 where queries are taken.", ()),
    "fusevlm_drift_p_value": (
        "gauge", "P-value of no drift since the monitor began; valid whenever it is read.", (),
    ),
    "fusevlm_drift_queries": ("gauge", "Queries the drift monitor has seen.", ()),
    "fusevlm_drift_alarm": ("gauge", "1 where the monitor says that the queries drifted.", ()),
    "fusevlm_drift_alarms_total": ("counter", "Alarms of the drift monitor.", ()),
}  # fmt: skip
Labels = tuple[tuple[str, str], ...]


@dataclass
class Histogram:
    """How often a value fell below each bound, the sum of all, and how many there were."""

    bounds: tuple[float, ...]
    below: list[int] = field(init=False)
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.below = [0] * len(self.bounds)

    def add(self, value: float) -> None:
        """Count a value."""
        place = bisect_left(self.bounds, value)
        for k in range(place, len(self.bounds)):
            self.below[k] += 1
        self.total += value
        self.count += 1


class Metrics:
    """Numbers by name and labels; threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def count(self, name: str, by: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        assert KNOWN[name][0] == "counter"
        with self._lock:
            found = self._counters.setdefault(name, {})
            key = tuple(sorted(labels.items()))
            found[key] = found.get(key, 0.0) + by

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        kind, _, bounds = KNOWN[name]
        assert kind == "histogram"
        with self._lock:
            found = self._histograms.setdefault(name, {})
            found.setdefault(tuple(sorted(labels.items())), Histogram(bounds)).add(value)

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of it, with gauges as they are now; one that is not known (NaN) is left out."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, about, _) in KNOWN.items():
                rows = [*self._rows(name)]
                if name in gauges and not isnan(gauges[name]):
                    rows.append(f"{name} {_number(gauges[name])}")
                if rows:
                    lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *rows]
        return "\n".join(lines) + "\n"

    def _rows(self, name: str) -> list[str]:
        rows = [
            f"{name}{_labels(labels)} {_number(value)}"
            for labels, value in self._counters.get(name, {}).items()
        ]
        for labels, one in self._histograms.get(name, {}).items():
            pairs = [*zip(map(_number, one.bounds), one.below, strict=True), ("+Inf", one.count)]
            rows += [f"{name}_bucket{_labels((*labels, ('le', le)))} {n}" for le, n in pairs]
            rows.append(f"{name}_sum{_labels(labels)} {_number(one.total)}")
            rows.append(f"{name}_count{_labels(labels)} {one.count}")
        return rows


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: Labels) -> str:
    """Names and values, with what the format would read as its own escaped."""
    if not labels:
        return ""

    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels) + "}"
