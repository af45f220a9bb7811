"""LaTeX that pdflatex takes, told by a reader of its own; ``make test-latex`` compiles for real."""

import re

import pytest
from tests.latex import HOSTILE, hostile_results

from fusevlm.render import tables
from fusevlm.render.tex import tex

# what stands in a table: commands of LaTeX itself, of booktabs and graphicx, and of mathematics
KNOWN = {
    "begin", "end", "centering", "resizebox", "linewidth", "toprule", "midrule", "bottomrule",
    "multicolumn", "textbf", "texttt", "caption", "usepackage", "uparrow", "downarrow",
    "textbackslash", "textasciitilde", "textasciicircum", "label", "star", "tilde", "tau", "theta",
    "geq", "alpha", "sigma",
}  # fmt: skip
TOKEN = re.compile(r"\\([A-Za-z]+|.)|(.)", re.DOTALL)


def tokens(text):
    """Commands as \\name, comments dropped, everything else letter by letter."""
    bare = re.sub(r"(?<!\\)%.*", "", text)
    return [f"\\{m[1]}" if m[1] else m[2] for m in TOKEN.finditer(bare)]


def check_structure(text):
    """Balanced braces, mathematics and environments; known commands; full rows. Rows counted."""
    assert text.isascii()
    depth, math, rows = 0, False, 0
    for token in tokens(text):
        depth += {"{": 1, "}": -1}.get(token, 0)
        math ^= token == "$"
        assert depth >= 0
        if len(token) > 2 and token[1].isalpha():
            assert token[1:] in KNOWN, token
    assert depth == 0
    assert not math
    stack = []
    for kind, name in re.findall(r"(?<!\\)\\(begin|end)\{(\w+\*?)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lcr]+)\}(.*?)\\end\{tabular\}", text,
                                    re.DOTALL):  # fmt: skip
        for row in re.split(r"\\\\", body)[:-1]:
            parts = "".join("\0" if t == "&" else t for t in tokens(row)).split("\0")
            spans = [re.search(r"\\multicolumn\{(\d+)\}", part) for part in parts]
            assert sum(int(span[1]) if span else 1 for span in spans) == len(columns), row
            assert not re.sub(r"\\(top|mid|bottom)rule", "", row).strip().startswith(("[", "*"))
            rows += 1
    return rows


def test_every_title_and_hostile_names_are_tables():
    results = hostile_results()
    text = tables.latex(results)
    rows = check_structure(text)
    one = [r for r in results.rows if r.group in ("Baselines", "FUSE", "Ablations")]
    few = [r for r in results.rows if r.group in ("Readings", "Sensitivity")]
    # two heads of each of five tables: methods, conventions, sources (6 rows) and two of the few
    assert rows == 2 * len(one) + 6 + len(few) + 10
    assert text.startswith("% \\usepackage{booktabs,graphicx}\n")
    assert "U+65E5" in text  # named, since pdflatex has no such letter


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("\\begin{tabular}{lc}\na & b & c \\\\\n\\end{tabular}", "a & too many"),
        ("\\begin{tabular}{lc}\na \\\\\n\\end{tabular}", "one too few"),
        ("\\textbf{a", "a brace"),
        ("$a", "mathematics"),
        ("−", "a letter"),
        ("\\undefined", "a command"),
        ("\\begin{table}", "an environment"),
        ("\\begin{tabular}{l}\na \\\\\n[b] \\\\\n\\end{tabular}", "an option of the line break"),
    ],
)
def test_the_reader_finds_what_does_not_compile(broken, why):
    with pytest.raises((AssertionError, IndexError)):
        check_structure(broken)


def test_signs_one_by_one():
    assert tex("a_b & 5% #1") == "a\\_b \\& 5\\% \\#1"
    assert tex("τ² θ* Ṽ λ Δ") == "$\\tau$$^2$ $\\theta$$^\\star$ $\\tilde V$ $\\lambda$ $\\Delta$"
    assert tex("1 − NTL ≥ –") == "1 $-$ NTL $\\geq$ --"
    assert tex("\\x{}") == "\\textbackslash{}x\\{\\}"
    assert tex("éüčçõ") == "\\'{e}\\\"{u}\\v{c}\\c{c}\\~{o}"
    assert tex("\u00f8\n日\x00") == "\\texttt{U+00F8} \\texttt{U+65E5} "
    assert tex("A–z 0.9") == "A--z 0.9"
    for name in HOSTILE:
        check_structure(tex(name))
