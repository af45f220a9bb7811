"""Killed at any moment, a command that is given again ends as if it had not been killed."""

import json
import random
import shutil
from functools import partial

import numpy as np
import pytest
from tests.safety.children import KILL, TERM, TIMED, Moment, run_child
from tests.safety.small import results

from fusevlm import Fuse, simulate
from fusevlm.data.sampled import read_sampled
from fusevlm.pipeline.run import STAGES
from fusevlm.pipeline.verify import verify
from fusevlm.scorer import Scorer
from fusevlm.store.runs import leftovers, set_aside

pytestmark = pytest.mark.slow
KILLED, ENDED = -9, 130  # by SIGKILL; after a request to end
POLITE = ("data", "sample", "calibrate", "report")


def same(run, whole):
    """Whether a run is as an uninterrupted one, to the last byte."""
    found = results(run)
    assert found.keys() == whole.results.keys()
    assert [name for name in found if found[name] != whole.results[name]] == []
    assert verify(run) == []


def moments(whole, rng):
    """Three kills in each stage, and a few requests to end: at events, and by the clock."""
    for stage in STAGES:
        size = whole.within(stage)
        inside = f"/{stage}/"
        yield stage, Moment(rng.randrange(size // 2), inside, KILL)
        yield stage, Moment(0, inside, TIMED, delay=rng.uniform(0.0, 0.8) * whole.seconds[stage])
        yield stage, Moment(rng.randrange(size // 2, size), inside, KILL)
        if stage in POLITE:
            yield stage, Moment(rng.randrange(size // 3), inside, TERM)


def test_a_run_killed_in_every_stage(whole, tmp_path, tally):
    run, codes = tmp_path / "run", []
    for stage, moment in moments(whole, random.Random(1)):
        ended = run_child(whole.words(run), run, moment)
        assert ended.code in (ENDED if moment.kind == TERM else KILLED, 0), (stage, ended.said)
        codes.append(ended.code)
        if ended.code == 0:  # a slow clock: it was done before
            same(run, whole)
            shutil.rmtree(run)
    assert run_child(whole.words(run), run).code == 0
    same(run, whole)
    assert codes.count(KILLED) >= 3 * len(STAGES) - 3
    tally(f"run: {codes.count(KILLED)} kills, {codes.count(ENDED)} requests to end; 0 files differ")


@pytest.mark.parametrize(("stage", "on"), [("data", "same"), ("sample", "without"),
                                           ("score", "same"), ("report", "without")])  # fmt: skip
def test_redo_killed_while_setting_aside(whole, tmp_path, tally, stage, on):
    """Given again as it was, or as the message says: without --redo."""
    run, rng = tmp_path / "run", random.Random(stage)
    shutil.copytree(whole.run, run)
    again = whole.words(run, "--redo", stage)
    renames = len([s for s in STAGES if (run / s).is_dir()]) - list(STAGES).index(stage)
    for at in sorted(rng.sample(range(2, 5 + renames), 2)):  # after the folder and its lock
        assert run_child(again, run, Moment(at)).code == KILLED
    ended = run_child(again if on == "same" else whole.words(run), run)
    assert ended.code == 0, ended.said
    same(run, whole)
    tally(f"run --redo {stage}: 2 kills while setting aside; 0 files differ")


def spoil(path):
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(bytes(whole))


def damage(run):
    """Parts, tables, a fit and a manifest of six stages."""
    spoil(run / "sample" / "part-00001.safetensors")
    (run / "sample" / "part-00003.json").unlink()
    (run / "embed" / "part-00002.parquet").unlink()
    spoil(run / "embed" / "part-00004.json")
    spoil(run / "pairs" / "part-00000.safetensors")
    spoil(run / "score" / "scores.parquet")
    spoil(run / "calibrate" / "practical" / "fuse.json")
    (run / "evaluate" / "stage.json").write_text("{")
    spoil(run / "report" / "index.html")


def test_repair_killed(whole, tmp_path, tally):
    run, rng = tmp_path / "run", random.Random(2)
    shutil.copytree(whole.run, run)
    damage(run)
    words = ["verify", str(run), "--repair", "--quiet"]
    probe = tmp_path / "probe"
    shutil.copytree(run, probe)
    size = len(run_child(["verify", str(probe), "--repair", "--quiet"], probe).events)
    kills = 0
    for _ in range(5):
        ended = run_child(words, run, Moment(rng.randrange(2, size // 2)))
        assert ended.code in (KILLED, 0), ended.said
        kills += ended.code == KILLED
    assert run_child(words, run).code == 0
    ended = run_child(whole.words(run), run)
    assert ended.code == 0, ended.said
    same(run, whole)
    assert kills >= 3
    tally(f"verify --repair: {kills} kills; 0 files differ")


def test_clean_killed(whole, tmp_path, tally):
    run, rng = tmp_path / "run", random.Random(3)
    shutil.copytree(whole.run, run)
    for stage in ("data", "sample", "calibrate", "report"):
        set_aside(run, stage)
        shutil.copytree(whole.run / stage, run / stage)
        (run / stage / f".{stage}.0a1b2c3d.tmp").write_bytes(b"half")
    words = ["clean", str(run), "--yes", "--quiet"]
    for _ in range(5):
        assert run_child(words, run, Moment(rng.randrange(2, 40))).code == KILLED
        same(run, whole)
    assert run_child(words, run).code == 0
    assert leftovers(run, STAGES) == []
    same(run, whole)
    tally("clean --yes: 5 kills; 0 files differ")


# ------------------------------------------------------------------------------------------- fits


def save_for_ever(kind, sources, target):
    """Save two fits in turns, one over the other."""
    fits = [kind.load(source) for source in sources]
    for number in range(1000):
        fits[number % 2].save(target)


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*"))
            if p.is_file() and not p.name.startswith(".")}  # fmt: skip


def fuse_of(seed):
    world = simulate.queries(60, n_samples=5, d=8, seed=seed)
    return Fuse().fit(world.samples, world.wrong, s=world.s, extra={"x": world.s[::-1]})


def table(path, seed, size=60):
    """Labelled samples of a model that is right where its samples agree."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(size):
        sure = rng.random()
        said = ["yes" if rng.random() < sure else "no" for _ in range(5)]
        rows.append({"id": str(k), "question": f"is {k} a number", "samples": said,
                     "wrong": int(rng.random() > sure)})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def scorer_of(path, meanings):
    return Scorer.fit(read_sampled(path), towers="none", meanings=meanings)


@pytest.mark.parametrize("kind", [Fuse, Scorer])
def test_a_fit_saved_over_another_is_one_of_the_two(kind, tmp_path, tally):
    """Whole, and nothing of the one in the other."""
    made = [fuse_of(1), fuse_of(2)]
    if kind is Scorer:
        tables = [table(tmp_path / f"{k}.jsonl", k) for k in (1, 2)]
        made = [scorer_of(tables[0], "strings"), scorer_of(tables[1], "sentences")]
    sources = [tmp_path / "one", tmp_path / "two"]
    for one, source in zip(made, sources, strict=True):
        one.save(source)
    rng, target = random.Random(4), tmp_path / "fit"
    made[0].save(target)
    saving = partial(save_for_ever, kind, sources, target)
    kills = 0
    for number in range(12):
        delay = rng.uniform(0.0, 0.2)
        moment = Moment(rng.randrange(40)) if number % 3 else Moment(0, kind=TIMED, delay=delay)
        assert run_child(saving, target, moment).code == KILLED
        kills += 1
        again = tmp_path / "again"
        kind.load(target).save(again)
        assert tree(again) in [tree(source) for source in sources]
        shutil.rmtree(again)
    tally(f"{kind.__name__}.save over another: {kills} kills; 0 unloadable, 0 mixed")


def test_a_fit_from_a_table_killed(tmp_path, tally):
    first, second = (table(tmp_path / f"{k}.jsonl", k) for k in (1, 2))
    words = ["fit", str(second), "--towers", "none", "--quiet", "--out"]
    assert run_child([*words, str(tmp_path / "alone")], tmp_path / "alone").code == 0
    target, rng = tmp_path / "fit", random.Random(5)
    scorer_of(first, "strings").save(target)
    old, new = tree(target), tree(tmp_path / "alone")
    size = len(run_child([*words, str(tmp_path / "count")], tmp_path / "count").events)
    for at in sorted(rng.sample(range(size), 5)):
        assert run_child([*words, str(target)], target, Moment(at)).code == KILLED
        Scorer.load(target).save(tmp_path / "now")
        assert tree(tmp_path / "now") in (old, new)
        shutil.rmtree(tmp_path / "now")
    assert run_child([*words, str(target)], target).code == 0
    Scorer.load(target)
    assert tree(target) == new
    tally("fit TABLE --out FIT over another: 5 kills; 0 unloadable, 0 mixed, 0 files differ")


def test_a_training_killed(whole, tmp_path, tally):
    """``adapter train --out``: checkpoints and the adapter itself."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((2, 60, 6))
    np.save(tmp_path / "pairs.npy", rows / np.linalg.norm(rows, axis=2, keepdims=True))
    words = ["adapter", "train", str(tmp_path / "pairs.npy"), "--inducing", "8", "--latent", "2",
             "--steps", "20", "--checkpoint-every", "3", "--quiet", "--out"]  # fmt: skip
    alone, target = tmp_path / "alone", tmp_path / "adapter"
    ended = run_child([*words, str(alone)], alone)
    assert ended.code == 0, ended.said
    kills = sorted(random.Random(7).sample(range(len(ended.events) // 2), 4))
    for at in kills:
        assert run_child([*words, str(target)], target, Moment(at)).code == KILLED
    assert run_child([*words, str(target)], target).code == 0
    arrays = [{n: b for n, b in tree(home).items() if n.startswith("arrays")}
              for home in (alone, target)]  # fmt: skip
    assert arrays[0] == arrays[1]
    assert len(arrays[0]) == 1
    tally(f"adapter train --out: {len(kills)} kills; 0 arrays differ")
