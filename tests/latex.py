"""Does LaTeX take what a bench writes? Needs pdflatex; ``make test-latex`` installs it.

    python -m tests.latex                    a small simulated bench
    python -m tests.latex OUT [OUT …]        folders of finished benches

Each results.tex is set with the PDFs of its figures, and with a table of every method's title and
of names full of signs that LaTeX reads as commands.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from fusevlm.pipeline.bench import Bench, Curves, run_bench
from fusevlm.pipeline.methods import METHODS, find_method
from fusevlm.render import tables
from fusevlm.render.results import METRICS, Cell, Place, Results, Row
from fusevlm.scores import SCORES

HOSTILE = [
    "a_b^c~d",
    "50% & #1 {x} \\end{table} $y$",
    "[opt] *star* <|> “é ü č ø”",
    "Ṽ τ² θ* ≥ −1",
    "日本",
]
PAGE = """\\documentclass{article}
\\usepackage{booktabs,graphicx}
\\begin{document}
%s
\\end{document}
"""


def hostile_results() -> Results:
    """A row for every method there is, and for names no one should give."""
    value = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    places = [Place(name, 5, 5, 0, value, "g_nll", "strings") for name in HOSTILE[:2]]
    cell = Cell(dict.fromkeys(METRICS, value))
    cells = {place.name: cell for place in places}
    methods = [find_method(name) for name in (*METHODS, *SCORES)]
    rows = [Row(m.name, m.title, m.group, cells) for m in methods]
    rows += [Row(name, name, group, cells) for name in HOSTILE for group in ("FUSE", "Sources")]
    return Results("hostile", places, rows)


def document(folder: Path) -> str:
    """The tables and figures of a bench."""
    figures = sorted(folder.rglob("*.pdf"))
    shown = [f"\\includegraphics[width=\\linewidth]{{{path.resolve()}}}\\par" for path in figures]
    return PAGE % "\n".join([(folder / "results.tex").read_text(), "\\clearpage", *shown])


def compiled(text: str, name: str) -> bool:
    """Whether pdflatex makes a PDF of it; says what it said otherwise."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "main.tex").write_text(text)
        words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
        found = subprocess.run(words, cwd=place, capture_output=True, text=True, errors="replace")
        good = found.returncode == 0 and (Path(place) / "main.pdf").is_file()
    tail = [line for line in found.stdout.splitlines() if line.startswith(("!", "l.", "Output"))]
    print(f"{name}: {'compiles' if good else 'FAILS'}. {' '.join(tail)}")
    return good


def simulated(out: Path) -> Path:
    """A bench of one place whose samples are stored already."""
    from tests.pipeline.conftest import TREE, make_run

    methods = ["g_nll", "ln_entropy", "ntl", "practical", "paper", "evidence-only", "paper_mean"]
    own = {"calibrate": {"methods": methods}, "report": {"examples": 8}}
    config, _ = make_run(out / "VQA_v2", {**TREE, **own})
    curves = Curves((2, 6), (("exact_match", None), ("rouge_l", 0.5)), ("practical", "g_nll"))
    run_bench(Bench("trial", {"VQA_v2": config}, curves), out)
    return out


def main(words: list[str]) -> int:
    good = compiled(PAGE % tables.latex(hostile_results()), "every title, hostile names")
    with tempfile.TemporaryDirectory() as place:
        for folder in [Path(word) for word in words] or [simulated(Path(place))]:
            good &= compiled(document(folder), str(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
