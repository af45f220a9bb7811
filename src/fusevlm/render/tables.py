"""Results of a benchmark: terminal, Markdown, CSV and LaTeX, in the shape of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusevlm.render import costs
from fusevlm.render.results import (
    ANSWERED,
    CONVENTIONS,
    CONVENTIONS_SAY,
    GROUPS,
    HEADINGS,
    METRICS,
    SOURCE_ROWS,
    SOURCES,
    Cell,
    Curve,
    Results,
    Row,
)
from fusevlm.render.tex import PACKAGES, tex
from fusevlm.render.text import figure, layout, signed

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
        rows, others, missing = [], [], []
        for row in _ordered(results.rows):
            cell = row.cells[place.name]
            if cell.missing:
                missing.append(f"absent: {row.title} ({cell.missing})")
            else:
                rows.append([row.title, *_terminal_cells(cell)])
                others.append([row.title, *(_number(cell.figure(m)) for m in CONVENTIONS)])
        blocks.append("\n".join([head, layout(header, rows), *missing]))
        columns = ["method", *(heading for heading, _ in CONVENTIONS.values())]
        blocks.append(f"{place.name}: {CONVENTIONS_SAY}\n{layout(columns, others)}")
        for what, heads, table in costs.tables(place.rounds) if place.rounds else ():
            blocks.append(f"{place.name}: {what}\n{layout(heads, table)}")
    return "\n\n".join(blocks)


def source_blocks(results: Results) -> list[list[Row]]:
    """The rows of the paper's Table 2, under its names: a block for each preset."""
    known = {row.name: row for row in results.rows}
    blocks: dict[str, list[Row]] = {}
    for name, title in SOURCE_ROWS.items():
        if name in known:
            preset = title.rpartition(" ")[2]
            blocks.setdefault(preset, []).append(replace(known[name], title=title))
    return list(blocks.values())


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
        parts += ["", f"### {place.name}: conventions\n", CONVENTIONS_SAY + "\n"]
        parts += _markdown_table(_ordered(results.rows), place.name, CONVENTIONS)
        sources = [row for block in source_blocks(results) for row in block]
        if sources:
            parts.append(f"### {place.name}: uncertainty sources\n")
            parts += _markdown_table(sources, place.name, {m: METRICS[m] for m in SOURCES})
            parts += [f"- {row.title}: fused minus this, AUROC {signed(gain)}" for row in sources
                      if (gain := row.cells[place.name].gain) is not None]  # fmt: skip
            parts.append("")
        for what, named, table in costs.tables(place.rounds) if place.rounds else ():
            parts += [f"### {place.name}: cost and coverage\n", what + "\n", _pipe(named)]
            parts += ["|---" * len(named) + "|", *(_pipe(row) for row in table), ""]
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


def _markdown_table(
    rows: Sequence[Row], place: str, metrics: Mapping[str, tuple[str, bool]]
) -> list[str]:
    """The rows that are there, every figure with its interval."""
    lines = [_pipe(["", *(heading for heading, _ in metrics.values())])]
    lines.append("|---" * (len(metrics) + 1) + "|")
    for row in rows:
        cell = row.cells[place]
        if not cell.missing:
            lines.append(_pipe([row.title, *(figure(cell.figure(m)) for m in metrics)]))
    return [*lines, ""]


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
        d = cell.gain
        if d is not None:
            found.append([*first, "auroc_gain_of_fusing", d["difference"], d["low"], d["high"], ""])
    return found


TABLE_1 = (("Baselines", "FUSE", "Ablations", "Own rows"), ("Baselines", "FUSE"))
REST = {"Readings": "Other readings of the paper.", "Sensitivity": "Sensitivities."}
BRIEF = ("auroc", "ece", "ece_platt", "ece_min_max", "aurac")


