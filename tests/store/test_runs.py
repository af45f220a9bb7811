"""Run folders: what is written comes back, crashes lose nothing, foreign folders are refused."""

import json
import multiprocessing
import os
import random
import time

import numpy as np
import pytest
from tests.models.conftest import llava, make_query  # noqa: F401

from fusevlm import Fuse, simulate
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.temperatures import stratified
from fusevlm.pipeline.stages import sample_stage
from fusevlm.store.generations import KIND, read_generations, write_generations
from fusevlm.store.parts import PartStore, read_manifest, read_parts
from fusevlm.types import Generation

HEAT = stratified(4)


def sampled(backend, folder, size=12, **changes):
    options = {"n": 4, "temperatures": HEAT, "seed": 3, "batch": 2, **changes}
    return sample_stage(backend, [make_query(i) for i in range(size)], folder, **options)


def same(one, two):
    assert one.query_id == two.query_id
    assert one.error == two.error
    assert list(map(list, one.token_ids)) == list(map(list, two.token_ids))
    if one.samples is not None:
        assert one.samples.texts == two.samples.texts
        for a, b in zip(one.samples.token_logprobs, two.samples.token_logprobs, strict=True):
            np.testing.assert_array_equal(a, b)
    for name in one.layers:
        np.testing.assert_array_equal(one.layers[name], two.layers[name])


def test_what_is_written_comes_back(llava, tmp_path):  # noqa: F811
    queries = [make_query(0), make_query(1, images=["missing.png"]), make_query(2)]
    found = list(llava.sample(queries, 4, HEAT, seed=0))
    with PartStore(tmp_path, KIND, {}) as store:
        write_generations(store, 0, found)
        store.finish()
    for one, two in zip(found, read_generations(tmp_path), strict=True):
        same(one, two)
        assert one.path == two.path
        for name in one.answer_layers:
            np.testing.assert_array_equal(one.answer_layers[name], two.answer_layers[name])
    middle = next(read_generations(tmp_path, "middle"))
    np.testing.assert_array_equal(middle.samples.embeddings, found[0].layers["middle"])
    with pytest.raises(InputError, match="layer '7' was not kept; the run has"):
        next(read_generations(tmp_path, "7"))


def test_a_stage_counts_failures_and_goes_on_where_it_stopped(llava, tmp_path):  # noqa: F811
    queries = [make_query(i) for i in range(5)]
    queries[3] = make_query(3, question="")
    options = {"n": 4, "temperatures": HEAT, "seed": 0, "batch": 2}
    seen = []
    first = sample_stage(
        llava, queries, tmp_path, progress=lambda done, total: seen.append((done, total)), **options
    )
    assert (first.done, first.failed, first.resumed) == (5, 1, 0)
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]
    assert read_manifest(tmp_path, KIND)["complete"]
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("part-*")}
    again = sample_stage(llava, queries, tmp_path, **options)
    assert (again.done, again.failed, again.resumed) == (5, 1, 5)
    assert before == {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("part-*")}


def _child(backend, folder, size):
    sampled(backend, folder, size)
    os._exit(0)


def kill_once(backend, folder, size, parts, delay):
    """Start a run in a fork; kill −9 it ``delay`` seconds after ``parts`` parts are on disk."""
    child = multiprocessing.get_context("fork").Process(target=_child, args=(backend, folder, size))
    child.start()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("part-*.parquet"))) < parts and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(delay)
    running = child.is_alive()
    child.kill()
    child.join()
    return running


