"""The mutation list stays applicable (fast) and every mutant is caught (slow)."""

import pytest
from tests import mutants


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_applies_exactly_once(mutant):
    assert (mutants.SOURCE / mutant.file).read_text().count(mutant.right) == 1
    assert mutant.right != mutant.wrong
    file, _, name = mutant.test.partition("::")
    assert f"def {name}(" in (mutants.ROOT / "tests" / file).read_text()


@pytest.mark.slow
def test_every_mutant_is_caught(tmp_path):
    assert len(mutants.MUTANTS) >= 20
    assert [m.name for m in mutants.hunt(tmp_path)] == []
