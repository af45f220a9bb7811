"""What the tables of a benchmark are made of: a row per method, a cell per dataset and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Figure = Mapping[str, Any]  # estimate, low and high

# metric: (heading, whether more is better); the paper's Table 1
METRICS: dict[str, tuple[str, bool]] = {
    "auroc": ("AUROC", True),
    "tpr_at_fpr_0.1": ("TPR@.1", True),
    "tpr_at_fpr_0.05": ("TPR@.05", True),
    "tpr_at_fpr_0.01": ("TPR@.01", True),
    "pearson_calibration": ("Pearson", True),
    "spearman_calibration": ("Spearman", True),
    "ece": ("ECE", False),
    "aurac": ("AURAC", True),
}
# who is answered, with the guarantee and by the empirical rule
ANSWERED: dict[str, str] = {
    "coverage_guaranteed": "coverage",
    "risk_guaranteed": "risk",
    "coverage_empirical": "coverage (empirical)",
    "risk_empirical": "risk (empirical)",
}
# what the paper leaves open, side by side: which class is positive, and how u becomes P(wrong)
CONVENTIONS: dict[str, tuple[str, bool]] = {
    "tpr_at_fpr_0.1": ("TPR@.1 wrong", True),
    "tpr_right_at_fpr_0.1": ("TPR@.1 right", True),
    "tpr_at_fpr_0.05": ("TPR@.05 wrong", True),
    "tpr_right_at_fpr_0.05": ("TPR@.05 right", True),
    "tpr_at_fpr_0.01": ("TPR@.01 wrong", True),
    "tpr_right_at_fpr_0.01": ("TPR@.01 right", True),
    "ece": ("ECE own", False),
    "ece_platt": ("ECE Platt", False),
    "ece_min_max": ("ECE min–max", False),
}
CONVENTIONS_SAY = (
    "TPR with wrong answers as the positive class, and with right ones; ECE (15 bins) of the "
    "method's own P(wrong), of Platt scaling on the calibration queries, and of u min–max "
    "normalised on them and clipped, as in the paper: the last two for all methods alike."
)
HEADINGS = {**METRICS, **{m: CONVENTIONS[m] for m in CONVENTIONS if m not in METRICS}}
SOURCES = ("auroc", "pearson_calibration", "spearman_calibration", "aurac")  # Table 2
# rows of Table 2: each source of a preset alone, then both
SOURCE_ROWS: dict[str, str] = {
    "paper_prior": "Prior-only (paper)",
    "paper_evidence": "Evidence-only (paper)",
    "paper": "Fused (paper)",
    "prior-only": "Prior-only (practical)",
    "evidence-only": "Evidence-only (practical)",
    "practical": "Fused (practical)",
}
GROUPS = ("Baselines", "FUSE", "Ablations", "Own rows", "Sources", "Readings", "Sensitivity")


@dataclass(frozen=True)
class Cell:
    """One method on one dataset and model."""

    figures: Mapping[str, Figure | None] = field(default_factory=dict)
    difference: Figure | None = None  # AUROC minus that of the best baseline, paired; p_holm
    gain: Figure | None = None  # of a source alone: AUROC of both fused minus this, paired
    seconds: float | None = None  # to score (a baseline) or to fit (FUSE), all queries
    missing: str = ""  # why there is nothing

    def figure(self, metric: str) -> Figure | None:
        return self.figures.get(metric)


@dataclass(frozen=True)
class Row:
    """One method on everything; ``cells`` by the name of dataset and model."""

    name: str
    title: str
    group: str
    cells: Mapping[str, Cell]
    note: str = ""


@dataclass(frozen=True)
class Place:
    """One dataset and model: a column of the tables."""

    name: str
    n_calibration: int
    n_test: int
    n_failed: int
    base_accuracy: Figure
    best_baseline: str
    meanings: str  # how it was told which samples say the same
    rounds: Mapping[str, Any] = field(default_factory=dict)  # what samples cost and bring


@dataclass(frozen=True)
class Curve:
    """AUROC of methods over the number of samples or over criteria, on one place."""

    place: str
    over: str
    points: Sequence[str]
    values: Mapping[str, Sequence[float | None]]  # by method
    base_accuracy: Sequence[float] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # points or methods, and why


@dataclass(frozen=True)
class Results:
    """Everything a benchmark found."""

    name: str
    places: Sequence[Place]
    rows: Sequence[Row]
    curves: Sequence[Curve] = ()
