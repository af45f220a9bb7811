"""Results of a benchmark: terminal, Markdown, CSV and LaTeX, in the shape of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fusevlm.render.results import ANSWERED, GROUPS, METRICS, SOURCES, Cell, Results, Row
from fusevlm.render.tex import PACKAGES, tex
from fusevlm.render.text import figure, layout

MANY = (
    "Each interval stands alone. Differences are against the baseline with the largest AUROC on "
    "the same test queries, by paired bootstrap over whole units; with so many rows some "
    "intervals exclude zero by chance, so p is Holm's, for all rows of a table together."
)


def terminal(results: Results) -> str:
    """One block per dataset and model: estimates, AUROC with its interval and its difference."""
    blocks = []
    for place in results.places:
        head = (
            f"{place.name}: {place.n_calibration} calibration, {place.n_test} test queries, "
            f"{place.n_failed} failed; base accuracy {figure(place.base_accuracy)}; meanings: "
            f"{place.meanings}"
        )
        header = ["method", "AUROC", *(METRICS[m][0] for m in _rest()), "Δ AUROC", "ms"]
        rows, missing = [], []
        for row in _ordered(results.rows):
            cell = row.cells[place.name]
            if cell.missing:
                missing.append(f"absent: {row.title} ({cell.missing})")
            else:
                rows.append([row.title, *_terminal_cells(cell)])
        blocks.append("\n".join([head, layout(header, rows), *missing]))
    return "\n\n".join(blocks)


def _rest() -> list[str]:
    return [m for m in METRICS if m != "auroc"]


def _terminal_cells(cell: Cell) -> list[str]:
    return [
        figure(cell.figure("auroc")),
        *(_number(cell.figure(m)) for m in _rest()),
        _signed(cell),
        "" if cell.seconds is None else f"{1000 * cell.seconds:.0f}",
    ]


def markdown(results: Results) -> str:
    """A table per dataset and model with all intervals, and the notes that explain rows."""
    parts = [f"# {results.name}\n", MANY + "\n"]
    for place in results.places:
        parts.append(f"## {place.name}\n")
        parts.append(
            f"{place.n_calibration} calibration and {place.n_test} test queries "
            f"({place.n_failed} failed). Base accuracy {figure(place.base_accuracy)}. Meanings: "
            f"{place.meanings}. Best baseline by AUROC: {place.best_baseline}.\n"
        )
        heads = [METRICS[m][0] for m in METRICS]
        header = ["", *heads, "Δ AUROC to best baseline", *ANSWERED.values(), "s"]
        parts.append(_pipe(header))
        parts.append("|---" * len(header) + "|")
        for group in GROUPS:
            rows = [row for row in results.rows if row.group == group]
            if rows:
                parts.append(_pipe([f"**{group}**", *[""] * (len(header) - 1)]))
            for row in rows:
                parts.append(_pipe([row.title, *_markdown_cells(row.cells[place.name])]))
        parts.append("")
    notes = [f"- **{row.title}** ({row.group}): {row.note}" for row in results.rows if row.note]
    if notes:
        parts += ["## Notes\n", *notes, ""]
    for curve in results.curves:
        parts.append(f"## {curve.place}: AUROC over {curve.over}\n")
        parts.append(_pipe(["", *curve.points]))
        parts.append("|---" * (len(curve.points) + 1) + "|")
        for name, values in curve.values.items():
            parts.append(_pipe([name, *("–" if v is None else f"{v:.3f}" for v in values)]))
        if curve.base_accuracy:
            parts.append(_pipe(["base accuracy", *(f"{v:.3f}" for v in curve.base_accuracy)]))
        parts += [f"\nLeft out: {what} ({why})" for what, why in curve.left_out.items()]
        parts.append("")
    return "\n".join(parts)


def _markdown_cells(cell: Cell) -> list[str]:
    if cell.missing:
        return [f"– {cell.missing}", *[""] * (len(METRICS) + len(ANSWERED) + 1)]
    return [
        *(figure(cell.figure(m)) for m in METRICS),
        _signed(cell),
        *(_number(cell.figure(m)) for m in ANSWERED),
        "" if cell.seconds is None else f"{cell.seconds:.2f}",
    ]


CSV_HEADER = ("place", "group", "method", "title", "metric", "estimate", "low", "high", "missing")


def csv_rows(results: Results) -> list[list[Any]]:
    """One line per dataset and model, method and metric."""
    found = []
    for place, row, cell in _cells(results):
        first = [place, row.group, row.name, row.title]
        if cell.missing:
            found.append([*first, "", "", "", "", cell.missing])
        for metric, value in cell.figures.items():
            if value is not None:
                found.append([*first, metric, value["estimate"], value["low"], value["high"], ""])
        d = cell.difference
        if d is not None:
            found.append([*first, "auroc_difference", d["difference"], d["low"], d["high"], ""])
    return found


def latex(results: Results) -> str:
    """Table 1 (all methods, all metrics) and Table 2 (sources), columns as the paper has them."""
    one = [r for r in results.rows if r.group in ("Baselines", "FUSE", "Ablations")]
    two = [r for r in results.rows if r.group == "Sources"]
    parts = [_latex_table(results, one, list(METRICS), "All methods.")]
    if two:
        parts.append(_latex_table(results, two, list(SOURCES), "Uncertainty sources."))
    return PACKAGES + "\n".join(parts)


def _latex_table(
    results: Results, rows: Sequence[Row], metrics: Sequence[str], caption: str
) -> str:
    places = [place.name for place in results.places]
    arrows = {m: "$\\uparrow$" if METRICS[m][1] else "$\\downarrow$" for m in metrics}
    heads = [
        f"\\multicolumn{{{len(places)}}}{{c}}{{{tex(METRICS[m][0])} ({arrows[m]})}}"
        for m in metrics
    ]
    lines = [
        "\\begin{table*}[t]",
        "\\centering\\resizebox{\\linewidth}{!}{",
        f"\\begin{{tabular}}{{l{'c' * (len(metrics) * len(places))}}}",
        "\\toprule",
        " & ".join(["", *heads]) + " \\\\",
        " & ".join(["Method", *(tex(p) for _ in metrics for p in places)]) + " \\\\",
        "\\midrule",
    ]
    group = ""
    for row in rows:
        if group and row.group != group:
            lines.append("\\midrule")
        group = row.group
        cells = []
        for m in metrics:
            for place in places:
                value = row.cells[place].figure(m)
                text = "--" if value is None else f"{value['estimate']:.3f}"
                best = results.best(m, place) == row.name
                cells.append(f"\\textbf{{{text}}}" if best else text)
        lines.append(" & ".join([tex(row.title), *cells]) + " \\\\")
    base = ", ".join(f"{tex(p.name)} {p.base_accuracy['estimate']:.3f}" for p in results.places)
    lines += [
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\caption{{{caption} Base accuracy: {base}.}}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _cells(results: Results) -> Iterator[tuple[str, Row, Cell]]:
    for place in results.places:
        for row in _ordered(results.rows):
            yield place.name, row, row.cells[place.name]


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: GROUPS.index(row.group))


def _number(value: Any) -> str:
    return "–" if value is None else f"{value['estimate']:.3f}"


def _signed(cell: Cell) -> str:
    d = cell.difference
    if d is None:
        return ""
    return f"{d['difference']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}], p {d['p_holm']:.3f}"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
