"""Blocks of the documentation that are made from the code: ``make refresh`` writes them anew.

CONTRIBUTING.md: the levels of imports and the tree by room. docs/cli.md: what each verb's
``--help`` says of its arguments. docs/serve.md: the faults. Tests compare them with the code.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
from pathlib import Path

from tests.tree import tree

from fusevlm.cli import COMMANDS, main
from fusevlm.serve.faults import table

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)


def replaced(page: str, heading: str, block: str) -> str:
    """``page`` with the first text block under ``heading`` replaced."""
    start = page.index(f"\n## {heading}\n")
    found = BLOCK.search(page, start)
    assert found is not None, heading
    return page[: found.start(1)] + block + page[found.end(1) :]


def help_of(verb: str) -> str:
    """Usage and arguments of a verb, without the examples and what all verbs share."""
    os.environ["COLUMNS"] = "90"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([verb, "--help"])
    usage, _, rest = text.getvalue().partition("\n\n")
    kept = []
    for part in re.split(r"\n(?:positional arguments|options):\n", rest)[1:]:
        part = re.split(r"\n\n(?!  )", part)[0]
        part = re.sub(r"^  -h, --help.*\n(?: {10,}.*\n)*", "", part, flags=re.MULTILINE)
        part = re.sub(r"^  --quiet .*\n?(?: {10,}.*\n)*", "", part, flags=re.MULTILINE)
        kept += [part.strip("\n")] if part.strip() else []
    return "\n".join([usage, *([""] if kept else []), *kept]) + "\n"


def levels() -> str:
    """What the test of the architecture prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        runpy.run_path(str(ROOT / "tests" / "test_architecture.py"), run_name="__main__")
    return text.getvalue()


def refresh() -> None:
    """Write all blocks."""
    path = ROOT / "CONTRIBUTING.md"
    page = replaced(path.read_text(), "Levels", levels())
    path.write_text(replaced(page, "The tree by room", tree() + "\n"))
    path = ROOT / "docs" / "cli.md"
    page = path.read_text()
    for verb in COMMANDS:
        if verb != "adapter":  # its actions have helps of their own
            page = replaced(page, verb, help_of(verb))
    path.write_text(page)
    path = ROOT / "docs" / "serve.md"
    page = path.read_text()
    path.write_text(page[: page.index("| status | code |")] + table())


if __name__ == "__main__":
    refresh()
