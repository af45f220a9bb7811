"""Stage semantics on stored answers, and with a tiny inference model from the file to the table."""

import dataclasses
import json

import numpy as np
import pytest

from fusevlm.config import change_config
from fusevlm.meanings import by_string
from fusevlm.pipeline import semantics
from fusevlm.pipeline.run import Work, run_stages
from fusevlm.pipeline.score import ABSENT, read_table
from fusevlm.pipeline.semantics import read_semantics
from fusevlm.scores import NEEDS, compute_scores
from fusevlm.store import runs
from fusevlm.store.parts import Parts
from fusevlm.store.runs import Manifest
from fusevlm.types import Semantics


def test_the_default_needs_no_model_and_stores_meanings(finished):
    root, _, world = finished
    found = read_semantics(root)
    assert len(found) == len(world.samples)
    for (_, meant), samples in zip(sorted(found.items()), world.samples, strict=False):
        assert len(meant.meanings) == len(samples.texts)
        assert meant.similarity is None
        assert meant.rephrasings is None
        assert meant.p_true is None
    first = found["calibration/0"]
    np.testing.assert_array_equal(first.meanings, by_string(world.samples[0].texts))


def test_what_is_stored_comes_back(tmp_path):
    """Two parts of two queries; one has nothing but its id."""
    made = {
        "a": Semantics(np.array([0, 1]), np.eye(3), np.array([True, False, True]), 0.25, 0.5),
        "b": Semantics(),
        "c": Semantics(np.array([0, 0]), np.full((3, 3), 0.5), np.array([False]), 0.75),
        "d": Semantics(np.array([0, 2]), np.full((3, 3), 0.125), None, 1.0, 0.0),
    }
    parts = Parts(tmp_path / "semantics", semantics.KIND)
    for index, ids in enumerate((["a", "b"], ["c", "d"])):
        rows, arrays = semantics._packed(ids, [made[i] for i in ids])
        parts.write(index, rows, arrays, {"queries": 2})
    runs.write_manifest(tmp_path, Manifest("semantics", {}, {}, {}, complete=True))
    found = read_semantics(tmp_path)
    assert list(found) == list(made)
    for query_id, meant in made.items():
        for field in dataclasses.fields(Semantics):
            one, two = (getattr(x, field.name) for x in (meant, found[query_id]))
            np.testing.assert_array_equal(one, two)
            assert (one is None) == (two is None)


def test_older_parts_have_no_complement(tmp_path):
    rows, arrays = semantics._packed(["a"], [Semantics(p_true=0.5, complement=0.25)])
    del rows["complement"]
    Parts(tmp_path / "semantics", semantics.KIND).write(0, rows, arrays, {"queries": 1})
    runs.write_manifest(tmp_path, Manifest("semantics", {}, {}, {}, complete=True))
    found = read_semantics(tmp_path)["a"]
    assert (found.p_true, found.complement) == (0.5, None)


def test_a_stopped_stage_goes_on(run, monkeypatch):
    """The second part fails once; the first is not made again."""
    folder, config = run
    before = (folder / "semantics" / "part-00000.json").read_bytes()
    config = change_config(config, ["semantics.similarity=string"])
    made = []
    real = semantics.find_semantics

    def stop_at_the_second(tools, batch, needed):
        made.append(len(batch))
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(tools, batch, needed)

    monkeypatch.setattr(semantics, "find_semantics", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_stages(folder, config, only="semantics", redo="semantics")
    run_stages(folder, config, only="semantics")
    assert made == [100, 100, 100, 70]
    assert (folder / "semantics" / "part-00000.json").read_bytes() != before
    assert all(m.similarity is not None for m in read_semantics(folder).values())


def test_scores_that_need_more_say_so_and_appear_when_it_is_there(run):
    folder, config = run
    absent = json.loads((folder / "score" / ABSENT).read_text())
    assert absent["eigv"].startswith("the run has no similarity")
    assert NEEDS["similarity"] in absent["eigv"]
    assert NEEDS["rephrasings"] in absent["neighborhood"]
    config = change_config(config, ["semantics.similarity=string"])
    run_stages(folder, config, redo="semantics")
    absent = json.loads((folder / "score" / ABSENT).read_text())
    assert "eigv" not in absent
    assert "lofreecp" not in absent


def test_the_run_computes_just_what_its_baselines_need(run, monkeypatch):
    folder, config = run
    config = change_config(
        config,
        ['score.baselines=["g_nll", "distinct"]', "semantics.similarity=string",
         'calibrate.methods=["g_nll"]'],
    )  # fmt: skip
    asked = []
    real = semantics.find_semantics
    monkeypatch.setattr(
        semantics, "find_semantics", lambda t, b, needed: asked.append(needed) or real(t, b, needed)
    )
    from fusevlm.store import parts

    read = set()
    checked = parts._checked
    monkeypatch.setattr(
        parts, "_checked", lambda f, p, e: read.add((f.name, e)) or checked(f, p, e)
    )
    run_stages(folder, config, redo="semantics")
    assert set(map(frozenset, asked)) == {frozenset()}
    asked.clear()
    monkeypatch.setattr(
        semantics, "load_sampler", lambda config, before: None
    )  # no question is yes/no
    changed = change_config(config, ["semantics.complement=templates"])
    run_stages(folder, changed, only="semantics", redo="semantics")
    assert set(map(frozenset, asked)) == {frozenset({"complement"})}  # though no baseline needs it
    run_stages(folder, config, redo="semantics")
    assert ("sample", "safetensors") not in read  # no hidden state was loaded in any stage
    table = json.loads((folder / "evaluate" / "results.json").read_text())
    assert list(table["slices"][0]["methods"]) == ["g_nll"]


def test_no_score_reads_a_test_label(run):
    """Wrong labels of test queries are turned round: every column stays as it is."""
    folder, config = run
    config = change_config(config, ["semantics.similarity=string"])
    run_stages(folder, config, redo="semantics")
    queries, _ = read_table(folder, config, states=set(NEEDS))
    turned = queries.wrong.copy()
    turned[queries.test] = ~turned[queries.test]
    columns, _ = compute_scores(queries)
    again, _ = compute_scores(dataclasses.replace(queries, wrong=turned))
    assert "lofreecp" in columns
    for name, column in columns.items():
        np.testing.assert_array_equal(column, again[name], err_msg=name)
    assert not any(queries.sample_wrong[i].any() for i in queries.test)


def test_progress_counts_queries(run):
    folder, config = run
    seen = []
    (folder / "semantics" / "part-00000.json").unlink()
    semantics.make(Work(folder, config, lambda done, total: seen.append((done, total))))
    assert seen[-1] == (270, 270)
