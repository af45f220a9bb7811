"""Running stages that cost nothing: however a run came about, it is what a fresh one would be."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fusevlm.config import change_config, make_config
from fusevlm.errors import ArtefactError
from fusevlm.pipeline import run as running
from fusevlm.pipeline.run import Stage, run_stages, states
from fusevlm.store import hold, runs, save

CHAIN = {
    "first": Stage((), ("data.seed",)),
    "second": Stage(("first",), ("sample.seed",)),
    "third": Stage(("second",), ("calibrate.seed",)),
}
SEEDS = {name: stage.keys[0] for name, stage in CHAIN.items()}


@dataclass
class Maker:
    """The module of a stage; writes what it read: its key, the stage before it, a file outside."""

    name: str
    outside: Path
    made: list = field(default_factory=list)
    interrupted: bool = False
    chance: str = ""  # what is in the text and in no setting

    def inputs(self, config):
        return {"the file outside": self.outside} if self.name == "second" else {}

    def make(self, work):
        assert not runs.read_manifest(work.run, self.name).complete
        with pytest.raises(ArtefactError, match="in use by process"), hold(work.run):
            pass
        self.made.append(self.name)
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        before = [(work.run / name / "text").read_text() for name in CHAIN[self.name].after]
        text = written(self.name, work.config, before, self.outside.read_text()) + self.chance
        save(work.folder(self.name) / "text", text.encode())
        return {"letters": len(text)}


def written(name, config, before, outside):
    section = SEEDS[name].partition(".")[0]
    own = getattr(config, section).seed
    return f"{name} {own} {outside if name == 'second' else ''} [{' '.join(before)}]"


def as_if_fresh(config, outside):
    """The texts of all stages, by definition."""
    texts = {}
    for name, stage in CHAIN.items():
        texts[name] = written(name, config, [texts[k] for k in stage.after], outside)
    return texts


@pytest.fixture
def makers(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.write_text("a")
    found = {name: Maker(name, outside) for name in CHAIN}
    monkeypatch.setattr(running, "STAGES", CHAIN)
    monkeypatch.setattr(running, "_module", found.__getitem__)
    return found


def bring_up(run, config):
    """Give the command, and again after interruptions; follow the advice about a stale stage."""
    redo, advised = None, 0
    before = runs.read_run(run) if runs.is_run(run) else None
    while True:
        try:
            return run_stages(run, config, redo=redo)
        except KeyboardInterrupt:
            redo = None
            assert "incomplete" in {state.kind for state in states(run, config).values()}
        except ArtefactError as refusal:
            redo = re.match(r"(\w+) is stale: .* --redo \1\n", str(refusal)).group(1)
            assert runs.read_run(run) == before  # nothing was changed
            advised += 1
            assert advised == 1, "the advice did not help"


def test_a_run_is_what_a_fresh_one_would_be(tmp_path, makers):
    """A walk through changed keys, changed files and interruptions, in any order."""
    dice = random.Random(0)
    run, config = tmp_path / "run", make_config({"name": "walk"}, "test")
    for _ in range(25):
        for _ in range(dice.randrange(3)):
            what = dice.choice([*CHAIN, "outside", "interruption"])
            if what == "outside":
                makers["first"].outside.write_text(dice.choice("abc"))
            elif what == "interruption":
                makers[dice.choice(list(CHAIN))].interrupted = True
            else:
                config = change_config(config, [f"{SEEDS[what]}={dice.randrange(3)}"])
        manifests = bring_up(run, config)
        expected = as_if_fresh(config, makers["first"].outside.read_text())
        assert {name: (run / name / "text").read_text() for name in CHAIN} == expected
        assert all(manifests[name].complete for name in CHAIN)
        assert {state.kind for state in states(run, config).values()} == {"fresh"}
        assert runs.read_run(run) == config
        for maker in makers.values():
            maker.made.clear()
            maker.interrupted = False
        run_stages(run, config)
        assert not any(maker.made for maker in makers.values())  # done before


def test_a_change_reaches_the_stages_after_it_and_no_others(tmp_path, makers):
    config = make_config({"name": "x"}, "test")
    run_stages(tmp_path / "run", config)
    for maker in makers.values():
        maker.made.clear()
    other = change_config(config, ["sample.seed=1"])
    found = states(tmp_path / "run", other)
    assert {name: state.kind for name, state in found.items()} == {
        "first": "fresh",
        "second": "stale",
        "third": "fresh",  # as far as it can tell; it is removed with the second
    }
    run_stages(tmp_path / "run", other, redo="second")
    assert [name for name, maker in makers.items() if maker.made] == ["second", "third"]


def test_a_stage_made_again_makes_the_next_stale_if_it_differs(tmp_path, makers):
    run, config = tmp_path / "run", make_config({"name": "x"}, "test")
    run_stages(run, config)
    for chance, expected in (("", "fresh"), ("!", "stale")):
        makers["first"].chance = chance
        runs.set_aside(run, "first")
        run_stages(run, config, only="first")
        found = states(run, config)
        assert (found["second"].kind, found["third"].kind) == (expected, "fresh")
    assert found["second"].reason == "first was made again"
    with pytest.raises(ArtefactError, match="second is stale: first was made again"):
        run_stages(run, config)
