"""Imports point one way: each room may use only what stands below it."""

import ast
import sys
from pathlib import Path

import pytest

import fusevlm

ROOT = Path(fusevlm.__file__).parent

# from the ground up; a module may import only from its own layer's files or those below
LAYERS = [
    {"errors", "__init__"},
    {"checks", "logs"},
    {"maths", "metrics", "correctness", "config"},
    {"calibrate", "report"},
    {"thresholds", "types", "presets"},
    {"store"},
    {"priors"},
    {"adapter"},
    {"responses", "simulate", "backends", "data"},
    {"semantics"},
    {"scores"},
    {"model"},
    {"fuse"},
    {"ablations"},
    {"embedded"},
    {"pipeline"},
    {"assistant", "bench"},
    {"cli"},
]
NUMPY_AND_SCIPY_ONLY = {"maths", "metrics", "calibrate", "priors"}


def modules():
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def layer(room):
    return next(i for i, rooms in enumerate(LAYERS) if room in rooms)


def imported(path):
    """Names imported anywhere in the file, also inside functions."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fusevlm":
                yield from (f"fusevlm.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_down(path):
    if path.name == "__init__.py" and len(path.parts) == 1:
        return  # the lazy front door names everything and loads nothing
    room = path.parts[0].removesuffix(".py")
    for name in imported(path):
        if name.startswith("fusevlm.") and name != "fusevlm.__version__":
            used = name.split(".")[1]
            assert used == room or layer(used) < layer(room), f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_the_mathematics_needs_numpy_and_scipy_only(path):
    if path.parts[0] not in NUMPY_AND_SCIPY_ONLY:
        return
    for name in imported(path):
        top = name.split(".")[0]
        assert top in {"fusevlm", "numpy", "scipy"} or top in sys.stdlib_module_names


def test_the_library_does_not_print():
    for path in modules():
        if path.parts[0] != "cli":
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                called = getattr(node, "func", None)
                assert getattr(called, "id", None) != "print", path
