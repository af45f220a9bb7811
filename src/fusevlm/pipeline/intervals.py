"""A figure with its bootstrap interval as plain data, None where it is undefined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from fusevlm import metrics
from fusevlm.config import EvaluateConfig
from fusevlm.errors import UndefinedMetricError


class Row(TypedDict):
    """An estimate with its limits; they are None where only one cluster is there to draw from."""

    estimate: float
    low: float | None
    high: float | None


def interval(
    metric: Any, u: Any, label: Any, clusters: Sequence[str], config: EvaluateConfig
) -> Row | None:
    """``metric(u, label)``, its percentile interval over resampled clusters."""
    try:
        if len(set(clusters)) < 2:
            compute = getattr(metrics, metric) if isinstance(metric, str) else metric
            return {"estimate": float(compute(u, label)), "low": None, "high": None}
        found = metrics.bootstrap(
            metric,
            u,
            label,
            clusters=clusters,
            n_boot=config.bootstrap,
            level=config.level,
            seed=config.seed,
        )
    except UndefinedMetricError:
        return None
    return {"estimate": found.estimate, "low": found.low, "high": found.high}
