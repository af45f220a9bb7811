"""Any text as LaTeX that pdflatex takes: plain ASCII, nothing of it read as a command."""

from __future__ import annotations

import unicodedata

PACKAGES = "% \\usepackage{booktabs,graphicx}\n"
SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "[": "{[}",  # after a line break it would begin an option
    "]": "{]}",
    "*": "$^\\star$",
    **{c: f"${c}$" for c in "<>|"},
    **{"²": "$^2$", "³": "$^3$", "₀": "$_0$", "Ṽ": "$\\tilde V$"},
    **{"−": "$-$", "–": "--", "—": "---", "±": "$\\pm$", "×": "$\\times$", "·": "$\\cdot$"},
    **{"≥": "$\\geq$", "≤": "$\\leq$", "≠": "$\\neq$", "≈": "$\\approx$", "∞": "$\\infty$"},
    **{"→": "$\\rightarrow$", "…": "\\ldots{}", "’": "'", "‘": "`", "“": "``", "”": "''"},
}  # fmt: skip
GREEK = "αβγδεζηθικλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ"  # that LaTeX has commands for
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u",
    "\u0307": ".", "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip


def tex(text: str) -> str:
    """``text`` taken literally; a letter that pdflatex has not is named by its code point."""
    return "".join(_letter(c) for c in text)


def _letter(c: str) -> str:
    if c in SPECIAL:
        return SPECIAL[c]
    if not c.isprintable():
        return " "
    if c.isascii():
        return c
    if c in GREEK:
        _, case, *_, name = unicodedata.name(c).replace("LAMDA", "LAMBDA").split()
        return f"$\\{name.lower() if case == 'SMALL' else name.capitalize()}$"
    whole = unicodedata.normalize("NFD", c)
    base, marks = whole[0], whole[1:]
    if base.isascii() and base.isalpha() and marks in ACCENTS:
        return f"\\{ACCENTS[marks]}{{{base}}}"
    return f"\\texttt{{U+{ord(c):04X}}}"
