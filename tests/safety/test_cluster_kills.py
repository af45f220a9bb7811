"""Workers and heads of a cluster killed by their ids: every query is there exactly once.

``FUSEVLM_KILLS=all`` kills fifteen times, which takes minutes; five times otherwise.
"""

import os
import random
import re
from collections import Counter
from functools import partial

import pytest
from tests.pipeline.synthetic_runs import (
    config_of,
    differing,
    results,
    toml_of,
    tree_of,
    write_tables,
)
from tests.safety.clusters import HEADS, WORKER, Command, n_parts

from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.run import run_stages
from fusevlm.pipeline.verify import verify
from fusevlm.store.generations import read_generations

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
WORKERS, HEADS_KILLED = ((5, 4), 6) if os.environ.get("FUSEVLM_KILLS") == "all" else ((3,), 2)
SLOW = {"model": "synthetic:d=24,seconds=0.05", "n": 5, "batch": 4}
SIZES = {"n_calibration": 60, "n_test": 100}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tables, the config of a model that takes its time, and what one process makes of it."""
    home = tmp_path_factory.mktemp("kills")
    write_tables(home, **SIZES)
    (home / "slow.toml").write_text(toml_of(tree_of(home, sample=SLOW)))
    run_stages(home / "alone", config_of(home, sample=SLOW), to="score")
    return home


def words(home, run):
    return ["score", home / "slow.toml", "--run", run, "--engine", "ray", "--workers", "2"]


def exactly_once(run):
    asked = [query.id for query in read_asked(run)]
    assert [g.query_id for g in read_generations(run / "sample")] == asked
    assert set(Counter(asked).values()) == {1}


def further(run, at, command, kind):
    """Whether so many parts are there, and a process of that kind."""
    return n_parts(run, "sample") >= at and command.below(kind)


def test_workers_killed_in_the_middle(home, tmp_path, tally):
    """Some of them in each run, each in the middle of its piece."""
    dice, kills = random.Random(8), 0
    for number, times in enumerate(WORKERS):
        run = tmp_path / f"run{number}"
        command = Command(words(home, run), tmp_path / f"said{number}.txt")
        for at in sorted(dice.sample(range(2, 32), times)):
            command.wait_for(partial(further, run, at, command, WORKER), f"{at} parts")
            command.kill(dice.choice(command.below(WORKER)))
            kills += 1
        assert command.end() in (0, 3), command.said()
        exactly_once(run)
        assert differing(home / "alone", run) == []
        assert verify(run) == []
    tally(f"score --engine ray: {kills} workers killed; every query once, 0 files differ")


def test_the_head_killed_and_the_command_given_again(home, tmp_path, tally):
    """In turns the control store and the node's own process; then it is left alone."""
    run, kills = tmp_path / "run", 0
    for number in range(HEADS_KILLED):
        command, kind = Command(words(home, run), tmp_path / f"{number}.txt"), HEADS[number % 2]
        at = n_parts(run, "sample") + 2
        command.wait_for(partial(further, run, at, command, kind), f"{at} parts")
        (head,) = command.below(kind)
        command.kill(head)
        kills += 1
        assert command.end() == 1, command.said()
        assert "give the same command again" in command.said()
        assert re.search("the cluster (went away|failed)", command.said()), command.said()
        assert n_parts(run, "sample") < 40, "nothing is left to be killed in"
    command = Command(words(home, run), tmp_path / "last.txt")
    assert command.end() in (0, 3), command.said()
    exactly_once(run)
    assert differing(home / "alone", run) == []
    assert len(results(run)) > 100
    tally(f"score --engine ray: {kills} heads killed; every query once, 0 files differ")
