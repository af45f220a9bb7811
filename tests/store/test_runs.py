"""Run folders: manifests come back, half-made stages are not read, digests see contents alone."""

import pytest

from fusevlm.errors import ArtefactError
from fusevlm.store import runs
from fusevlm.store.files import read_sealed, save_sealed
from fusevlm.store.runs import Manifest, digest_stage, read_manifest, require, write_manifest

MADE = Manifest(
    "score", {"score.layer": "last"}, {"weights": "1f"}, {"data": "2e"}, True, "3d", 4.5,
    counts={"n": 6},
)  # fmt: skip


def test_a_manifest_comes_back(tmp_path):
    assert read_manifest(tmp_path, "score") is None
    write_manifest(tmp_path, MADE)
    assert read_manifest(tmp_path, "score") == MADE


def test_a_stage_that_is_not_finished_is_not_read(tmp_path):
    for begun in (None, Manifest("score", {}, {}, {})):
        if begun is not None:
            write_manifest(tmp_path, begun)
        with pytest.raises(ArtefactError, match="has no finished stage score"):
            require(tmp_path, "score")
    write_manifest(tmp_path, MADE)
    assert require(tmp_path, "score") == tmp_path / "score"


@pytest.mark.parametrize(
    "change",
    [{"stage": "../elsewhere"}, {"settings": []}, {"complete": 1}, {"digest": None},
     {"counts": {"failed": "1"}}, {"files": {"a": 1}}, {"upstream": ["data"]}, {"seconds": "4"}],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_somebody_made_up_is_refused(tmp_path, change):
    """Sealed as it should be, but no stage's of this folder."""
    write_manifest(tmp_path, MADE)
    path = tmp_path / "score" / runs.STAGE
    save_sealed(path, {**read_sealed(path, ""), **change})
    with pytest.raises(ArtefactError, match=r"stage\.json is damaged"):
        read_manifest(tmp_path, "score")


def test_an_edited_manifest_is_refused(tmp_path):
    write_manifest(tmp_path, MADE)
    path = tmp_path / "score" / runs.STAGE
    path.write_text(path.read_text().replace('"n": 6', '"n": 7'))
    with pytest.raises(ArtefactError, match=r"stage\.json was changed since it was written"):
        read_manifest(tmp_path, "score")


def test_another_schema_is_refused(tmp_path):
    write_manifest(tmp_path, MADE)
    path = tmp_path / "score" / runs.STAGE
    for version in (runs.SCHEMA_VERSION - 1, runs.SCHEMA_VERSION + 1, None):
        save_sealed(path, {**read_sealed(path, ""), "schema_version": version})
        with pytest.raises(ArtefactError, match=f"schema version {version}; this is"):
            read_manifest(tmp_path, "score")


def test_a_digest_is_of_contents_and_not_of_times(tmp_path):
    def made(name, **files):
        for file, text in files.items():
            path = tmp_path / name / file.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return digest_stage(tmp_path / name)

    base = made("one", a_json="1", b_json="2")
    assert made("same", b_json="2", a_json="1") == base
    others = {
        "content": made("content", a_json="1", b_json="3"),
        "name": made("name", a_json="1", c_json="2"),
        "swapped": made("swapped", a_json="2", b_json="1"),
        "more": made("more", a_json="1", b_json="2", c_json=""),
    }
    assert len({base, *others.values()}) == 5
    # how long it took, its own manifest and the lock are no part of the result
    for name in (runs.SECONDS, runs.STAGE, ".lock"):
        (tmp_path / "one" / name).write_text("whatever")
    assert digest_stage(tmp_path / "one") == base
    # parts go by the checksums in their JSON
    (tmp_path / "one" / "part-00000.parquet").write_text("rows")
    assert digest_stage(tmp_path / "one") == base
    (tmp_path / "one" / "part-00000.json").write_text("checksums")
    assert digest_stage(tmp_path / "one") != base
