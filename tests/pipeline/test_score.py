"""Stages score and calibrate on what is stored: who is in the table, and who reads what of it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.pipeline.conftest import TREE, make_run, renote

from fusevlm import Fuse
from fusevlm.config import change_config
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline import calibrate
from fusevlm.pipeline.adapter import STATISTICS
from fusevlm.pipeline.run import Work, run_stages
from fusevlm.pipeline.score import LABELS, TABLE, read_scored, read_table
from fusevlm.store import runs
from fusevlm.store.generations import read_embeddings


def rewrite(path, change):
    """A Parquet file with its columns (arrays) changed in place."""
    columns = {k: np.array(v) for k, v in parquet.read_table(path).to_pydict().items()}
    change(columns)
    parquet.write_table(pa.table(columns), path)
    renote(path.parents[1], path.parent.name)


def test_failed_queries_are_left_out_and_the_others_keep_their_own(tmp_path):
    """One without samples, one without statistics: every column is of the remaining ids."""
    config, world = make_run(
        tmp_path, sizes=(6, 4), errors={1: "the picture is torn"}, unembedded=[7]
    )
    queries, failed = read_table(tmp_path, config)
    assert failed == {
        "calibration/1": "the picture is torn",
        "test/7": "its image or question could not be embedded",
    }
    left = [0, 2, 3, 4, 5, 6, 8, 9]
    assert [int(i.split("/")[1]) for i in queries.ids] == left
    np.testing.assert_array_equal(queries.wrong, world.wrong[left])
    np.testing.assert_array_equal(queries.s, world.s[left])
    np.testing.assert_array_equal(queries.columns["s"], world.s[left])
    assert queries.units == tuple(str(k // 2) for k in left)
    for k, samples in zip(left, queries.samples, strict=True):
        np.testing.assert_array_equal(samples.answer_logprobs, world.samples[k].answer_logprobs)
    assert queries.fit.tolist() == [0, 1, 2, 3, 4]
    assert queries.test.tolist() == [5, 6, 7]


def test_all_failed_is_an_error_that_says_why(tmp_path):
    config, _ = make_run(tmp_path, sizes=(1, 1), errors={0: "torn", 1: "lost"})
    with pytest.raises(ArtefactError, match="all 2 queries failed: lost; torn"):
        read_table(tmp_path, config)


def test_hidden_states_are_those_of_the_named_layer_where_they_are_needed(small):
    root, config, world = small
    run_stages(root, config, only="semantics")
    plain, _ = read_table(root, config)
    assert not any(q.embeddings is not None for q in plain.samples)
    for layer, step in (("last", 1), ("middle", -1)):
        changed = change_config(config, [f"score.layer={layer}"])
        queries, _ = read_table(root, changed, states={"embeddings", "middle"})
        for own, expected in zip(queries.samples, world.samples, strict=True):
            np.testing.assert_array_equal(
                own.embeddings, expected.embeddings[:, ::step].astype(np.float32)
            )
        for rows, expected in zip(queries.states["middle"], world.samples, strict=True):
            np.testing.assert_array_equal(rows, expected.embeddings[:, ::-1].astype(np.float32))


def test_the_judged_answers_states_are_read_alone_where_they_are_needed(small):
    root, config, world = small
    run_stages(root, config, only="semantics")
    assert read_table(root, config, states={"embeddings"})[0].answer_states == {}
    for layer, step in (("last", 1), ("middle", -1)):
        changed = change_config(config, [f"score.layer={layer}"])
        queries, _ = read_table(root, changed, states={"answer_state"})
        expected = [q.embeddings[0, ::step].astype(np.float32) for q in world.samples]
        np.testing.assert_array_equal(queries.answer_states[layer], expected)
        assert list(queries.answer_states) == [layer]
        assert all(q.embeddings is None for q in queries.samples)


def test_inputs_are_of_the_queries_that_are_left(tmp_path):
    """Vectors of image and question always; states of the prompt with other states, or not."""
    config, world = make_run(tmp_path, TREE, sizes=(6, 4), errors={1: "torn"}, unembedded=[7])
    run_stages(tmp_path, config, only="semantics")
    left = [0, 2, 3, 4, 5, 6, 8, 9]
    plain, _ = read_table(tmp_path, config)
    ids, vectors = read_embeddings(tmp_path / "embed")
    assert list(plain.inputs) == ["image", "text"]
    for name, rows in plain.inputs.items():
        assert rows.dtype == np.float64
        np.testing.assert_array_equal(rows, [vectors[name][ids.index(i)] for i in plain.ids])
    for needs in ({"embeddings"}, {"prompt"}):
        for layers, at in ((("last", "middle"), 2), (("middle", "last"), 2), (("last",), 1)):
            kept = replace(config, sample=replace(config.sample, layers=layers))
            queries, _ = read_table(tmp_path, kept, states=needs)
            expected = [world.samples[k].embeddings[at] for k in left]
            np.testing.assert_array_equal(queries.inputs["prompt"], np.float32(expected))
    odd = replace(config, sample=replace(config.sample, layers=("last", "7")))
    assert "prompt" not in read_table(tmp_path, odd, states={"embeddings"})[0].inputs


def test_the_prior_is_s_and_the_statistics_beside_it(tmp_path):
    config, world = make_run(tmp_path, sizes=(6, 4))

    def add(columns):
        columns["s_text"] = 2 * columns["s"]
        columns["disagreement"] = -columns["s"]

    rewrite(tmp_path / "adapter" / STATISTICS, add)
    changes = ["adapter.statistic=disagreement", 'adapter.statistics=["s_text"]']
    queries, _ = read_table(tmp_path, change_config(config, changes))
    np.testing.assert_array_equal(queries.prior["s"], -world.s)
    np.testing.assert_array_equal(queries.prior["s_text"], 2 * world.s)
    assert list(queries.prior) == ["s", "s_text"]
    with pytest.raises(InputError, match=r"adapter\.statistics names 's_image'"):
        read_table(tmp_path, change_config(config, ['adapter.statistics=["s_image"]']))


def test_scalar_forms_are_given_s_alone_and_evidence_forms_nothing(small):
    root, config, _ = small

    def add(columns):
        columns["s_text"] = columns["s"][::-1]

    rewrite(root / "adapter" / STATISTICS, add)
    made = runs.read_manifest(root, "adapter")
    named = {**made.settings, "adapter.statistics": ["s_text"]}
    runs.write_manifest(root, replace(made, settings=named))
    changes = [
        'adapter.statistics=["s_text"]', 'calibrate.methods=["paper","practical","evidence-only"]',
    ]  # fmt: skip
    run_stages(root, change_config(config, changes), to="calibrate")
    read = {n: Fuse.load(root / "calibrate" / n).model for n in ("paper", "practical",
                                                                 "evidence-only")}  # fmt: skip
    assert read["paper"].statistics.names == ("s",)
    assert read["practical"].statistics.names == ("s", "s_text")
    assert read["practical"].input_widths == {"image": 3, "text": 3, "prompt": 12}
    assert read["evidence-only"].statistics.names == ()
    assert read["evidence-only"].input_widths == {}


def test_samples_of_test_queries_are_not_judged(small):
    """No sample is right here: all count as wrong where that may be known, none elsewhere."""
    root, config, _ = small
    run_stages(root, config, only="semantics")
    queries, _ = read_table(root, config, states={"sample_wrong"})
    assert [rows.all() for rows in queries.sample_wrong] == [True] * 40 + [False] * 30
    assert not any(rows.any() for rows in queries.sample_wrong[40:])


def test_scores_of_other_queries_are_refused(small):
    root, config, _ = small
    run_stages(root, config, to="score")

    def turn(columns):
        for name in columns:
            columns[name] = columns[name][::-1]

    rewrite(root / "score" / TABLE, turn)
    with pytest.raises(ArtefactError, match="is not of these queries"):
        read_scored(root, config)


def test_no_fit_reads_a_test_label_or_a_test_query(small):
    """Test labels turned round and test scores spoilt: all that is fitted stays byte for byte."""
    root, config, _ = small
    run_stages(root, config, to="calibrate")
    folder = root / "calibrate"

    def bytes_of():
        return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()
                and p.name not in ("seconds.json", "stage.json")}  # fmt: skip

    first = bytes_of()
    assert len(first) >= 4

    def spoil(columns):
        for name, values in columns.items():
            if name == "wrong":
                values[40:] = ~values[40:]
            elif name != "query_id":
                values[40:] = 99.0

    rewrite(root / "score" / LABELS, spoil)
    rewrite(root / "score" / TABLE, spoil)
    calibrate.make(Work(root, config, lambda *_: None))
    assert bytes_of() == first

    def turn(columns):
        columns["wrong"][:40] = ~columns["wrong"][:40]

    rewrite(root / "score" / LABELS, turn)
    calibrate.make(Work(root, config, lambda *_: None))
    assert bytes_of() != first
