"""Parts: what is written comes back, crashes lose nothing, foreign files are refused or kept."""

import json
import multiprocessing
import os
import pathlib
import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.models.conftest import llava, make_query  # noqa: F401
from tests.models.toy import Toy

from fusevlm import Fuse, simulate
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.temperatures import stratified
from fusevlm.pipeline.sample import _whitened_gram, sample_parts
from fusevlm.store import files
from fusevlm.store.files import hold
from fusevlm.store.generations import KIND, read_generations, write_generations
from fusevlm.store.parts import Part, Parts, merged, read_parts
from fusevlm.types import Generation, Samples

HEAT = stratified(4)


def sampled(model, folder, size=12, **changes):
    parts = Parts(folder, KIND)
    options = {"seed": 3, "batch": 2, **changes}
    sample_parts(parts, model, [make_query(i) for i in range(size)], HEAT, **options)
    return parts


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
    write_generations(Parts(tmp_path, KIND), 0, found)
    for one, two in zip(found, read_generations(tmp_path, "last", layers=["middle"]), strict=True):
        same(one, two)
        assert one.path == two.path
        for name in one.answer_layers:
            np.testing.assert_array_equal(one.answer_layers[name], two.answer_layers[name])
    middle = next(read_generations(tmp_path, "middle"))
    np.testing.assert_array_equal(middle.samples.embeddings, found[0].layers["middle"])
    assert list(middle.layers) == ["middle"]
    with pytest.raises(InputError, match="layer '7' was not kept; the run has"):
        next(read_generations(tmp_path, "7"))


def test_states_nobody_asks_for_are_not_read(llava, tmp_path, monkeypatch):  # noqa: F811
    from fusevlm.store import parts

    sampled(llava, tmp_path, 4)
    read = []
    real = parts._checked
    monkeypatch.setattr(parts, "_checked", lambda f, p, e: read.append(e) or real(f, p, e))
    plain = list(read_generations(tmp_path))
    assert set(read) == {"parquet"}
    assert plain[0].samples.embeddings is None
    assert plain[0].samples.texts
    assert not plain[0].layers
    list(read_generations(tmp_path, "last"))
    assert set(read) == {"parquet", "safetensors"}