def check_after_kills(backend, tmp_path, kills, size=40):
    sampled(backend, tmp_path / "whole", size)
    whole = list(read_generations(tmp_path / "whole"))
    dice = random.Random(0)
    hits = 0
    for k in range(kills):
        folder = tmp_path / f"killed{k}"
        hits += kill_once(
            backend, folder, size, dice.randrange(size // 2 - 1), dice.uniform(0, 0.03)
        )
        outcome = sampled(backend, folder, size)
        assert outcome.done == size
        found = list(read_generations(folder))
        assert [g.query_id for g in found] == [f"q{i}" for i in range(size)]
        for one, two in zip(whole, found, strict=True):
            same(one, two)
    return hits


def test_a_killed_run_resumes_to_the_same_result(llava, tmp_path):  # noqa: F811
    assert check_after_kills(llava, tmp_path, kills=2) >= 1


@pytest.mark.slow
def test_twenty_kills_lose_and_repeat_nothing(llava, tmp_path):  # noqa: F811
    assert check_after_kills(llava, tmp_path, kills=20) >= 15


def test_interrupted_parts_are_removed_on_the_next_start(llava, tmp_path):  # noqa: F811
    sampled(llava, tmp_path, 4)
    (tmp_path / "part-00009.parquet").write_bytes(b"half a part")
    (tmp_path / ".part-00009.safetensors.77.tmp").write_bytes(b"")
    sampled(llava, tmp_path, 4)
    names = sorted(p.name for p in tmp_path.iterdir() if p.name != ".lock")
    assert names == ["manifest.json"] + [
        f"part-0000{k}.{e}" for k in (0, 1) for e in ("json", "parquet", "safetensors")
    ]


def test_two_writers_cannot_share_a_folder(tmp_path):
    with (
        PartStore(tmp_path, KIND, {}),
        pytest.raises(ArtefactError, match=f"written by process {os.getpid()}"),
        PartStore(tmp_path, KIND, {}),
    ):
        pass
    with PartStore(tmp_path, KIND, {}) as store:
        assert store.facts == []


def test_another_runs_folder_is_refused_by_the_setting_that_differs(llava, tmp_path):  # noqa: F811
    sampled(llava, tmp_path, 4)
    with pytest.raises(ArtefactError, match="seed was 3 and is now 4"):
        sampled(llava, tmp_path, 4, seed=4)


def test_damaged_and_foreign_runs_are_refused(tmp_path):
    with pytest.raises(ArtefactError, match="holds no run"):
        read_manifest(tmp_path, KIND)
    with PartStore(tmp_path, KIND, {}) as store:
        write_generations(store, 0, [Generation("a", error="broken")])
    head = json.loads((tmp_path / "manifest.json").read_text())
    for change, message in (
        ({"schema_version": 9}, "schema version 9"),
        ({"kind": "embeddings"}, "holds 'embeddings'"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**head, **change}))
        with pytest.raises(ArtefactError, match=message):
            read_manifest(tmp_path, KIND)
    (tmp_path / "manifest.json").write_text(json.dumps(head))
    (tmp_path / "part-00000.safetensors").write_bytes(b"x")
    with pytest.raises(ArtefactError, match="missing or damaged"):
        list(read_parts(tmp_path, KIND))
    (tmp_path / "part-00000.json").unlink()
    with PartStore(tmp_path, KIND, {}) as store:
        assert store.facts == []
    assert not list(tmp_path.glob("part-*"))
    (tmp_path / "part-00001.json").write_text("{")
    with pytest.raises(ArtefactError, match="Delete it to redo it"):
        list(read_parts(tmp_path, KIND))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_manifest(tmp_path, KIND)


def test_a_full_disk_keeps_finished_parts(llava, tmp_path, monkeypatch):  # noqa: F811
    writes = []
    original = os.fsync

    def filling(handle):
        writes.append(handle)
        if len(writes) > 12:
            raise OSError(28, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(ArtefactError, match=r"No space left.*run the same command again"):
        sampled(llava, tmp_path)
    monkeypatch.undo()
    outcome = sampled(llava, tmp_path)
    assert outcome.done == 12
    assert outcome.resumed == 2


def test_grams_can_be_kept_instead_of_hidden_states(llava, tmp_path):  # noqa: F811
    sampled(llava, tmp_path / "hidden", 30)
    kept = [g.samples for g in read_generations(tmp_path / "hidden")]
    s = simulate.queries(30, n_samples=2, d=4).s
    fuse = Fuse("paper").fit(kept, s=s)
    sampled(llava, tmp_path / "gram", 30, gram_of=fuse)
    grams = [g.samples for g in read_generations(tmp_path / "gram")]
    assert all(q.embeddings is None and q.gram.shape == (4, 4) for q in grams)
    one, two = fuse.score(kept, s=s), fuse.score(grams, s=s)
    np.testing.assert_allclose(one.u, two.u, rtol=1e-4)
    size = {
        k: sum(p.stat().st_size for p in (tmp_path / k).glob("*.safetensors"))
        for k in ("hidden", "gram")
    }
    assert size["gram"] < size["hidden"] / 3
