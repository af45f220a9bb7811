"""Our docstrings as Markdown, for the reference: an extension of griffe, which reads them.

They are written to be read in an editor: roles (``:class:`Samples```), names and what they mean in
two columns, tables ruled with ``=``, examples after ``>>>``. What a field of a class means may
stand behind it as a comment. Here all of that becomes links, tables and code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import griffe

ROLE = re.compile(r":(class|func|meth|mod|data|attr):`([\w.]+)`")
ENTRY = re.compile(r"(?P<name>[^\s*]\S*(?:,? \S+)*?) {2,}(?P<text>\S.*)")
STARRED = re.compile(r"(?<![\w*])([A-Za-zθ])\*")  # u*, θ*: no emphasis
RULE = re.compile(r"=+(?: +=+)+")
COMMENT = re.compile(r"#\s+(?P<text>\S.*)$")
NO_COMMENT = ("fmt:", "noqa", "type:")


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of all that is loaded, each once."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """After griffe has made an object with its members."""
        if obj.is_class:
            describe_fields(obj)
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj)


def describe_fields(cls: Any) -> None:
    """Comments behind the fields of a class join its docstring, as the columns they would be."""
    known = "" if cls.docstring is None else cls.docstring.value
    listed = {word for line in known.splitlines() for word in names_of(line)}
    rows = [
        f"{name}  {text}"
        for name, text in commented(cls)
        if name not in listed and not name.startswith("_")
    ]
    if rows:
        text = "\n\n".join(filter(None, [known, "\n".join(rows)]))
        cls.docstring = griffe.Docstring(text, parent=cls)


def names_of(line: str) -> list[str]:
    """The names before the text in a line of two columns."""
    found = ENTRY.fullmatch(line)
    return re.split(r",? ", found["name"]) if found else []


def commented(cls: Any) -> Iterator[tuple[str, str]]:
    """(field, comment behind it) of a class."""
    for name, member in cls.members.items():
        if member.is_alias or not member.is_attribute or member.lineno is None:
            continue
        line = cls.filepath.read_text(encoding="utf-8").splitlines()[member.endlineno - 1]
        found = COMMENT.search(code_free(line))
        if found and not found["text"].startswith(NO_COMMENT):
            yield name, found["text"]


def code_free(line: str) -> str:
    """A line from its comment on; nothing where the only # is inside a string."""
    for at in (k for k, letter in enumerate(line) if letter == "#"):
        try:
            ast.parse(line[:at].strip())
        except SyntaxError:
            continue
        return line[at:]
    return ""


def markdown(text: str, where: Any = None) -> str:
    """A docstring as Markdown; ``where`` is the object whose names it uses."""
    found: list[str] = []
    lines = text.splitlines()
    while lines:
        size, made = next(filter(None, (read(lines) for read in READERS)), (1, lines[:1]))
        found += made
        lines = lines[size:]
    code = False
    for k, line in enumerate(found):  # what is code already stays as it is
        code ^= line.startswith("```")
        if not code and not line.startswith(("    ", "```")):
            found[k] = STARRED.sub(r"\1\\*", ROLE.sub(lambda m: linked(m[2], m[1], where), line))
    return "\n".join(found)


def linked(name: str, role: str, where: Any) -> str:
    """A name as code, with a link where the reference has it; of a long one the last part."""
    try:
        path = where.resolve(name)
    except (griffe.NameResolutionError, AttributeError):
        path = name
    shown = name if role == "mod" else name.rsplit(".", 1)[-1]
    return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'


Block = tuple[int, list[str]]  # how many lines it took, and what became of them


def example(lines: Sequence[str]) -> Block | None:
    """Lines after >>> as code."""
    size = _count(lines, lambda line: line.startswith((">>>", "...")))
    if not size:
        return None
    code = [re.sub(r"\s*# doctest:.*", "", line[4:]) for line in lines[:size]]
    return size, ["", "```python", *code, "```", ""]


def ruled(lines: Sequence[str]) -> Block | None:
    """A table between lines of =: its first row is the head."""
    if not RULE.fullmatch(lines[0]):
        return None
    size = _count(lines, bool)  # to the next empty line
    rows = [
        re.split(r" {2,}", line, maxsplit=1) for line in lines[:size] if not RULE.fullmatch(line)
    ]
    return size, ["", _row(rows[0]), "|---|---|", *map(_row, rows[1:]), ""]


def columns(lines: Sequence[str]) -> Block | None:
    """Names with what they mean beside them; lines that are set in go on with the one before."""
    if not ENTRY.fullmatch(lines[0]) or lines[0].startswith(" "):
        return None
    size = 1 + _count(
        lines[1:], lambda line: bool(ENTRY.fullmatch(line)) or line.startswith("    ")
    )
    rows: list[list[str]] = []
    for line in lines[:size]:
        found = None if line.startswith(" ") else ENTRY.fullmatch(line)
        if found:
            rows.append([_code(found["name"]), found["text"]])
        else:
            rows[-1][1] += " " + line.strip()
    return size, ["", "| | |", "|---|---|", *map(_row, rows), ""]


READERS = (example, ruled, columns)


def _code(name: str) -> str:
    return name if "`" in name else ", ".join(f"`{one}`" for one in name.split(", "))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.strip().replace('|', chr(92) + '|') for cell in cells)} |"


def _count(lines: Sequence[str], holds: Any) -> int:
    """How many lines it holds of, from the first on."""
    return next((k for k, line in enumerate(lines) if not holds(line)), len(lines))
