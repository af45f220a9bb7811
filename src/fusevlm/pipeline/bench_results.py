"""What a benchmark found, as plain data: a row per method, a cell per dataset, model and metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fusevlm.metrics import Difference, Interval

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
SOURCES = ("auroc", "pearson_calibration", "spearman_calibration", "aurac")  # Table 2
GROUPS = ("Baselines", "FUSE", "Ablations", "Sources", "Sensitivity")


@dataclass(frozen=True)
class Cell:
    """One method on one dataset and model."""

    metrics: Mapping[str, Interval] = field(default_factory=dict)
    coverage: float | None = None
    risk: float | None = None  # among answered queries
    against: Difference | None = None  # AUROC minus that of the best baseline, paired
    p_holm: float | None = None  # of that difference, all rows of the place taken together
    seconds: float | None = None  # all queries
    missing: str = ""  # why there is nothing


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
    base_accuracy: Interval
    best_baseline: str
    clusters: str  # how semantic clusters were made


@dataclass(frozen=True)
class Curve:
    """AUROC of methods over the number of generations or over criteria, on one place."""

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

    def best(self, metric: str, place: str, group: Sequence[str] = ("Baselines", "FUSE")) -> str:
        """The row with the best estimate; ties go to the first."""
        more = METRICS[metric][1]
        found = [
            (row.cells[place].metrics[metric].estimate * (1 if more else -1), row.name)
            for row in self.rows
            if row.group in group and metric in row.cells[place].metrics
        ]
        return max(found, key=lambda pair: pair[0])[1] if found else ""


def as_tree(results: Results) -> dict[str, Any]:
    """Plain data for JSON."""
    return asdict(results)
