"""Imports point one way: each room may use only what stands below it, and no two use each other.

``python -m tests.test_architecture`` prints the rooms, level by level, with what each one uses.
"""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fusevlm

ROOT = Path(fusevlm.__file__).parent

# from the ground up; a room may import from its own level only where that makes no circle
LEVELS = [
    {"errors", "checks", "displays", "meanings", "responses", "types", "config", "settings",
     "embedded"},
    {"store"},
    {"maths"},
    {"metrics", "fuse"},
    {"data", "models", "priors", "semantics", "scores", "render"},
    {"pipeline", "assistant", "baselines", "scorer", "testing"},
    {"cli", "serve"},
]  # fmt: skip
NUMPY_AND_SCIPY_ONLY = {"maths", "metrics", "fuse"}
WRITERS = {"store"}  # the only room that writes files


def modules():
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.parent != ROOT or
                  path.name != "__init__.py")  # fmt: skip


def room(path):
    return path.parts[0].removesuffix(".py")


def level(name):
    return next(i for i, rooms in enumerate(LEVELS) if name in rooms)


@cache
def imported(path):
    """Names imported anywhere in the file, also inside functions, not for type checkers alone."""
    return list(_imported(path))


def _imported(path):
    tree = ast.parse((ROOT / path).read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fusevlm":
                yield from (f"fusevlm.{alias.name}" for alias in node.names)
            else:
                yield node.module


@cache
def uses():
    """room: the rooms it imports from."""
    found = {name: set() for rooms in LEVELS for name in rooms}
    for path in modules():
        for name in imported(path):
            if name.startswith("fusevlm.") and name != "fusevlm.__version__":
                found[room(path)].add(name.split(".")[1])
    return {name: used - {name} for name, used in found.items()}


def test_every_file_has_a_room():
    assert {room(path) for path in modules()} == set().union(*LEVELS)


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_down(path):
    for name in imported(path):
        if name.startswith("fusevlm.") and name != "fusevlm.__version__":
            used = name.split(".")[1]
            assert level(used) <= level(room(path)), f"{path} imports {name}"


def test_no_two_rooms_use_each_other():
    list(TopologicalSorter(uses()).static_order())  # raises CycleError


@pytest.mark.parametrize("path", modules(), ids=str)
def test_the_mathematics_needs_numpy_and_scipy_only(path):
    if room(path) not in NUMPY_AND_SCIPY_ONLY:
        return
    for name in imported(path):
        top = name.split(".")[0]
        assert top in {"fusevlm", "numpy", "scipy"} or top in sys.stdlib_module_names


def test_the_library_does_not_print():
    for path in modules():
        if room(path) != "cli" and path.name != "__main__.py":
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                called = getattr(node, "func", None)
                assert getattr(called, "id", None) != "print", path


def test_only_the_store_writes_files():
    for path in modules():
        if room(path) in WRITERS:
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            called = getattr(getattr(node, "func", None), "attr", "")
            assert called not in ("write_bytes", "write_text", "rmtree"), f"{path}: {called}"


if __name__ == "__main__":
    for number, rooms in reversed(list(enumerate(LEVELS))):
        for name in sorted(rooms):
            used = sorted(uses()[name], key=lambda other: (-level(other), other))
            print(f"{number}  {name:10} → {', '.join(used) or '–'}")
