"""The figures of a run as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusevlm.render import costs
from fusevlm.render.results import ANSWERED, CONVENTIONS, CONVENTIONS_SAY


def results_text(results: Mapping[str, Any]) -> str:
    """Accuracy, every method with intervals, the slices, and what the sources see."""
    whole, settings = results["slices"][0], results["settings"]
    level = f"{settings['level']:.0%}"
    parts = [
        f"{whole['queries']} test queries; base accuracy {figure(whole['base_accuracy'])}\n"
        f"in brackets: {level} bootstrap interval over units (queries of one image)",
        f"certified: share of queries answered with a risk that holds with probability "
        f"{1 - settings['delta']:g}",
        _methods(whole["methods"], {**_HEADLINE, **_certified(settings["risks"])}),
        CONVENTIONS_SAY,
        _conventions(whole["methods"]),
        f"answering at risk {settings['risk']:g}: with the guarantee (Learn-then-Test, holds with "
        f"probability {1 - settings['delta']:g}), and by the empirical rule without one",
        _methods(whole["methods"], ANSWERED),
    ]
    if results["differences"]:
        parts += [
            f"AUROC minus that of {results['best_baseline']}, the best baseline here, paired; p is "
            f"Holm's",
            _against(results["differences"]),
        ]
    if results["gains"]:
        parts += ["AUROC of both sources fused minus that of one alone, paired",
                  _gains(results["gains"])]  # fmt: skip
    for what, header, rows in costs.tables(results["rounds"]):
        parts += [what, layout(header, rows)]
    parts += [f"absent: {name} ({why})" for name, why in results["absent"].items()]
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


_HEADLINE = {"auroc": "AUROC", "ece": "ECE", "brier": "Brier", "aurac": "AURAC"}


def _certified(risks: Sequence[float]) -> dict[str, str]:
    return {f"certified_{risk:g}": f"certified at {risk:.0%}" for risk in risks}


def figure(row: Mapping[str, Any] | None) -> str:
    """An estimate with its interval."""
    if row is None:
        return "–"
    if row["low"] is None or row["high"] is None:
        return f"{row['estimate']:.3f}"
    return f"{row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _methods(methods: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    rows = [(name, *[figure(row[key]) for key in columns]) for name, row in methods.items()]
    return layout(("method", *columns.values()), rows)


def _conventions(methods: Mapping[str, Any]) -> str:
    rows = [
        (name, *[None if row[m] is None else f"{row[m]['estimate']:.3f}" for m in CONVENTIONS])
        for name, row in methods.items()
    ]
    return layout(("method", *(heading for heading, _ in CONVENTIONS.values())), rows)


def _against(differences: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(name, signed(d), f"{d['p_holm']:.3f}") for name, d in differences.items()]
    return layout(("method", "difference", "p"), rows)


def _gains(gains: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [(f"{d['fused']} − {name}", signed(d)) for name, d in gains.items()]
    return layout(("methods", "difference"), rows)


def signed(d: Mapping[str, Any]) -> str:
    """A difference with its sign and interval."""
    return f"{d['difference']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"


def _slices(slices: Sequence[Mapping[str, Any]]) -> str:
    methods = list(slices[0]["methods"])
    rows = [
        (
            part["slice"],
            part["queries"],
            figure(part["base_accuracy"]),
            *[figure(part["methods"][name]["auroc"]) for name in methods],
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
            figure(row["evidence"]),
            figure(row["p_wrong"]),
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
