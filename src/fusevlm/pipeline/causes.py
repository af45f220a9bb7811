"""Do the two sources of uncertainty speak of their own causes?

Corruption of the picture is a known cause that the prior should see: its mean by severity. Held-out
pairs and unseen phrasings are a known cause that the evidence should see: its mean against queries
of the training distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import UndefinedMetricError
from fusevlm.pipeline.measure import Row, Table, interval, some_units
from fusevlm.pipeline.methods import Applied
from fusevlm.settings import EvaluateConfig

SHOWN = ("evidence", "p_wrong", "u")


def causes(
    queries: Table, applied: Applied | None, method: str | None, config: EvaluateConfig
) -> dict[str, Any]:
    """Both tables, as far as the config names their columns."""
    found: dict[str, Any] = {}
    if config.severity:
        found["prior_by_severity"] = by_severity(queries, config)
    if config.out_of_distribution and applied is not None:
        values = {"u": applied.u, "p_wrong": applied.p_wrong, **applied.shown}
        wanted = {name: values[name] for name in SHOWN}
        found["method"] = method
        found["against_in_distribution"] = against(wanted, queries, config)
    return found


def by_severity(queries: Table, config: EvaluateConfig) -> list[dict[str, Any]]:
    """Mean s at each severity, over all corruptions and for each; untouched pictures are in all."""
    from scipy.stats import spearmanr

    s, level = queries.s, _levels(queries, config)
    assert s is not None
    kinds: dict[str, BoolArray] = {"all": np.full(len(s), True)}
    if config.corruption:
        names = [str(name) for name in queries.column(config.corruption, "evaluate.corruption")]
        touched = {name for name, at in zip(names, level, strict=True) if at > 0}
        kinds |= {k: np.array([n == k for n in names]) | (level == 0) for k in sorted(touched)}
    rows = []
    for kind, mask in kinds.items():
        levels = np.unique(level[mask])
        means = [_mean(s, mask & (level == at), queries, config) for at in levels]
        estimates = [row["estimate"] for row in means]
        ranked = len(levels) > 1 and len(set(estimates)) > 1
        rows.append(
            {
                "corruption": kind,
                "levels": [float(at) for at in levels],
                "mean_s": means,
                "spearman": float(spearmanr(levels, estimates).statistic) if ranked else None,
            }
        )
    return rows


def against(
    values: dict[str, FloatArray], queries: Table, config: EvaluateConfig
) -> list[dict[str, Any]]:
    """Difference of means: queries with a flag against queries with none.

    Three comparisons: all flagged against clean unflagged; clean against clean; all against all
    (severities are drawn alike in both). Without a severity column only the last.
    """
    flags = {
        column: np.array(queries.column(column, "evaluate.out_of_distribution"), dtype=np.bool_)
        for column in config.out_of_distribution
    }
    inside = ~np.any(list(flags.values()), axis=0)
    everywhere = np.full(len(queries), True)
    clean = everywhere
    if config.severity:
        clean = _levels(queries, config) == 0
    compared = {
        "all, against clean in distribution": (everywhere, clean),
        "clean, against clean in distribution": (clean, clean),
        "all, against all in distribution": (everywhere, everywhere),
    }
    if not config.severity:
        compared = {
            name: pair for name, pair in compared.items() if name.startswith("all, against all")
        }
    rows = []
    for column, flag in flags.items():
        for name, (theirs, ours) in compared.items():
            group, reference = flag & theirs, inside & ours
            rows.append(
                {
                    "group": column,
                    "queries": name,
                    "n": int(group.sum()),
                    "n_reference": int(reference.sum()),
                    **{
                        what: _difference(v, group, reference, queries, config)
                        for what, v in values.items()
                    },
                }
            )
    return rows


def _levels(queries: Table, config: EvaluateConfig) -> FloatArray:
    return checks.vector(queries.column(config.severity, "evaluate.severity"), config.severity)


def _difference(
    values: FloatArray,
    group: BoolArray,
    reference: BoolArray,
    queries: Table,
    config: EvaluateConfig,
) -> Row | None:
    mask = group | reference
    return interval(mean_difference, values[mask], group[mask], some_units(queries, mask), config)


def mean_difference(values: FloatArray, group: Any) -> float:
    """Mean of the rows in the group minus mean of the others."""
    inside = np.asarray(group) > 0
    if inside.all() or not inside.any():
        raise UndefinedMetricError("one of the two groups is empty.")
    return float(values[inside].mean() - values[~inside].mean())


def _mean(s: FloatArray, mask: BoolArray, queries: Table, config: EvaluateConfig) -> Row:
    units = some_units(queries, mask)
    found = interval(lambda u, _: float(np.mean(u)), s[mask], np.zeros(mask.sum()), units, config)
    assert found is not None  # a mean is always defined
    return found
