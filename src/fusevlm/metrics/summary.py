"""All metrics of one score on one data set, each with its bootstrap interval."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from numpy.typing import ArrayLike

from fusevlm import checks
from fusevlm.displays import Table
from fusevlm.errors import UndefinedMetricError
from fusevlm.metrics._inputs import predicted, scored
from fusevlm.metrics.bootstrap import Interval, bootstrap

logger = logging.getLogger(__name__)

# entry -> (metric, options), for an uncertainty u and for a probability p
OF_U: dict[str, tuple[str, dict[str, float]]] = {
    "base_accuracy": ("base_accuracy", {}),
    "auroc": ("auroc", {}),
    "tpr_at_fpr_0.1": ("tpr_at_fpr", {"fpr": 0.1}),
    "tpr_at_fpr_0.05": ("tpr_at_fpr", {"fpr": 0.05}),
    "tpr_at_fpr_0.01": ("tpr_at_fpr", {"fpr": 0.01}),
    "tpr_right_at_fpr_0.1": ("tpr_at_fpr_right", {"fpr": 0.1}),
    "tpr_right_at_fpr_0.05": ("tpr_at_fpr_right", {"fpr": 0.05}),
    "tpr_right_at_fpr_0.01": ("tpr_at_fpr_right", {"fpr": 0.01}),
    "pearson_calibration": ("pearson_calibration", {}),
    "spearman_calibration": ("spearman_calibration", {}),
    "aurac": ("aurac", {}),
    "aurc": ("aurc", {}),
    "e_aurc": ("e_aurc", {}),
    "prr": ("prr", {}),
}
OF_P: dict[str, tuple[str, dict[str, float]]] = {
    "ece": ("ece", {}),
    "ece_folded": ("ece_folded", {}),
    "brier": ("brier", {}),
}


def summary(
    u: ArrayLike,
    wrong: ArrayLike,
    p: ArrayLike | None = None,
    *,
    units: Iterable[Any] | None = None,
    n_boot: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Table[Interval]:
    """Every metric of ``u``, and of the probability ``p`` if given, on the same resamples.

    A dict by the metric's name, which a notebook shows as a table. A metric that is undefined on
    these answers is left out, with a warning in the log.
    """
    score, label = scored(u, wrong)
    entries = [(name, score, *entry) for name, entry in OF_U.items()]
    if p is not None:
        probability, _ = predicted(checks.vector(p, "p", length=score.size), label)
        entries += [(name, probability, *entry) for name, entry in OF_P.items()]
    ids = None if units is None else list(units)

    intervals: Table[Interval] = Table()
    for name, values, metric, options in entries:
        try:
            intervals[name] = bootstrap(
                metric,
                values,
                label,
                units=ids,
                n_boot=n_boot,
                level=level,
                seed=seed,
                **options,
            )
        except UndefinedMetricError as error:
            logger.warning("%s is left out of the summary: %s", name, error)
    return intervals
