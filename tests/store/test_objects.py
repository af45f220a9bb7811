"""Objects in folders: what is stored comes back as it was, and a folder is whole or refused."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusevlm.errors import ArtefactError
from fusevlm.store import files
from fusevlm.store.objects import (
    ARRAYS,
    NAME,
    find_inner,
    keep_inner,
    load_object,
    save_inner,
    save_object,
)


@dataclass(frozen=True)
class Inner:
    rows: Any


@dataclass(frozen=True)
class Outer:
    inner: Inner
    more: dict = field(default_factory=dict)


def store(folder, value):
    save_object(folder, "it.json", "test", 2, value)


def load(folder, version=2):
    return load_object(folder, "it.json", "test", version, {"Inner": Inner, "Outer": Outer}, {})


def arrays_of(folder):
    (found,) = (path for path in folder.iterdir() if NAME.fullmatch(path.name))
    return found


def test_what_is_stored_comes_back(tmp_path):
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([True, False]), np.arange(3), np.zeros(0),
              np.array(2.5)]  # fmt: skip
    plain = {"t": (1, [2, (3.5, None)]), "inf": (math.inf, -math.inf), "s": "σ", "yes": True}
    store(tmp_path, Outer(Inner(arrays), plain))
    again = load(tmp_path)
    assert again.more == plain
    assert isinstance(again.more["t"][1], list)
    assert again.more["yes"] is True
    for one, two in zip(arrays, again.inner.rows, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_array_equal(one, two)
    store(tmp_path, Inner(math.nan))
    assert math.isnan(load(tmp_path).rows)
    with pytest.raises(TypeError, match="cannot store a set"):
        store(tmp_path, Inner({1}))


def test_arrays_of_another_object_are_refused(tmp_path):
    """Both are well formed; only the checksum tells."""
    store(tmp_path / "a", Inner(np.zeros(3)))
    store(tmp_path / "b", Inner(np.ones(3)))
    arrays_of(tmp_path / "b").rename(arrays_of(tmp_path / "a"))
    with pytest.raises(ArtefactError, match="truncated or replaced"):
        load(tmp_path / "a")


@pytest.mark.parametrize("file", ["arrays", "it.json"])
def test_a_folder_with_a_manifest_is_whole(tmp_path, monkeypatch, file):
    """Stopped at either file: what is there is no object, and says so."""
    real = files.write_atomically

    def stop(path, payload):
        if path.name.startswith(file):
            raise OSError(28, "No space left on device")
        real(path, payload)

    monkeypatch.setattr(files, "write_atomically", stop)
    with pytest.raises(ArtefactError, match="No space left"):
        store(tmp_path, Inner(np.ones(2)))
    assert not (tmp_path / "it.json").exists()
    with pytest.raises(ArtefactError, match=r"no complete test: it\.json is missing"):
        load(tmp_path)


def test_other_versions_and_kinds_are_refused(tmp_path):
    store(tmp_path, Inner(1))
    with pytest.raises(ArtefactError, match="schema version 2; this fusevlm reads version 1"):
        load(tmp_path, version=1)
    with pytest.raises(ArtefactError, match="Refit"):
        load(tmp_path, version=3)
    with pytest.raises(ArtefactError, match="not a else saved"):
        load_object(tmp_path, "it.json", "else", 2, {}, {})


def test_a_changed_digit_of_a_manifest_is_found(tmp_path):
    store(tmp_path, Inner({"threshold": 1.25, "rows": np.arange(3.0)}))
    path = tmp_path / "it.json"
    whole = path.read_text()
    assert load(tmp_path).rows["threshold"] == 1.25
    path.write_text(whole.replace("1.25", "1.35"))
    with pytest.raises(ArtefactError, match="does not match its checksum"):
        load(tmp_path)
    path.write_text(json.dumps(json.loads(whole)))  # another layout is the same content
    assert load(tmp_path).rows["threshold"] == 1.25
    old = {k: v for k, v in json.loads(whole).items() if k not in ("sha256", "arrays")}
    path.write_text(json.dumps(old))  # as they were saved before
    arrays_of(tmp_path).rename(tmp_path / ARRAYS)
    assert load(tmp_path).rows["threshold"] == 1.25


@pytest.mark.parametrize("name", ["../arrays.safetensors", "/etc/passwd", 7, "it.json", ""])
def test_arrays_are_beside_their_manifest(tmp_path, name):
    store(tmp_path, Inner(np.zeros(2)))
    head = json.loads((tmp_path / "it.json").read_text())
    del head["sha256"]
    (tmp_path / "it.json").write_text(json.dumps({**head, "arrays": name}))
    with pytest.raises(ArtefactError, match="as its arrays, which cannot be"):
        load(tmp_path)


def test_gaps_come_back_only_where_they_were(tmp_path):
    store(tmp_path, Inner([np.array([1.0, math.nan]), np.array([2.0]), np.array([math.inf])]))
    first, second, third = load(tmp_path).rows
    assert math.isnan(first[1])
    assert (second.tolist(), third.tolist()) == ([2.0], [math.inf])
    head = json.loads((tmp_path / "it.json").read_text())
    del head["sha256"]
    text = json.dumps(head).replace('"gaps": true', '"gaps": false')
    (tmp_path / "it.json").write_text(text)
    with pytest.raises(ArtefactError, match="NaN or infinity that it was not saved with"):
        load(tmp_path)


def test_saved_again_it_is_the_old_or_the_new_one_at_any_moment(tmp_path, monkeypatch):
    """Stopped before each of its steps; what is left over goes with the next save."""
    real, unlink = files.write_atomically, Path.unlink
    for stop in range(4):
        folder = tmp_path / str(stop)
        store(folder, Inner(np.zeros(3)))
        steps = []

        def step(what, *given, stop=stop, steps=steps):
            if len(steps) == stop:
                raise KeyboardInterrupt
            steps.append(what)
            return what(*given)

        def remove(path, missing_ok=False, step=step):
            return unlink(path, missing_ok=True) if path.suffix == ".tmp" else step(unlink, path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomically", lambda *given, step=step: step(real, *given))
            patch.setattr(Path, "unlink", remove)
            try:
                store(folder, Inner(np.ones(3)))
            except KeyboardInterrupt:
                assert stop < 3
        assert load(folder).rows.tolist() == ([0, 0, 0] if stop < 2 else [1, 1, 1])
        store(folder, Inner(np.full(3, 2.0)))
        assert load(folder).rows.tolist() == [2, 2, 2]
        assert len(list(folder.iterdir())) == 2


def test_an_inner_object_holds_what_its_name_says(tmp_path):
    """Named after its content: two may lie side by side until the manifest names the new one."""
    first, second = (lambda home, k=k: store(home, Inner(np.full(3, k))) for k in (1.0, 2.0))
    old = save_inner(tmp_path, "it", first)
    assert save_inner(tmp_path, "it", first) == old
    assert [p.name for p in tmp_path.iterdir()] == [old]
    new = save_inner(tmp_path, "it", second)
    assert load(find_inner(tmp_path, "it", old)).rows[0] == 1.0
    (tmp_path / ".it.0a1b2c3d.tmp").mkdir()  # of a save that was killed
    (tmp_path / "other-0a1b2c3d4e5f").mkdir()
    keep_inner(tmp_path, "it", new)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([new, "other-0a1b2c3d4e5f"])
    arrays_of(tmp_path / new).write_bytes(b"other")
    with pytest.raises(ArtefactError, match="was changed since it was saved"):
        find_inner(tmp_path, "it", new)
    assert save_inner(tmp_path, "it", second) == new  # a damaged one is replaced
    assert load(find_inner(tmp_path, "it", new)).rows[0] == 2.0


@pytest.mark.parametrize(
    ("name", "message"),
    [("../it-0a1b2c3d4e5f", "cannot be"), ("other-0a1b2c3d4e5f", "cannot be"), (7, "cannot be"),
     ("it-0a1b2c3d4e5f", "is missing")],
)  # fmt: skip
def test_a_name_leads_to_no_other_folder(tmp_path, name, message):
    (tmp_path / "other-0a1b2c3d4e5f").mkdir()
    with pytest.raises(ArtefactError, match=message):
        find_inner(tmp_path, "it", name)
