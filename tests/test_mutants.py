"""The mutation list stays applicable (fast) and every mutant is caught (slow)."""

import ast
import os
import subprocess
import sys
from dataclasses import replace
from itertools import groupby

import pytest
from tests import mutants
from tests.mutant_list import MUTANTS, Mutant

SOURCE = """
LIMITS = {"low": 1, "high": 2}

class Scale:
    def low(self, x, y):
        return f(x + 1,
                 (1 + 1) * (g(y * 2) + 1))

    def high(self, x):
        seen = x
        seen += 1
        f(seen)
        g(seen)
        return seen
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_applies_exactly_once(mutant):
    source = (mutants.SOURCE / mutant.file).read_text()
    assert mutants.mutated(mutant, source) != ast.unparse(ast.parse(source))
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (mutants.ROOT / "tests" / file).read_text()


def test_names_are_unique_and_rooms_together():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    rooms = [room for room, _ in groupby(MUTANTS, key=lambda mutant: mutant.room)]
    assert len(set(rooms)) == len(rooms)


@pytest.mark.parametrize(
    ("place", "right", "wrong", "before", "after"),
    [
        ("Scale.low", "x+ 1", "0", "x + 1", "0"),
        ("Scale.low", "g( y*2 ) + 1", "g(y * 3)", "g(y * 2) + 1", "g(y * 3)"),
        ("Scale.low", "1 + 1", "(1 - 1)", "1 + 1", "1 - 1"),
        (
            "Scale.high",
            "seen = x\nseen += 1",
            "seen = 0",
            "seen = x\n        seen += 1",
            "seen = 0",
        ),
        ("Scale.high", "seen += 1", "pass", "seen += 1", "pass"),
        ("Scale.high", "f(seen)\ng(seen)", "g(seen)", "f(seen)\n        g(seen)", "g(seen)"),
        ("Scale.high", "g(seen)", "if x: g(seen)", "g(seen)", "if x: g(seen)"),
        ("LIMITS", "2", "3", '"high": 2', '"high": 3'),
    ],
)
def test_a_change_is_made_in_its_place_only(place, right, wrong, before, after):
    found = mutants.mutated(Mutant("x", f"a.py:{place}", right, wrong, ""), SOURCE)
    assert SOURCE.count(before) == 1
    assert found == ast.unparse(ast.parse(SOURCE.replace(before, after)))


def test_what_is_not_there_just_once_is_refused():
    mutant = Mutant("x", "a.py:Scale.low", "1", "0", "")
    with pytest.raises(LookupError, match=r"a\.py:Scale\.low holds '1' 4 times"):
        mutants.mutated(mutant, SOURCE)
    with pytest.raises(LookupError, match="0 times"):
        mutants.mutated(replace(mutant, right="3"), SOURCE)
    with pytest.raises(ValueError, match="unpack"):
        mutants.mutated(replace(mutant, place="a.py:Scale.middle"), SOURCE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get("FUSEVLM_MUTANTS"), reason="make mutants hunts all of them")
def test_mutants_are_caught():
    """Some of every room (``make mutants``: all), in a process of its own: the one that tests are
    forked from must not know fusevlm."""
    command = [sys.executable, "-m", "tests.mutants", *(m.name for m in MUTANTS[::12])]
    done = subprocess.run(command, cwd=mutants.ROOT, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if not line.startswith("caught")]
    assert done.returncode == 0, "\n".join([*said, done.stderr])
    print(*said)
