"""The figures of a run as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def results_text(results: Mapping[str, Any]) -> str:
    """Accuracy, every method with intervals, the slices, and what the sources see."""
    whole, settings = results["slices"][0], results["settings"]
    level = f"{settings['level']:.0%}"
    parts = [
        f"{whole['queries']} test queries; base accuracy {_figure(whole['base_accuracy'])}\n"
        f"in brackets: {level} bootstrap interval, clustered by image",
        _methods(whole["methods"], {"auroc": "AUROC", "aurac": "AURAC", "ece": "ECE"}),
        f"answering at risk {settings['risk']:g}: with the guarantee (Learn-then-Test, holds with "
        f"probability {1 - settings['delta']:g}), and by the empirical rule without one",
        _methods(
            whole["methods"],
            {
                "coverage_guaranteed": "coverage",
                "risk_guaranteed": "risk",
                "coverage_empirical": "coverage (empirical)",
                "risk_empirical": "risk (empirical)",
            },
        ),
    ]
    if len(results["slices"]) > 1:
        parts += ["AUROC in slices", _slices(results["slices"])]
    causes = results["causes"]
    if "prior_by_severity" in causes:
        parts += ["mean prior statistic s by severity", _severities(causes["prior_by_severity"])]
    if "against_in_distribution" in causes:
        parts += [
            f"{causes['method']}: difference of means to queries in distribution",
            _differences(causes["against_in_distribution"]),
        ]
    return "\n\n".join(parts)


def _figure(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row["low"] is None:
        return f"{row['estimate']:.3f}"
    return f"{row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _methods(methods: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    rows = [(name, *[_figure(row[key]) for key in columns]) for name, row in methods.items()]
    return layout(("method", *columns.values()), rows)


def _slices(slices: Sequence[Mapping[str, Any]]) -> str:
    methods = list(slices[0]["methods"])
    rows = [
        (
            part["slice"],
            part["queries"],
            _figure(part["base_accuracy"]),
            *[_figure(part["methods"][name]["auroc"]) for name in methods],
        )
        for part in slices
    ]
    return layout(("slice", "queries", "accuracy", *methods), rows)


def _severities(table: Sequence[Mapping[str, Any]]) -> str:
    levels = sorted({at for row in table for at in row["levels"]})
    rows = []
    for row in table:
        means = {
            at: mean["estimate"] for at, mean in zip(row["levels"], row["mean_s"], strict=True)
        }
        rows.append((row["corruption"], row["spearman"], *[means.get(at) for at in levels]))
    return layout(("corruption", "Spearman", *[f"{at:g}" for at in levels]), rows)


def _differences(table: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{row['group']}: {row['queries']}",
            f"{row['n']}/{row['n_reference']}",
            _figure(row["evidence"]),
            _figure(row["p_wrong"]),
        )
        for row in table
    ]
    return layout(("group", "queries", "evidence", "P(wrong)"), rows)


def layout(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned plain text; floats with four decimals, a missing value as a dash."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
