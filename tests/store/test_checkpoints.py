"""Numbered checkpoints: the newest whole one wins, whatever a kill or damage left behind."""

from dataclasses import dataclass

import pytest
from tests.store.test_objects import arrays_of

from fusevlm.errors import ArtefactError
from fusevlm.store.checkpoints import MANIFEST, load_newest, remove_numbered, save_numbered


@dataclass(frozen=True)
class Note:
    step: int


def save(home, step, keep=2):
    save_numbered(home, step, "note", 1, Note(step), keep=keep)


def load(home):
    return load_newest(home, "note", 1, Note)


def names(home):
    return sorted(p.name for p in home.iterdir())


def test_the_newest_is_loaded_and_only_so_many_are_kept(tmp_path):
    assert load(tmp_path / "none") is None
    for step in (1, 9, 10):
        save(tmp_path, step)
    assert names(tmp_path) == ["00000009", "00000010"]
    assert load(tmp_path) == Note(10)
    remove_numbered(tmp_path)
    assert load(tmp_path) is None


def test_one_cut_short_does_not_count(tmp_path):
    """Killed between arrays and manifest: of the first checkpoint, then of a later one."""
    save(tmp_path, 5)
    (tmp_path / "00000005" / MANIFEST).unlink()
    assert load(tmp_path) is None
    save(tmp_path, 4)
    assert load(tmp_path) == Note(4)


def test_a_damaged_one_is_skipped_and_said(tmp_path, caplog):
    save(tmp_path, 5)
    save(tmp_path, 7)
    arrays_of(tmp_path / "00000007").write_bytes(b"no")
    assert load(tmp_path) == Note(5)
    assert "skipped a checkpoint" in caplog.text
    arrays_of(tmp_path / "00000005").write_bytes(b"no")
    with pytest.raises(ArtefactError, match=r"00000007.*truncated or replaced"):
        load(tmp_path)


def test_a_damaged_higher_number_does_not_push_out_the_new_one(tmp_path):
    """Resumed from 5 past a damaged 7, saved at 6: with room for one, 6 stays."""
    save(tmp_path, 7)
    arrays_of(tmp_path / "00000007").write_bytes(b"no")
    save(tmp_path, 6, keep=1)
    assert names(tmp_path) == ["00000006"]
    assert load(tmp_path) == Note(6)
