"""Single files: whole or not at all, in an order that survives a crash, and known by digest."""

import math
import os
import re
from pathlib import Path

import pytest

from fusevlm.errors import ArtefactError
from fusevlm.store import files
from fusevlm.store.files import digest_input, hold, refuse_links, save, save_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    save(target, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtefactError, match="No space left on device"):
        save(target, b"new and longer")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_file_is_synced_before_it_has_its_name_and_the_folder_after(tmp_path, monkeypatch):
    seen = []
    sync, replace = os.fsync, Path.replace

    def synced(handle):
        held = os.readlink(f"/proc/self/fd/{handle}")
        seen.append(("sync", Path(held).name, (tmp_path / "a").exists()))
        sync(handle)

    def renamed(path, target):
        seen.append(("rename", path.name, path.read_bytes()))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    save(tmp_path / "a", b"whole")
    temporary = seen[0][1]
    assert re.fullmatch(r"\.a\.[0-9a-f]{8}\.tmp", temporary)
    assert seen == [
        ("sync", temporary, False),
        ("rename", temporary, b"whole"),
        ("sync", tmp_path.name, True),
    ]


def test_nan_is_refused_in_json(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        save_json(tmp_path / "a.json", {"x": math.nan})
    assert not list(tmp_path.iterdir())


def test_inputs_are_known_by_their_names_and_contents(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "deep" / "b").write_text("2")
    first = digest_input(folder)
    os.utime(folder / "a", (0, 0))
    assert digest_input(folder) == first
    (folder / "a").write_text("3")  # as long as before
    changed = digest_input(folder)
    (folder / "a").rename(folder / "c")
    moved = digest_input(folder)
    assert len({first, changed, moved, digest_input(folder / "c")}) == 4
    monkeypatch.setattr(files, "SMALL", 0)
    large = digest_input(folder)
    (folder / "c").write_text("4")
    assert digest_input(folder) == large  # a large file goes by name and size
    (folder / "c").write_text("44")
    assert digest_input(folder) != large


def test_links_are_never_written_through(tmp_path):
    """At the file's own name the link goes; as a lock or a folder of a run it is refused."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    home = tmp_path / "run"
    home.mkdir()
    (home / "a.json").symlink_to(victim)
    save_json(home / "a.json", {"x": 1})
    assert not (home / "a.json").is_symlink()
    (home / ".lock").symlink_to(victim)
    with pytest.raises(ArtefactError, match="its lock is a link"), hold(home):
        pass
    (home / ".lock").unlink()
    refuse_links(home)
    (home / "stage").mkdir()
    for name, target in (("report", tmp_path), ("stage/part-00000.parquet", victim),
                         ("stage/deep", tmp_path)):  # fmt: skip
        (home / name).symlink_to(target)
        with pytest.raises(ArtefactError, match=f"{name} is a link"):
            refuse_links(home)
        (home / name).unlink()
    outer = tmp_path / "outer"
    outer.symlink_to(home)
    refuse_links(outer)  # the run folder itself may lie on another disk
    assert victim.read_text() == "mine"


def test_a_temporary_name_is_never_somebody_elses(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 8)
    (tmp_path / ".a.00000000.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(ArtefactError, match="cannot write"):
        save(tmp_path / "a", b"theirs")
    assert (tmp_path / "victim").read_text() == "mine"
