"""The reference is whole: every public name, every field of what it returns, all of it Markdown."""

import dataclasses
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import fusevlm
from fusevlm import metrics

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
PLACES = [
    place
    for page in PAGES
    for place in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def docstrings():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    sys.path.insert(0, str(ROOT / "docs" / "_tools"))
    yield import_module("docstrings")
    sys.path.pop(0)


def found(place):
    """What a place of the reference names."""
    parts = place.split(".")
    for size in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(place)


@pytest.mark.parametrize("name", fusevlm.__all__)
def test_every_public_name_is_in_the_reference(name):
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    assert re.search(rf"`(?:fusevlm\.)?{name}`", index)
    assert f"fusevlm.{name}" in PLACES or name == "__version__"


@pytest.mark.parametrize("name", metrics.__all__)
def test_every_metric_is_in_the_reference(name):
    assert f"fusevlm.metrics.{name}" in PLACES


def test_every_place_is_there_once_and_says_what_it_is():
    assert len(set(PLACES)) == len(PLACES) > 60
    for place in PLACES:
        assert found(place).__doc__, place


def classes():
    """The classes of the reference, those in its modules included."""
    things = [found(place) for place in PLACES]
    inside = [
        thing
        for owner in things
        if isinstance(owner, ModuleType)
        for thing in vars(owner).values()
        if getattr(thing, "__module__", "") == owner.__name__ and isinstance(thing, type)
    ]
    every = [*things, *inside]
    return {c for c in every if isinstance(c, type) and not c.__name__.startswith("_")}


def test_every_field_of_a_result_is_described(docstrings):
    import griffe

    package = griffe.load("fusevlm", search_paths=[ROOT / "src"])
    checked = 0
    for cls in sorted(classes(), key=lambda cls: cls.__qualname__):
        if not dataclasses.is_dataclass(cls):
            continue
        own = package[f"{cls.__module__}.{cls.__name__}".removeprefix("fusevlm.")]
        docstrings.describe_fields(own)
        text = own.docstring.value
        told = {word for line in text.splitlines() for word in docstrings.names_of(line)}
        told |= set(re.findall(r"``(\w+)``", text))
        inherited = {f.name for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)
                     for f in dataclasses.fields(base)}  # fmt: skip
        names = {f.name for f in dataclasses.fields(cls) if not f.name.startswith("_")}
        assert names - inherited <= told, f"{cls.__name__}: {names - inherited - told}"
        checked += 1
    assert checked > 25


# --- docstrings as Markdown -----------------------------------------------------------------------


def test_columns_become_a_table(docstrings):
    text = "What.\n\nrisk    wanted, a|b\n        rate of errors\nn, m    two numbers\n\nThe rest."
    assert docstrings.markdown(text) == (
        "What.\n\n\n| | |\n|---|---|\n| `risk` | wanted, a\\|b rate of errors |\n"
        "| `n`, `m` | two numbers |\n\n\nThe rest."
    )


def test_ruled_tables_keep_their_head(docstrings):
    text = "====  =====\nrule  holds\n====  =====\n``a``  P(R > r)\n====  =====\n\nAfter."
    assert docstrings.markdown(text) == (
        "\n| rule | holds |\n|---|---|\n| ``a`` | P(R > r) |\n\n\nAfter."
    )


def test_examples_become_code(docstrings):
    text = ">>> fuse.fit(x)   # doctest: +SKIP\n>>> fuse.u*2\n\nu* is not *emphasised*, that is."
    assert docstrings.markdown(text) == (
        "\n```python\nfuse.fit(x)\nfuse.u*2\n```\n\n\nu\\* is not *emphasised*, that is."
    )


def test_formulas_stay_code(docstrings):
    text = "So\n\n    a0  = u* + 1\n    v   = 2\n\nand so on."
    assert docstrings.markdown(text) == text


def test_roles_become_links(docstrings):
    import griffe

    package = griffe.load("fusevlm", search_paths=[ROOT / "src"])
    line = docstrings.markdown("See :class:`Samples`.", package["types.Queries"])
    assert line == (
        'See <autoref identifier="fusevlm.types.Samples" optional><code>Samples</code></autoref>.'
    )
    assert "<code>nowhere</code>" in docstrings.markdown("See :func:`made.up.nowhere`.")
    assert "<code>fusevlm.fuse.drift</code>" in docstrings.markdown(
        "See :mod:`fusevlm.fuse.drift`."
    )


def test_comments_are_found_behind_code_only(docstrings):
    assert docstrings.code_free('x: str = "#1"') == ""
    assert docstrings.code_free('x: str = "#1"  # a colour') == "# a colour"
    assert docstrings.code_free("x: int = 1") == ""


def test_no_docstring_of_the_reference_is_left_as_it_is_in_the_editor(docstrings):
    for place in PLACES:
        thing = found(place)
        members = (
            [v for k, v in vars(thing).items() if k[0] != "_"] if isinstance(thing, type) else []
        )
        for one in [thing, *members]:
            text = docstrings.markdown(inspect.getdoc(one) or "")
            assert not re.search(r":\w+:`|^>>>|^====", text, re.MULTILINE), place
