"""Metrics of an uncertainty score: discrimination, calibration, selective answering, intervals.

``u`` is an uncertainty (higher = less sure), ``wrong`` is 0/1 with 1 = wrong = the positive class,
``p`` is a predicted P(wrong) in [0, 1].
"""

from fusevlm.metrics.bootstrap import Difference, Interval, bootstrap, paired_bootstrap
from fusevlm.metrics.calibration import (
    ReliabilityCurve,
    brier,
    ece,
    ece_folded,
    pearson_calibration,
    reliability,
    spearman_calibration,
)
from fusevlm.metrics.discrimination import (
    RocCurve,
    auroc,
    roc_curve,
    tpr_at_fpr,
    tpr_at_fpr_nearest,
    tpr_at_fpr_right,
)
from fusevlm.metrics.selective import (
    RejectionAccuracy,
    RiskCoverage,
    aurac,
    aurc,
    base_accuracy,
    e_aurc,
    prr,
    rejection_accuracy,
    risk_coverage,
)
from fusevlm.metrics.summary import summary

__all__ = [
    "Difference",
    "Interval",
    "RejectionAccuracy",
    "ReliabilityCurve",
    "RiskCoverage",
    "RocCurve",
    "aurac",
    "aurc",
    "auroc",
    "base_accuracy",
    "bootstrap",
    "brier",
    "e_aurc",
    "ece",
    "ece_folded",
    "paired_bootstrap",
    "pearson_calibration",
    "prr",
    "rejection_accuracy",
    "reliability",
    "risk_coverage",
    "roc_curve",
    "spearman_calibration",
    "summary",
    "tpr_at_fpr",
    "tpr_at_fpr_nearest",
    "tpr_at_fpr_right",
]
