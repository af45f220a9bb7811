"""The tree by room, from the files' own docstrings: ``python -m tests.tree`` (or ``make tree``).

CONTRIBUTING.md holds what this prints; a test compares the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import LEVELS

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "fusevlm"
WIDTH = 24


def first_line(path: Path) -> str:
    """The first line of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n")[0].replace("``", "`")


def line(depth: int, name: str, about: str) -> str:
    return f"{'  ' * depth + name:<{WIDTH}}{about}"


def room(path: Path, depth: int) -> Iterator[str]:
    """A file, or a folder with what is in it."""
    if path.is_file():
        yield line(depth, path.name, first_line(path))
        return
    yield line(depth, f"{path.name}/", first_line(path / "__init__.py"))
    inside = [
        p for p in sorted(path.iterdir()) if p.suffix == ".py" or (p / "__init__.py").is_file()
    ]
    for inner in inside:
        if inner.name != "__init__.py":
            yield from room(inner, depth + 1)


def tree() -> str:
    """Rooms from the top level of imports down, then the factory."""
    lines = [line(0, "src/fusevlm/", first_line(SOURCE / "__init__.py"))]
    for names in reversed(LEVELS):
        for name in sorted(names):
            folder = SOURCE / name
            lines += room(folder if folder.is_dir() else folder.with_suffix(".py"), 1)
    lines += room(REPOSITORY / "factory", 0)
    return "\n".join(lines)


if __name__ == "__main__":
    print(tree())