def test_sampling_counts_failures_and_goes_on_where_it_stopped(llava, tmp_path):  # noqa: F811
    queries = [make_query(i) for i in range(5)]
    queries[3] = make_query(3, question="")
    seen = []

    def sample():
        parts = Parts(tmp_path, KIND)
        progress = lambda done, total: seen.append((done, total))  # noqa: E731
        sample_parts(parts, llava, queries, HEAT, batch=2, progress=progress)
        return parts

    first = sample()
    assert (first.total("queries"), first.total("failed")) == (5, 1)
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("part-*")}
    assert sample().total("queries") == 5
    assert seen[4:] == [(5, 5)]
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
    whole = list(read_generations(tmp_path / "whole", "last", layers=["middle"]))
    dice = random.Random(0)
    hits = 0
    for k in range(kills):
        folder = tmp_path / f"killed{k}"
        hits += kill_once(
            backend, folder, size, dice.randrange(size // 2 - 1), dice.uniform(0, 0.03)
        )
        assert sampled(backend, folder, size).total("queries") == size
        found = list(read_generations(folder, "last", layers=["middle"]))
        assert [g.query_id for g in found] == [f"q{i}" for i in range(size)]
        for one, two in zip(whole, found, strict=True):
            same(one, two)
    return hits


def test_a_killed_run_resumes_to_the_same_result(llava, tmp_path):  # noqa: F811
    assert check_after_kills(llava, tmp_path, kills=2) >= 1


@pytest.mark.slow
def test_twenty_kills_lose_and_repeat_nothing(llava, tmp_path):  # noqa: F811
    assert check_after_kills(llava, tmp_path, kills=20) >= 15


def test_interrupted_parts_are_removed_and_foreign_files_are_not(llava, tmp_path):  # noqa: F811
    sampled(llava, tmp_path, 4)
    (tmp_path / "part-00009.parquet").write_bytes(b"half a part")
    (tmp_path / ".part-00009.safetensors.77.tmp").write_bytes(b"")
    foreign = ["part-list.txt", "part-1.json", "notes.tmp"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    sampled(llava, tmp_path, 4)
    names = sorted(p.name for p in tmp_path.iterdir() if p.name not in foreign)
    assert names == [
        f"part-0000{k}.{e}" for k in (0, 1) for e in ("json", "parquet", "safetensors")
    ]
    assert all((tmp_path / name).read_text() == "mine" for name in foreign)


def test_one_process_holds_a_folder(tmp_path):
    with (
        hold(tmp_path),
        pytest.raises(ArtefactError, match=f"in use by process {os.getpid()}"),
        hold(tmp_path),
    ):
        pass
    with hold(tmp_path):
        pass


def test_damaged_and_foreign_parts_are_refused(tmp_path):
    write_generations(Parts(tmp_path, KIND), 0, [Generation("a", error="broken")])
    assert [g.error for g in read_generations(tmp_path)] == ["broken"]
    with pytest.raises(ArtefactError, match=r"holds 'fusevlm\.generations', not 'embeddings'"):
        list(read_parts(tmp_path, "embeddings"))
    note = tmp_path / "part-00000.json"
    part = {k: v for k, v in json.loads(note.read_text()).items() if k != "seal"}
    (tmp_path / "part-00000.parquet").write_bytes(b"x")
    with pytest.raises(ArtefactError, match="missing or damaged"):
        list(read_parts(tmp_path, KIND))
    for spoilt in ("{", "[]", json.dumps({**part, "sha256": None}), json.dumps({"index": 0})):
        note.write_text(spoilt)
        with pytest.raises(ArtefactError, match=r"cannot be read|no JSON object|not of this part"):
            list(read_parts(tmp_path, KIND))
    note.unlink()
    assert Parts(tmp_path, KIND).facts == []
    assert not list(tmp_path.glob("part-*"))


def generation(query_id, seed):
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((3, 5)).astype(np.float32)
    samples = Samples(["a", "b", "c"], embeddings=states, answer="a")
    return Generation(
        query_id, samples, layers={"last": states}, answer_layers={"last": states[0] + 1}
    )


def test_margins_and_states_of_the_prompt_are_kept(tmp_path):
    """Read where they are asked for; with Grams too; and not missed in parts of before."""
    one = generation("a", 0)
    said = replace(one.samples, answer_logprobs=[-0.5, -0.1], answer_margins=[0.3, 2.0])
    full = replace(one, samples=said, prompt_layers={"last": np.arange(5.0), "3": np.ones(2)})
    for name, gram in (("states", None), ("grams", lambda samples: (np.eye(3), 5))):
        write_generations(Parts(tmp_path / name, KIND), 0, [full, one], gram=gram)
        first, second = read_generations(tmp_path / name, "last", prompts=["last"])
        assert first.samples.answer_margins.tolist() == [0.3, 2.0]
        assert second.samples.answer_margins is None
        assert first.prompt_layers["last"].tolist() == [0, 1, 2, 3, 4]
        assert list(first.prompt_layers) == ["last"]
        assert second.prompt_layers == {}
        assert (first.samples.gram is None) == (gram is None)
    (alone, _) = read_generations(tmp_path / "states", prompts=["3", "last"])
    assert {n: len(v) for n, v in alone.prompt_layers.items()} == {"3": 2, "last": 5}
    assert alone.samples.embeddings is None
    ((rows, arrays),) = read_parts(tmp_path / "states", KIND)
    assert rows.pop("answer_margins") == [[0.3, 2.0], None]
    arrays = {name: value for name, value in arrays.items() if not name.endswith(".prompt")}
    Parts(tmp_path / "before", KIND).write(0, rows, arrays, {})
    old, _ = read_generations(tmp_path / "before", "last", prompts=["last"])
    assert old.prompt_layers == {}
    assert old.samples.answer_margins is None
    assert old.samples.answer_logprobs.tolist() == [-0.5, -0.1]


def test_states_of_prompts_nobody_asks_for_are_not_read(tmp_path):
    """Without a wish for arrays their file is not even compared."""
    full = replace(generation("a", 0), prompt_layers={"last": np.ones(5)})
    write_generations(Parts(tmp_path, KIND), 0, [full])
    whole = bytearray((tmp_path / "part-00000.safetensors").read_bytes())
    whole[-1] ^= 1
    (tmp_path / "part-00000.safetensors").write_bytes(whole)
    assert next(read_generations(tmp_path)).prompt_layers == {}
    with pytest.raises(ArtefactError, match="damaged"):
        next(read_generations(tmp_path, prompts=["last"]))


@pytest.mark.parametrize("ending", ["parquet", "safetensors"])
def test_another_parts_file_is_refused(tmp_path, ending):
    """Both files are well formed; only the checksum tells."""
    parts = Parts(tmp_path, KIND)
    for index in (0, 1):
        write_generations(parts, index, [generation(f"q{index}", index)])
    list(read_generations(tmp_path, "last"))
    shutil.copy(tmp_path / f"part-00001.{ending}", tmp_path / f"part-00000.{ending}")
    with pytest.raises(ArtefactError, match=rf"part-00000\.{ending} is missing or damaged"):
        list(read_generations(tmp_path, "last"))


@pytest.mark.parametrize("ending", ["parquet", "safetensors", "json"])
def test_a_part_counts_when_all_of_it_is_there(tmp_path, monkeypatch, ending):
    """Stopped at any of its files, it is made again."""
    real = files.write_atomically

    def stop(path, payload):
        if path.name == f"part-00001.{ending}":
            raise OSError(28, "No space left on device")
        real(path, payload)

    monkeypatch.setattr(files, "write_atomically", stop)
    parts = Parts(tmp_path, KIND)
    write_generations(parts, 0, [generation("a", 0)])
    with pytest.raises(ArtefactError, match="No space left"):
        write_generations(parts, 1, [generation("b", 1)])
    monkeypatch.undo()
    for found in (parts, Parts(tmp_path, KIND)):
        assert (0 in found, 1 in found, found.total("queries")) == (True, False, 1)
    assert [g.query_id for g in read_generations(tmp_path, "last")] == ["a"]


def test_states_are_halved_only_where_that_is_asked_for(tmp_path):
    made = [generation("a", 0), generation("b", 1)]
    for half, tolerance in ((False, 0.0), (True, 1e-3)):
        write_generations(Parts(tmp_path / str(half), KIND), 0, made, half=half)
        stored = list(read_generations(tmp_path / str(half), "last"))
        for one, two in zip(made, stored, strict=True):
            assert two.layers["last"].dtype == (np.float16 if half else np.float32)
            for name in ("layers", "answer_layers"):
                found, expected = getattr(two, name)["last"], getattr(one, name)["last"]
                np.testing.assert_allclose(found, expected, rtol=tolerance)
                assert np.array_equal(found, expected) != half


def test_half_precision_reaches_what_is_sampled(tmp_path):
    for half in (False, True):
        parts = Parts(tmp_path / str(half), KIND)
        sample_parts(parts, Toy(), [make_query(0), make_query(1)], HEAT, half=half)
        (one, two) = read_generations(tmp_path / str(half), "last")
        expected = np.float16 if half else np.float32
        assert one.layers["last"].dtype == two.layers["last"].dtype == expected


def test_a_part_is_counted_once(tmp_path):
    parts = Parts(tmp_path, KIND)
    write_generations(parts, 0, [Generation("a", error="broken")])
    write_generations(parts, 0, [Generation("a", error="broken again")])
    assert parts.total("queries") == Parts(tmp_path, KIND).total("queries") == 1
    assert [g.error for g in read_generations(tmp_path)] == ["broken again"]


def test_a_full_disk_keeps_finished_parts(llava, tmp_path, monkeypatch):  # noqa: F811
    writes = []
    original = os.fsync

    def filling(handle):
        writes.append(handle)
        if len(writes) > 12:
            raise OSError(28, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(ArtefactError, match=r"No space left.*give the same command again"):
        sampled(llava, tmp_path)
    monkeypatch.undo()
    assert Parts(tmp_path, KIND).total("queries") == 4
    assert sampled(llava, tmp_path).total("queries") == 12


def test_grams_can_be_kept_instead_of_hidden_states(llava, tmp_path):  # noqa: F811
    sampled(llava, tmp_path / "hidden", 30)
    kept = [g.samples for g in read_generations(tmp_path / "hidden", "last")]
    s = simulate.queries(30, n_samples=2, d=4).s
    fuse = Fuse("paper").fit(kept, s=s)
    sampled(llava, tmp_path / "gram", 30, gram=_whitened_gram(fuse))
    grams = [g.samples for g in read_generations(tmp_path / "gram", "last")]
    assert all(q.embeddings is None and q.gram.shape == (4, 4) for q in grams)
    one, two = fuse.score(kept, s=s), fuse.score(grams, s=s)
    np.testing.assert_allclose(one.u, two.u, rtol=1e-4)
    size = {
        k: sum(p.stat().st_size for p in (tmp_path / k).glob("*.safetensors"))
        for k in ("hidden", "gram")
    }
    assert size["gram"] < size["hidden"] / 3


def versions(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".json")


def test_a_part_written_again_is_the_old_or_the_new_one_at_any_moment(tmp_path, monkeypatch):
    """Stopped at each of its writes and before each removal, it can be read, whole."""
    real, unlink = files.write_atomically, pathlib.Path.unlink
    for stop in range(6):
        folder = tmp_path / str(stop)
        parts = Parts(folder, KIND)
        write_generations(parts, 0, [generation("a", 0), Generation("b", error="gone")])
        steps = []

        def step(what, *given, stop=stop, steps=steps):
            if len(steps) == stop:
                raise KeyboardInterrupt
            steps.append(what)
            return what(*given)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomically", lambda *g, step=step: step(real, *g))

            def remove(path, missing_ok=False, step=step):
                own = path.suffix == ".tmp"
                return unlink(path, missing_ok=True) if own else step(unlink, path)

            patch.setattr(pathlib.Path, "unlink", remove)
            try:
                write_generations(parts, 0, [generation("a", 0), generation("b", 1)])
            except KeyboardInterrupt:
                assert stop < 5
        errors = [g.error for g in read_generations(folder, "last")]
        assert errors == ([None, "gone"] if stop < 3 else [None, None])
        again = Parts(folder, KIND)  # removes what is left over
        ending = "" if stop < 3 else ".1"
        assert versions(folder) == [
            f"part-00000{ending}.parquet", f"part-00000{ending}.safetensors",
        ]  # fmt: skip
        assert again.total("failed") == (1 if stop < 3 else 0)


def test_what_a_worker_left_of_a_part_that_it_wrote_again_is_removed(tmp_path):
    """Killed before it removed the old files, or in the middle of files still newer."""
    parts = Parts(tmp_path, KIND)
    write_generations(parts, 0, [Generation("a", error="gone")])
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix != ".json"}
    write_generations(parts, 0, [generation("a", 0)])
    whole = versions(tmp_path)
    for name, payload in {**old, "part-00000.2.parquet": b"half"}.items():
        (tmp_path / name).write_bytes(payload)
    parts.tidy()
    assert versions(tmp_path) == whole
    assert [g.error for g in read_generations(tmp_path, "last")] == [None]


def test_rows_are_merged_with_all_that_is_theirs():
    """A row's own arrays and columns come from the new part, everything else stays."""
    old = Part(
        {"id": ["a", "b", "c"], "error": [None, "x", "y"]},
        {
            "0.last": np.zeros(2),
            "1.last": np.ones(1),
            "1.gram": np.ones(1),
            "10.last": np.ones(3),
            "both": np.arange(3),
        },
        {"queries": 3},
    )
    new = Part(
        {"id": ["c", "b"], "error": [None, None], "more": [1, 2]},
        {"0": np.full(2, 7.0), "1.last": np.full(2, 8.0), "both": np.array([30, 20])},
        {},
    )
    found = merged(old, new, [2, 1])
    assert found.rows == {
        "id": ["a", "b", "c"], "error": [None, None, None], "more": [None, 2, 1],
    }  # fmt: skip
    assert {k: v.tolist() for k, v in found.arrays.items()} == {
        "0.last": [0, 0], "10.last": [1, 1, 1], "2": [7, 7], "1.last": [8, 8], "both": [0, 20, 30],
    }  # fmt: skip
    empty = Part({"id": ["a", "b"]}, {"view": np.zeros((2, 0))}, {})
    filled = merged(empty, Part({"id": ["b"]}, {"view": np.ones((1, 3))}, {}), [1])
    assert filled.arrays["view"].tolist() == [[0, 0, 0], [1, 1, 1]]
    still = merged(filled, Part({"id": ["a"]}, {"view": np.zeros((1, 0))}, {}), [0])
    assert still.arrays["view"].tolist() == [[0, 0, 0], [1, 1, 1]]
