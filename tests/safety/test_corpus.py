"""What once broke a reader: each input is read or refused now, by an error of fusevlm's own."""

import pytest
from tests.safety.prepared import Prepared
from tests.safety.targets import CORPUS, TARGETS, tried

KEPT = [path.relative_to(CORPUS).as_posix() for path in sorted(CORPUS.glob("*/*"))]


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """What reads the inputs of a target, made when it is first asked for."""
    home = tmp_path_factory.mktemp("corpus")
    prepared, made = Prepared(home), {}

    def reader(name):
        if name not in made:
            (home / "targets" / name).mkdir(parents=True)
            made[name] = TARGETS[name].make(prepared, home / "targets" / name)
        return made[name]

    return reader


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_read(name, readers):
    """Or else the fuzzing would spoil what is refused anyway."""
    seeds, _, read = readers(name)
    assert [tried(read, payload) for payload in seeds] == [True] * len(seeds)


@pytest.mark.parametrize("kept", KEPT)
def test_what_once_broke(kept, readers):
    _, _, read = readers(kept.partition("/")[0])
    tried(read, (CORPUS / kept).read_bytes())
