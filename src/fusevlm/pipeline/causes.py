"""Do the two sources of uncertainty speak of their own causes?

Corruption of the picture is a known cause that the prior should see: its mean by severity. Held-out
pairs and unseen phrasings are a known cause that the evidence should see: its mean against queries
of the training distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import EvaluateConfig
from fusevlm.errors import UndefinedMetricError
from fusevlm.pipeline.data import metadata
from fusevlm.pipeline.intervals import Row, interval
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.pipeline.methods import Judged

SHOWN = ("evidence", "p_wrong", "u")


def causes(
    s: FloatArray,
    judged: Judged | None,
    method: str | None,
    queries: Sequence[Query],
    clusters: Sequence[str],
    config: EvaluateConfig,
) -> dict[str, Any]:
    """Both tables, as far as the queries carry the columns the config names."""
    found: dict[str, Any] = {}
    if config.severity:
        found["prior_by_severity"] = by_severity(s, queries, clusters, config)
    if config.out_of_distribution and judged is not None:
        values = {"u": judged.u, "p_wrong": judged.p_wrong, **judged.columns}
        wanted = {name: values[name] for name in SHOWN}
        found["method"] = method
        found["against_in_distribution"] = against(wanted, queries, clusters, config)
    return found


def by_severity(
    s: FloatArray, queries: Sequence[Query], clusters: Sequence[str], config: EvaluateConfig
) -> list[dict[str, Any]]:
    """Mean s at each severity, over all corruptions and for each; untouched pictures are in all."""
    from scipy.stats import spearmanr

    level = _levels(queries, config)
    kinds: dict[str, BoolArray] = {"all": np.full(len(s), True)}
    if config.corruption:
        found = metadata(queries, config.corruption, "evaluate.corruption")
        names = [str(name) for name in found]
        touched = {name for name, at in zip(names, level, strict=True) if at > 0}
        kinds |= {k: np.array([n == k for n in names]) | (level == 0) for k in sorted(touched)}
    rows = []
    for kind, mask in kinds.items():
        levels = np.unique(level[mask])
        means = [_mean(s, mask & (level == at), clusters, config) for at in levels]
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
    values: dict[str, FloatArray],
    queries: Sequence[Query],
    clusters: Sequence[str],
    config: EvaluateConfig,
) -> list[dict[str, Any]]:
    """Difference of means: queries with a flag against queries with none.

    Three comparisons: all flagged against clean unflagged; clean against clean; all against all
    (severities are drawn alike in both). Without a severity column only the last.
    """
    flags = {
        column: np.array(metadata(queries, column, "evaluate.out_of_distribution"), dtype=np.bool_)
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
                        what: _difference(v, group, reference, clusters, config)
                        for what, v in values.items()
                    },
                }
            )
    return rows


def _levels(queries: Sequence[Query], config: EvaluateConfig) -> FloatArray:
    return checks.vector(metadata(queries, config.severity, "evaluate.severity"), config.severity)


def _difference(
    values: FloatArray,
    group: BoolArray,
    reference: BoolArray,
    clusters: Sequence[str],
    config: EvaluateConfig,
) -> Row | None:
    rows = np.flatnonzero(group | reference)
    ids = [clusters[int(i)] for i in rows]
    return interval(mean_difference, values[rows], group[rows], ids, config)


def mean_difference(values: FloatArray, group: Any) -> float:
    """Mean of the rows in the group minus mean of the others."""
    inside = np.asarray(group) > 0
    if inside.all() or not inside.any():
        raise UndefinedMetricError("one of the two groups is empty.")
    return float(values[inside].mean() - values[~inside].mean())


def _mean(s: FloatArray, mask: BoolArray, clusters: Sequence[str], config: EvaluateConfig) -> Row:
    ids = [c for c, inside in zip(clusters, mask, strict=True) if inside]
    found = interval(lambda u, _: float(np.mean(u)), s[mask], np.zeros(mask.sum()), ids, config)
    assert found is not None  # a mean is always defined
    return found
