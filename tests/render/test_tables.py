import csv
import dataclasses
import io
import json

import pytest

from fusevlm.pipeline.measure import holm
from fusevlm.render import tables
from fusevlm.render.results import (
    CONVENTIONS,
    HEADINGS,
    METRICS,
    SOURCES,
    Cell,
    Curve,
    Place,
    Results,
    Row,
)
from fusevlm.store.tables import csv_bytes


def interval(value):
    return {"estimate": value, "low": value - 0.02, "high": value + 0.02}


def cell(value, *, against=None):
    figures = {name: interval(value) for name in HEADINGS}
    figures |= {"coverage_guaranteed": interval(0.5), "risk_guaranteed": interval(0.1)}
    difference = None
    if against is not None:
        difference = {"difference": against, "low": against - 0.01, "high": against + 0.01,
                      "p_value": 0.04, "p_holm": 0.08}  # fmt: skip
    return Cell(figures, difference, seconds=0.012)


@pytest.fixture
def results():
    places = [
        Place(name, 500, 1500, 3, interval(0.7), "g_nll", "normalised strings")
        for name in ("VQA_v2", "OK")
    ]
    rows = [
        Row("g_nll", "G-NLL", "Baselines", {"VQA_v2": cell(0.7), "OK": cell(0.71)}),
        Row("kle", "KLE", "Baselines", {p: Cell(missing="the run has no similarity") for p in
                                        ("VQA_v2", "OK")}),
        Row("practical", "FUSE (practical)", "FUSE",
            {"VQA_v2": cell(0.8, against=0.1), "OK": cell(0.6, against=-0.11)}),
        Row("prior-only", "Prior-only (practical)", "Sources",
            {p: cell(0.4) for p in ("VQA_v2", "OK")}),
        Row("mine", "Mine", "Own rows", {p: cell(0.9) for p in ("VQA_v2", "OK")}),
        Row("paper_jitter", "Jitter", "Sensitivity", {p: cell(0.5) for p in ("VQA_v2", "OK")}),
        Row("paper_mean", "Mean-only u*", "Ablations", {p: cell(0.8) for p in ("VQA_v2", "OK")},
            note="equal to paper"),
    ]  # fmt: skip
    curve = Curve("OK", "samples", ["2", "5"], {"practical": [0.6, None]}, [0.7, 0.7])
    return Results("trial", places, rows, [curve])


def test_terminal_shows_every_row_and_explains_the_missing_one(results):
    text = tables.terminal(results)
    assert text.count("G-NLL") == 4  # two places, each with its conventions
    assert "0.800 [0.780, 0.820]" in text
    assert "+0.100 [+0.090, +0.110]" in text
    assert "absent: KLE (the run has no similarity)" in text
    assert "base accuracy 0.700" in text


def test_markdown_tables_are_rectangular(results):
    lines = [line for line in tables.markdown(results).splitlines() if line.startswith("|")]
    wide = [line for line in lines if "Spearman" in line or "G-NLL" in line or "KLE" in line]
    widths = {len(METRICS) + 8, len(SOURCES) + 2, len(CONVENTIONS) + 2}
    assert {line.count("|") for line in wide} == widths
    assert "| Fused (practical) | 0.800 [0.780, 0.820] |" in tables.markdown(results)
    assert "- **Mean-only u*** (Ablations): equal to paper" in tables.markdown(results)
    assert "| practical | 0.600 | – |" in tables.markdown(results)


def test_csv_reads_back(results):
    rows = list(
        csv.DictReader(io.StringIO(csv_bytes(tables.CSV_HEADER, tables.csv_rows(results)).decode()))
    )
    chosen = [
        r for r in rows if (r["place"], r["method"], r["metric"]) == ("OK", "practical", "ece")
    ]
    assert [float(r["estimate"]) for r in chosen] == [0.6]
    assert any(r["missing"] == "the run has no similarity" for r in rows)
    differences = [float(r["estimate"]) for r in rows if r["metric"] == "auroc_difference"]
    assert differences == [0.1, -0.11]


def latex_tables(text):
    """Each table by its label: the cells of its rows."""
    found = {}
    for body in text.split("\\begin{table")[1:]:
        label = body.split("\\label{tab:fuse-")[1].split("}")[0]
        rows = [line[: -len(" \\\\")].split(" & ") for line in body.splitlines() if " & " in line]
        found[label] = {row[0]: row[1:] for row in rows}
    return found


def test_latex_marks_the_best_and_escapes(results):
    text = tables.latex(results)
    assert "VQA\\_v2" in text
    fuse = latex_tables(text)["methods"]["FUSE (practical)"]
    assert fuse[0] == "\\textbf{0.800}"  # AUROC on the first dataset
    assert "\\textbf" not in fuse[1]  # beaten there by the baseline
    assert len(fuse) == 2 * len(METRICS)
    ece = list(METRICS).index("ece")
    assert "textbf" not in fuse[2 * ece]  # less is better


def test_latex_has_every_table_of_the_paper(results):
    found = latex_tables(tables.latex(results))
    assert list(found) == ["methods", "sources", "conventions", "sensitivity", "curve-1"]
    rows = [name for name in found["methods"] if name not in ("", "Method")]
    assert rows == ["G-NLL", "KLE", "FUSE (practical)", "Mean-only u$^\\star$", "Mine"]
    assert "textbf" not in "".join(found["methods"]["Mine"])  # marks are for FUSE and baselines
    two = found["sources"]
    assert list(two)[2:] == ["Prior-only (practical)", "Fused (practical)"]
    assert two["Fused (practical)"][:2] == ["\\textbf{0.800}", "\\textbf{0.600}"]
    assert len(two["Fused (practical)"]) == 2 * len(SOURCES)
    assert len(found["conventions"]["G-NLL"]) == 2 * len(CONVENTIONS)
    assert found["methods"]["KLE"] == ["--"] * 2 * len(METRICS)
    assert list(found["sensitivity"])[2:] == ["Jitter"]
    assert found["curve-1"]["practical"] == ["0.600", "--"]


def test_json_is_plain(results):
    tree = json.loads(json.dumps(dataclasses.asdict(results)))
    cell = tree["rows"][2]["cells"]["OK"]
    assert cell["figures"]["risk_guaranteed"]["estimate"] == 0.1


def test_holm_against_the_definition():
    """Adjusted p ≤ α exactly for the hypotheses that Holm's step-down procedure rejects at α."""
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": 0.5}
    adjusted = holm(p)
    for alpha in (0.01, 0.02, 0.025, 0.05, 0.06, 0.1, 0.2, 0.6):
        rejected, left = set(), sorted(p, key=p.get)
        while left and p[left[0]] <= alpha / len(left):
            rejected.add(left.pop(0))
        assert {name for name, value in adjusted.items() if value <= alpha + 1e-12} == rejected
