"""Stage adapter: trained on training pairs, asked about judged ones, each with its own vectors."""

import numpy as np
import pytest

from fusevlm.config import make_config
from fusevlm.errors import InputError
from fusevlm.pipeline import adapter
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.run import Work
from fusevlm.store import runs
from fusevlm.store.generations import EMBEDDINGS
from fusevlm.store.parts import Parts
from fusevlm.store.runs import Manifest


class FirstOf:
    """A prior whose statistic is the first entry of the image's vector."""

    def statistics(self, image, text):
        assert image.shape == text.shape
        return {"s": image[:, 0]}


def config(**adapter):
    files = {"source": "files", "calibration": "c.csv", "test": "t.csv", "train": "pairs.csv"}
    return make_config({"data": files, "adapter": {"source": "train", **adapter}}, "test")


@pytest.fixture
def work(tmp_path):
    """Embeddings of queries of all splits, mixed; the first entry is the query's number."""
    ids = ["test/0", "train/1", "calibration/2", "train/3", "test/4"]
    vectors = np.outer(np.arange(5.0), np.ones(3)).astype(np.float32)
    rows = {"query_id": ids, "error": [None, None, None, None, "torn"]}
    Parts(tmp_path / "embed", EMBEDDINGS).write(0, rows, {"image": vectors, "text": -vectors}, {})
    runs.write_manifest(tmp_path, Manifest("embed", {}, {}, {}, complete=True))
    return Work(tmp_path, config(), lambda done, total: None)


def test_training_and_judged_pairs_are_kept_apart(work, monkeypatch):
    seen = []
    monkeypatch.setattr(adapter, "_train", lambda work, image, text: seen.append((image, text)))
    monkeypatch.setattr(adapter, "load_adapter", lambda run, config: FirstOf())
    assert adapter.make(work) == {"queries": 2, "trained_on": 2}
    ((image, text),) = seen
    assert image[:, 0].tolist() == [1.0, 3.0]
    assert text[:, 0].tolist() == [-1.0, -3.0]
    runs.write_manifest(work.run, Manifest("adapter", {}, {}, {}, complete=True))
    assert read_statistics(work.run) == {"test/0": {"s": 0.0}, "calibration/2": {"s": 2.0}}


def test_a_statistic_the_adapter_does_not_give_is_named(work, monkeypatch):
    monkeypatch.setattr(adapter, "_train", lambda work, image, text: None)
    monkeypatch.setattr(adapter, "load_adapter", lambda run, config: FirstOf())
    other = config(statistic="s_text")
    with pytest.raises(InputError, match=r"adapter\.statistic is 's_text'; it gives s\."):
        adapter.make(Work(work.run, other, work.progress))
