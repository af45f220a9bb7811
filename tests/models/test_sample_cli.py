"""``fusevlm sample`` and ``fusevlm embed``: stages of a run, here of test queries alone."""

import json

import numpy as np
import pytest
from tests.models.conftest import make_picture, make_query

from fusevlm.cli import main
from fusevlm.data.tables import read_queries
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.temperatures import stratified
from fusevlm.store.generations import EMBEDDINGS, read_embeddings, read_generations
from fusevlm.store.parts import read_parts
from fusevlm.store.runs import read_manifest
from fusevlm.testing import tiny

CONFIG = """
[data]
source = "files"
test = "queries.jsonl"
[sample]
model = "model"
n = 4
max_new_tokens = 3
batch = 2
[embed]
towers = "towers"
batch = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    tiny.save("llava", root / "model")
    tiny.save_towers(root / "towers")
    for i in (0, 1, 2, 4):
        make_picture(i).save(root / f"{i}.png")
    rows = [
        {"id": f"v{i}", "question": "what colour", "image": f"{i}.png", "kind": "other"}
        for i in range(5)  # the fourth picture is missing; nobody knows the right answers
    ]
    (root / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (root / "own.toml").write_text(CONFIG)
    return root


@pytest.fixture(scope="module")
def sampled(folder):
    """A run of ``fusevlm sample``, stopped in its second batch and taken up again."""
    words = ["sample", str(folder / "own.toml"), "--run", str(folder / "run"), "--limit", "4"]
    real, calls = HuggingFace.sample, []

    def stop_in_second_batch(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HuggingFace, "sample", stop_in_second_batch)
        assert main(words) == 130
        kept = [g.query_id for g in read_generations(folder / "run" / "sample")]
        assert main(words) == 3
    assert kept == ["test/v0", "test/v1"]
    assert len(calls) == 3  # only the missing batch was sampled again
    return folder / "run", words


def test_sample_writes_a_stage_and_says_what_failed(folder, capsys):
    words = ["sample", str(folder / "own.toml"), "--run", str(folder / "whole"), "--limit", "4"]
    assert main(words) == 3
    captured = capsys.readouterr()
    assert captured.out == f"failed and left out: 1\nsample: {folder / 'whole' / 'sample'}\n"
    assert [x.split(":")[0] for x in captured.err.splitlines() if "begins" in x] == [
        "data", "sample",
    ]  # fmt: skip
    assert "4 queries, 1 failed, 1 passing, 16 samples" in captured.err
    assert "sample 4/4" in captured.err
    assert "\r" not in captured.err  # this is no terminal
    found = list(read_generations(folder / "whole" / "sample"))
    assert [g.error is None for g in found] == [True, True, True, False]
    assert {g.path for g in found[:3]} == {"shared_prefix"}
    assert "3.png does not exist" in found[3].error
    counts = read_manifest(folder / "whole", "sample").counts
    assert {k: counts[k] for k in ("queries", "failed", "samples")} == {
        "queries": 4, "failed": 1, "samples": 16,
    }  # fmt: skip


def test_a_resumed_stage_has_the_bytes_of_an_uninterrupted_one(folder, sampled):
    run, words = sampled
    whole = [*words[:3], str(folder / "again"), *words[4:], "--quiet"]
    assert main(whole) == 3
    files = sorted(path.name for path in (run / "sample").glob("part-*"))
    assert len(files) == 6
    for name in files:
        ours, theirs = (home / "sample" / name for home in (run, folder / "again"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_a_finished_stage_is_said_and_keeps_its_exit_code(sampled, capsys):
    run, words = sampled
    for again in (words, ["sample", str(run)]):
        assert main(again) == 3
        captured = capsys.readouterr()
        assert "sample: 1 failed query may be tried again" in captured.err  # it is still missing
        assert "4 queries, 1 failed, 1 passing, 16 samples" in captured.err
        assert "failed and left out: 1" in captured.out
    assert main([*words, "--quiet"]) == 3
    assert capsys.readouterr().err == ""


def test_other_settings_are_refused(sampled, capsys):
    _, words = sampled
    assert main([*words, "--set", "sample.seed=1"]) == 1
    err = capsys.readouterr().err
    assert "sample is stale: sample.seed was 0 and is now 1" in err
    assert f"fusevlm {' '.join(words[:4])} --set sample.seed=1 --limit 4 --redo\n" in err
    assert main([*words[:-1], "5"]) == 1
    assert "data is stale: data.n_calibration was 4 and is now 5" in capsys.readouterr().err


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_loads_from_a_folder(family, tmp_path):
    model = HuggingFace.load(tiny.save(family, tmp_path))
    assert model.capabilities.hidden_states
    (found,) = model.sample([make_query(0)], 3, stratified(3), seed=0)
    assert (found.error, found.path) == (None, "shared_prefix")


def test_embed_writes_paired_unit_vectors(sampled, capsys):
    run, _ = sampled
    assert main(["embed", str(run), "--quiet"]) == 3
    assert capsys.readouterr().out == f"failed and left out: 1\nembed: {run / 'embed'}\n"
    parts = list(read_parts(run / "embed", EMBEDDINGS))
    image = np.concatenate([arrays["image"] for _, arrays in parts])
    text_vectors = np.concatenate([arrays["text"] for _, arrays in parts])
    np.testing.assert_allclose(np.linalg.norm(image, axis=1), [1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(text_vectors, axis=1), 1.0, atol=1e-6)
    assert parts[1][0]["error"][0] is not None
    ids, pairs = read_embeddings(run / "embed")
    assert ids == ["test/v0", "test/v1", "test/v2"]
    np.testing.assert_array_equal(pairs["image"], image[:3])


def test_embed_needs_no_samples(folder, capsys):
    words = ["embed", str(folder / "own.toml"), "--run", str(folder / "clip"), "--limit", "3"]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert [x.split(":")[0] for x in err.splitlines() if "begins" in x] == ["data", "embed"]
    assert len(read_embeddings(folder / "clip" / "embed")[0]) == 3
    assert not (folder / "clip" / "sample").exists()


def test_queries_from_files(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text('question,image,references,split\nwhat,a.png,"[""red""]",test\nhow,,,train\n')
    one, two = read_queries(path, tmp_path / "pictures")
    assert (one.id, one.references, one.metadata) == ("0", ("red",), {"split": "test"})
    assert one.images == [tmp_path / "pictures" / "a.png"]
    assert (list(two.images), two.references) == ([], ())
    assert len(read_queries(path, limit=1)) == 1
    path.write_text("q\nwhat\n")
    with pytest.raises(InputError, match="no column 'question'"):
        read_queries(path)
    path.write_text("id,question\n1,what\n1,how\n")
    with pytest.raises(InputError, match="'1' twice"):
        read_queries(path)
    path.write_text('id,question,references\n1,what,"[broken"\n')
    with pytest.raises(InputError, match="row 1"):
        read_queries(path)
