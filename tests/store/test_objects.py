"""Objects in folders: what is stored comes back as it was, and a folder is whole or refused."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fusevlm.errors import ArtefactError
from fusevlm.store import files
from fusevlm.store.objects import ARRAYS, load_object, save_object


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


def test_what_is_stored_comes_back(tmp_path):
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([True, False]), np.arange(3), np.zeros(0)]
    plain = {"t": (1, [2, (3.5, None)]), "inf": (math.inf, -math.inf), "s": "σ", "yes": True}
    store(tmp_path, Outer(Inner(arrays), plain))
    again = load(tmp_path)
    assert again.more == plain
    assert isinstance(again.more["t"][1], list)
    assert again.more["yes"] is True
    for one, two in zip(arrays, again.inner.rows, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    store(tmp_path, Inner(math.nan))
    assert math.isnan(load(tmp_path).rows)
    with pytest.raises(TypeError, match="cannot store a set"):
        store(tmp_path, Inner({1}))


def test_arrays_of_another_object_are_refused(tmp_path):
    """Both are well formed; only the checksum tells."""
    store(tmp_path / "a", Inner(np.zeros(3)))
    store(tmp_path / "b", Inner(np.ones(3)))
    (tmp_path / "b" / ARRAYS).rename(tmp_path / "a" / ARRAYS)
    with pytest.raises(ArtefactError, match="truncated or replaced"):
        load(tmp_path / "a")


@pytest.mark.parametrize("file", [ARRAYS, "it.json"])
def test_a_folder_with_a_manifest_is_whole(tmp_path, monkeypatch, file):
    """Stopped at either file: what is there is no object, and says so."""
    real = files.write_atomically

    def stop(path, payload):
        if path.name == file:
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
