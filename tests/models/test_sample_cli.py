"""``fusevlm sample`` and ``fusevlm embed`` on a tiny model folder, in process."""

import json

import numpy as np
import pytest
from fusevlm.store.embeddings import KIND as EMBEDDINGS
from fusevlm.store.embeddings import read_embeddings
from tests.models.conftest import make_picture, make_query

from fusevlm.cli import main
from fusevlm.data.tables import read_queries
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.temperatures import stratified
from fusevlm.store.generations import read_generations
from fusevlm.store.parts import read_parts
from fusevlm.testing import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    tiny.save("llava", root / "model")
    for i in range(3):
        make_picture(i).save(root / f"{i}.png")
    rows = [
        {"id": f"v{i}", "question": "what colour", "image": f"{i}.png", "kind": "other"}
        for i in range(4)  # the last picture is missing
    ]
    (root / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def test_sample_writes_a_run_and_says_what_failed(folder, capsys):
    words = ["sample", "--model", str(folder / "model"), "--queries", str(folder / "queries.jsonl")]
    words += ["--out", str(folder / "run"), "-n", "4", "--max-new-tokens", "3", "--batch", "2"]
    assert main(words) == 3
    captured = capsys.readouterr()
    assert "4 queries, 1 failed" in captured.out
    assert "path shared_prefix" in captured.out
    assert "queries 4/4" in captured.err
    found = list(read_generations(folder / "run"))
    assert [g.error is None for g in found] == [True, True, True, False]
    assert main([*words, "--quiet"]) == 3
    captured = capsys.readouterr()
    assert "4 of them in an earlier run" in captured.out
    assert captured.err == ""
    assert main([words[0], *words[3:]]) == 1
    assert "say --model FOLDER_OR_NAME, or --preset paper" in capsys.readouterr().err
    assert main([*words, "--seed", "1"]) == 1
    assert "seed was 0 and is now 1" in capsys.readouterr().err


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_loads_from_a_folder(family, tmp_path):
    backend = HuggingFace.load(tiny.save(family, tmp_path))
    assert backend.capabilities.hidden_states
    (found,) = backend.sample([make_query(0)], 3, stratified(3), seed=0)
    assert (found.error, found.path) == (None, "shared_prefix")


def test_embed_writes_paired_unit_vectors(folder, capsys):
    tiny.save_towers(folder / "towers")
    words = ["embed", "--towers", str(folder / "towers"), "--out", str(folder / "clip")]
    words += ["--queries", str(folder / "queries.jsonl"), "--batch", "3", "--quiet"]
    assert main(words) == 3
    assert "4 queries, 1 failed" in capsys.readouterr().out
    parts = list(read_parts(folder / "clip", EMBEDDINGS))
    image = np.concatenate([arrays["image"] for _, arrays in parts])
    text_vectors = np.concatenate([arrays["text"] for _, arrays in parts])
    np.testing.assert_allclose(np.linalg.norm(image, axis=1), [1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(text_vectors, axis=1), 1.0, atol=1e-6)
    assert parts[1][0]["error"][0] is not None
    ids, pairs = read_embeddings(folder / "clip")
    assert ids == ["v0", "v1", "v2"]
    np.testing.assert_array_equal(pairs["image"], image[:3])


def test_queries_from_files(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text('question,image,references,split\nwhat,a.png,"[""red""]",test\nhow,,,train\n')
    one, two = read_queries(path, tmp_path / "pictures")
    assert (one.id, one.references, one.metadata) == ("0", ["red"], {"split": "test"})
    assert one.images == [tmp_path / "pictures" / "a.png"]
    assert (two.images, two.references) == ([], [])
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