def latex(results: Results) -> str:
    """The paper's Tables 1 and 2, what it leaves open, readings, sensitivities, its curves."""
    groups, rivals = TABLE_1
    one = [[row for row in results.rows if row.group == group] for group in groups]
    ranked = [row for row in results.rows if row.group in rivals]
    parts = [
        _latex_table(results, one, list(METRICS), "All methods.", "methods", ranked),
        _latex_table(results, one, list(CONVENTIONS), CONVENTIONS_SAY, "conventions", ranked),
    ]
    two = source_blocks(results)
    if two:
        parts.insert(1, _latex_table(results, two, SOURCES, "Uncertainty sources.", "sources"))
    for group, caption in REST.items():
        rest = [row for row in results.rows if row.group == group]
        if rest:
            parts.append(_latex_table(results, [rest], BRIEF, caption, group.lower(), ()))
    parts += [_latex_curve(curve, k) for k, curve in enumerate(results.curves, 1)]
    return PACKAGES + "\n".join(parts)


def _latex_table(
    results: Results,
    blocks: Sequence[Sequence[Row]],
    metrics: Sequence[str],
    caption: str,
    label: str,
    ranked: Sequence[Row] | None = None,
) -> str:
    """A table over all places; the best of ``ranked`` is bold, or of each block."""
    places = [place.name for place in results.places]
    heads = [
        f"\\multicolumn{{{len(places)}}}{{c}}{{{tex(HEADINGS[m][0])} ({_arrow(m)})}}"
        for m in metrics
    ]
    lines = [
        "\\begin{table*}[t]",
        "\\centering\\resizebox{\\linewidth}{!}{",
        f"\\begin{{tabular}}{{l{'c' * (len(metrics) * len(places))}}}",
        "\\toprule",
        " & ".join(["", *heads]) + " \\\\",
        " & ".join(["Method", *(tex(p) for _ in metrics for p in places)]) + " \\\\",
    ]
    for block in filter(None, blocks):
        rivals = block if ranked is None else ranked
        best = {(m, place): _best(rivals, m, place) for m in metrics for place in places}
        lines.append("\\midrule")
        lines += [_latex_row(row, best) for row in block]
    base = ", ".join(f"{tex(p.name)} {p.base_accuracy['estimate']:.3f}" for p in results.places)
    lines += [
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\caption{{{tex(caption)} Base accuracy: {base}.}}",
        f"\\label{{tab:fuse-{label}}}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _arrow(metric: str) -> str:
    return "$\\uparrow$" if HEADINGS[metric][1] else "$\\downarrow$"


def _latex_row(row: Row, best: Mapping[tuple[str, str], str]) -> str:
    cells = []
    for (metric, place), name in best.items():
        value = row.cells[place].figure(metric)
        text = "--" if value is None else f"{value['estimate']:.3f}"
        cells.append(f"\\textbf{{{text}}}" if name == row.name else text)
    return " & ".join([tex(row.title), *cells]) + " \\\\"


def _best(rows: Sequence[Row], metric: str, place: str) -> str:
    """The row with the best estimate; ties go to the first, and none where nothing is there."""
    sign = 1 if HEADINGS[metric][1] else -1
    found = {}
    for row in rows:
        value = row.cells[place].figure(metric)
        if value is not None:
            found[row.name] = sign * float(value["estimate"])
    return max(found, key=lambda name: found[name]) if found else ""


def _latex_curve(curve: Curve, number: int) -> str:
    """A curve as a table: a row per method, a column per point."""

    def line(name: str, values: Sequence[float | None]) -> str:
        return " & ".join([tex(name), *("--" if v is None else f"{v:.3f}" for v in values)])

    lines = [
        "\\begin{table}[t]",
        "\\centering\\resizebox{\\linewidth}{!}{",
        f"\\begin{{tabular}}{{l{'c' * len(curve.points)}}}",
        "\\toprule",
        " & ".join(["Method", *(tex(point) for point in curve.points)]) + " \\\\",
        "\\midrule",
        *(line(name, values) + " \\\\" for name, values in curve.values.items()),
    ]
    if curve.base_accuracy:
        lines.append(line("base accuracy", curve.base_accuracy) + " \\\\")
    lines += [
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\caption{{{tex(curve.place)}: AUROC over {tex(curve.over)}.}}",
        f"\\label{{tab:fuse-curve-{number}}}",
        "\\end{table}",
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
    return f"{signed(d)}, p {d['p_holm']:.3f}"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
