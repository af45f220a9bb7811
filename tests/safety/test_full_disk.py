"""A disk that is full at any moment: said in words, and what is done is kept."""

import random
import shutil
from functools import partial

import pytest
from tests.safety.children import FULL, Moment, run_child
from tests.safety.test_kills import fuse_of, same, table, tree

from fusevlm import Fuse
from fusevlm.pipeline.run import STAGES
from fusevlm.scorer import Scorer

pytestmark = pytest.mark.slow
FOR_EVER = 10**9
DONE, FAILED = 0, 1


def refused(ended):
    """Whether a command said that there is no room, and how to go on."""
    assert ended.code == FAILED, ended.said
    assert "Traceback" not in ended.said
    assert "No space left" in ended.said
    assert "same command again" in ended.said


def test_a_run_on_a_full_disk(whole, tmp_path, tally):
    """Full when a stage begins, and somewhere in it, for good or for a moment."""
    run, rng, full, passed = tmp_path / "run", random.Random(8), 0, 0
    for stage in STAGES:
        size, inside = whole.within(stage), f"/{stage}/"
        later = 1 if stage in ("sample", "calibrate") else FOR_EVER
        for at, times in ((0, FOR_EVER), (rng.randrange(size), later)):
            ended = run_child(whole.words(run), run, Moment(at, inside, FULL, times=times))
            if ended.code == DONE:  # what had no room was not needed, or the event needs none
                passed += 1
                same(run, whole)
                shutil.rmtree(run)
            else:
                refused(ended)
                full += 1
    assert run_child(whole.words(run), run).code == DONE
    same(run, whole)
    assert full >= 2 * len(STAGES) - 3
    tally(f"run: {full} full disks said, {passed} not met; 0 files differ")


def save(kind, source, target):
    kind.load(source).save(target)


def test_a_fit_saved_on_a_full_disk(tmp_path, tally):
    """The old fit stays."""
    fuse_of(1).save(tmp_path / "one")
    fuse_of(2).save(tmp_path / "two")
    target = tmp_path / "fit"
    shutil.copytree(tmp_path / "one", target)
    old, full = tree(target), 0
    for at in range(8):
        moment = Moment(at, kind=FULL, times=FOR_EVER)
        ended = run_child(partial(save, Fuse, tmp_path / "two", target), target, moment)
        if ended.code:
            assert "ArtefactError: cannot write" in ended.said
            assert tree(target) == old or Fuse.load(target)
            full += 1
    save(Fuse, tmp_path / "two", target)
    assert tree(target) == tree(tmp_path / "two")
    assert full >= 4
    tally(f"Fuse.save: {full} full disks; 0 unloadable")


def test_a_fit_from_a_table_on_a_full_disk(tmp_path, tally):
    words = ["fit", str(table(tmp_path / "t.jsonl", 1)), "--towers", "none", "--quiet", "--out"]
    target, full = tmp_path / "fit", 0
    events = len(run_child([*words, str(tmp_path / "alone")], tmp_path / "alone").events)
    for at in range(0, events, 3):
        ended = run_child([*words, str(target)], target, Moment(at, kind=FULL, times=FOR_EVER))
        if ended.code:
            refused(ended)
            full += 1
    assert run_child([*words, str(target)], target).code == DONE
    Scorer.load(target)
    assert tree(target) == tree(tmp_path / "alone")
    tally(f"fit TABLE --out: {full} full disks; 0 files differ")
