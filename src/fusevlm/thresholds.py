"""Public home of the answer/abstain rules; they live in :mod:`fusevlm.calibrate.thresholds`."""

from fusevlm.calibrate.thresholds import (
    GroupThresholds,
    RiskTable,
    Threshold,
    candidate_grid,
    clopper_pearson,
    empirical,
    hoeffding_bentkus,
    learn_then_test,
    paper_bound,
    per_group,
    quantile,
    risk_table,
)

__all__ = [
    "GroupThresholds",
    "RiskTable",
    "Threshold",
    "candidate_grid",
    "clopper_pearson",
    "empirical",
    "hoeffding_bentkus",
    "learn_then_test",
    "paper_bound",
    "per_group",
    "quantile",
    "risk_table",
]
